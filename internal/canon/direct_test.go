package canon

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

type named string

func (n named) MarshalText() ([]byte, error) { return []byte("<" + string(n) + ">"), nil }

type byPointer int

func (p *byPointer) MarshalJSON() ([]byte, error) { return []byte(`"p"`), nil }

type loose struct{ raw string }

func (l loose) MarshalJSON() ([]byte, error) { return []byte(l.raw), nil }

type always int

func (always) IsZero() bool { return true }

type cycle struct {
	Next *cycle         `json:"next"`
	Map  map[string]any `json:"map"`
}

type wide struct {
	sample
	Base
	Emoji  int             `json:"b"`
	Raw    json.RawMessage `json:"raw"`
	Bytes  []byte          `json:"bytes"`
	Text   named           `json:"text"`
	PText  *named          `json:"ptext"`
	Float  float64         `json:"float"`
	Uint   uint64          `json:"uint"`
	Zero   time.Time       `json:"zero,omitzero"`
	Always always          `json:"always,omitzero"`
	Empty  []int           `json:"empty,omitempty"`
	Plain2 map[string]any  `json:"plain2"`
}

// Base is embedded by name.
type Base struct {
	FromBase string `json:"from_base"`
}

// TestDirect compares the direct way with the long one, and says for which
// values the direct one must not give up: those are what it is for.
func TestDirect(t *testing.T) {
	n := named("x")
	deep := any("end")
	for range 1200 {
		deep = []any{deep}
	}
	for _, c := range []struct {
		name   string
		in     any
		direct bool
	}{
		{"nil", nil, true},
		{"string", "a\u2028\"\\\x00\x1f\b😀", true},
		{"not UTF-8", "a\xff", false},
		{"not UTF-8 in bytes of a raw message", json.RawMessage("\"\xff\""), false},
		{"ints", []int64{0, -1, 1 << 52, 1<<53 - 1, -(1<<53 - 1)}, true},
		{"int beyond", int64(1 << 53), false},
		{"int not exact", int64(1<<53 + 1), false},
		{"uint beyond", uint64(math.MaxUint64), false},
		{"floats", []float64{0, math.Copysign(0, -1), 1e21, 1e-7, 0.1, 1 << 53, 1e300, 5e-324}, true},
		{"float32", float32(0.1), false},
		{"NaN", math.NaN(), false},
		{"infinite", math.Inf(-1), false},
		{"digest", []Digest{{}, Sum(nil)}, true},
		{"bytes", [][]byte{nil, {}, {1, 2, 3, 255}}, true},
		{"array", [3]uint8{1, 2, 3}, true},
		{"nil slice and map", struct {
			A []int
			B map[string]int
			C *int
			D any
		}{}, true},
		{"map", map[string]any{"\ufb33": 1, "😀": nil, "a": []any{true, "x", 1.5}, "": map[string]int{}}, true},
		{"map with a bad name", map[string]int{"\xff": 1}, false},
		{"map by text", map[named]int{"a": 1}, false},
		{"map by number", map[int]int{2: 1, 10: 2}, false},
		{"text", struct {
			T named
			P *named
			Q *named
		}{n, &n, nil}, true},
		{"marshaler with canonical output", loose{`{"a":[1,"x"],"b":null}`}, true},
		{"marshaler with other output", loose{` { "b" : 1.0, "a": "\u0041" } `}, false},
		{"marshaler with an escape that hides", loose{`"\ufffd"`}, false},
		{"marshaler without output", loose{``}, false},
		{"marshaler with two values", loose{`1 2`}, false},
		{"marshaler by pointer", []byPointer{1}, false},
		{"raw", json.RawMessage(`{"a":{"b":[1,-2,"\u001f\n"]},"b":0}`), true},
		{"raw nil", struct{ R json.RawMessage }{}, true},
		{"raw empty", json.RawMessage{}, false},
		{"raw, names not sorted", json.RawMessage(`{"b":1,"a":2}`), false},
		{"raw, name twice", json.RawMessage(`{"a":1,"a":2}`), false},
		{"raw, blank", json.RawMessage(`{"a": 1}`), false},
		{"raw, fraction", json.RawMessage(`1.5`), false},
		{"raw, minus zero", json.RawMessage(`-0`), false},
		{"raw, leading zero", json.RawMessage(`01`), false},
		{"raw, long number", json.RawMessage(`1234567890123456`), false},
		{"raw, escape that need not be", json.RawMessage(`"\u0041"`), false},
		{"raw, upper-case escape", json.RawMessage(`"\u001F"`), false},
		{"raw, long escape for a short one", json.RawMessage(`"\u000a"`), false},
		{"raw, slash", json.RawMessage(`"\/"`), false},
		{"raw, cut", json.RawMessage(`{"a":`), false},
		{"json.Number", json.Number("1.50"), false},
		{"too deep", deep, false},
		{"recursive type", cycle{Map: map[string]any{"x": 1}}, false},
		{"option string", struct {
			A int `json:"a,string"`
		}{1}, false},
		{"name twice", struct {
			Base
			A string `json:"from_base"`
		}{Base{"x"}, "y"}, false},
		{"embedded pointer", struct{ *Base }{&Base{"x"}}, false},
		{"odd name", struct {
			A int `json:"a b"`
		}{1}, false},
		{"everything", &wide{sample: sample{Name: "n", Any: []any{"x"}, Map: map[string]string{"k": "v"}}, Raw: json.RawMessage(`[1]`),
			Text: "t", Plain2: map[string]any{"z": 1, "b": nil}}, true},
	} {
		want, werr := marshal(c.in)
		got, ok := direct(nil, c.in)
		if ok != c.direct {
			t.Errorf("%s: direct %v, want %v", c.name, ok, c.direct)
		}
		if ok && (werr != nil || !bytes.Equal(got, want)) {
			t.Errorf("%s: got %s, want %s, %v", c.name, got, want, werr)
		}
		got, err := Marshal(c.in)
		if !bytes.Equal(got, want) || (err == nil) != (werr == nil) || err != nil && err.Error() != werr.Error() {
			t.Errorf("%s: Marshal gives %s, %v, want %s, %v", c.name, got, err, want, werr)
		}
	}
	loop := map[string]any{}
	loop["x"] = loop
	if _, ok := direct(nil, loop); ok {
		t.Error("a value that contains itself was printed")
	}
}

// TestScan: whatever is taken for canonical is, and the usual forms are taken.
func TestScan(t *testing.T) {
	for _, in := range []string{`{}`, `[]`, `null`, `true`, `false`, `0`, `-1`, `123456789012345`, `"ü"`, `{"a":{},"b":[[],{}],"ü":"\""}`} {
		if !canonical([]byte(in), 0) {
			t.Errorf("%s is canonical", in)
		}
	}
	for _, in := range []string{``, ` `, `{`, `[`, `[1`, `[1,`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{1:1}`, `"`, `"\`, `"\u`, `"\u0`, `"\u000`,
		`"\u0008"`, `"\u0009"`, `"\u000d"`, `tru`, `nul`, `-`, `--1`, `00`, `-00`, `1.0`, `1e1`, `1x`, `[] `, `{"b":1,"a":1}`, `{"😀":1,"\ufb33":1`} {
		if canonical([]byte(in), 0) {
			t.Errorf("%s is not canonical", in)
		}
	}
	if canonical([]byte(`[[]]`), maxDepth-1) || !canonical([]byte(`[[]]`), maxDepth-2) {
		t.Error("depth is not counted from where the value stands")
	}
}

// FuzzDirect: both ways print the same, of values that encoding/json has read
// and of raw messages.
func FuzzDirect(f *testing.F) {
	seeds(f)
	f.Add([]byte(`{"name":"\u0000","any":{"\ufb33":[1.5,-0]},"raw":{"b":1},"bytes":"AQI=","mapped":{"a":1},"float":1e-7}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var w wide
		var anything any
		values := []any{json.RawMessage(in), loose{string(in)}, string(in), in}
		if json.Unmarshal(in, &anything) == nil {
			values = append(values, anything)
		}
		if json.Unmarshal(in, &w) == nil {
			values = append(values, w, &w, w.sample, w.Plain2)
		}
		for _, v := range values {
			got, ok := direct(nil, v)
			if !ok {
				continue
			}
			want, err := marshal(v)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%T: got %s, want %s, %v", v, got, want, err)
			}
			if err := Check(got); err != nil {
				t.Fatalf("%T: %s: %v", v, got, err)
			}
		}
		if canonical(in, 0) {
			if err := Check(in); err != nil {
				t.Fatalf("taken for canonical: %s: %v", in, err)
			}
		}
	})
}

// TestMembers: fields come in the order of their names, whatever order the type
// has, and hidden ones do not come.
func TestMembers(t *testing.T) {
	m, ok := (&compiler{}).members(reflect.TypeFor[sample](), nil, nil)
	if !ok {
		t.Fatal("sample goes the long way")
	}
	var names []string
	for _, x := range m {
		names = append(names, x.name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "Plain any count d deep map name pair ptr" {
		t.Errorf("got %s", got)
	}
}

// TestPlain compares the way that looks at eight bytes at a time with one that
// looks at each, for every byte at every place.
func TestPlain(t *testing.T) {
	slow := func(s string) int {
		for i := range len(s) {
			if c := s[i]; c < ' ' || c > '~'+1 || c == '"' || c == '\\' {
				return i
			}
		}
		return len(s)
	}
	for _, fill := range []byte{' ', '!', '#', 'a', '[', ']', 0x7f} {
		for n := range 27 {
			for at := range n {
				for c := range 256 {
					b := bytes.Repeat([]byte{fill}, n)
					b[at] = byte(c)
					if got, want := plain(b), slow(string(b)); got != want || plain(string(b)) != want {
						t.Fatalf("%q: got %d, want %d", b, got, want)
					}
				}
			}
		}
	}
}

// TestMaps: the maps with an encoder of their own are printed as the long way
// prints them, and given up where that refuses.
func TestMaps(t *testing.T) {
	type labels map[string]string
	many := map[string]uint64{}
	for i := range 40 {
		many[strings.Repeat("k", i%7)+string(rune('a'+i))] = uint64(i) << 40
	}
	for _, x := range []struct {
		v  any
		ok bool
	}{
		{map[string]string{"b": "\"\\\n\u00fc", "a": "", "\U0001F600": "x", "\ufb33": "y"}, true},
		{map[string]int64{"max": 1<<53 - 1, "min": -(1<<53 - 1), "zero": 0}, true},
		{many, true},
		{map[string]string(nil), true}, {map[string]int64{}, true},
		{labels{"a": "b"}, true},
		{map[string]int64{"a": 1 << 53}, false}, {map[string]int64{"a": -1 << 53}, false}, {map[string]uint64{"a": 1 << 53}, false},
		{map[string]string{"a": "\xff"}, false}, {map[string]int64{"\xff": 1}, false},
	} {
		got, ok := direct(nil, x.v)
		if ok != x.ok {
			t.Errorf("%v: printed %v, want %v", x.v, ok, x.ok)
		}
		if want, err := marshal(x.v); ok && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("got %s, want %s, %v", got, want, err)
		}
	}
}

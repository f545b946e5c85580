package canon

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/internal/sample"
)

type named string

func (n named) MarshalText() ([]byte, error) { return []byte("<" + string(n) + ">"), nil }

type loose struct{ raw string }

func (l loose) MarshalJSON() ([]byte, error) { return []byte(l.raw), nil }

type always int

func (always) IsZero() bool { return true }

type wide struct {
	example
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

// TestMarshalKinds fixes the bytes of each kind of value, and the reason for which
// one is refused. FuzzMarshal compares them with those of encoding/json.
func TestMarshalKinds(t *testing.T) {
	n := named("x")
	deep := any("end")
	for range 1001 {
		deep = []any{deep}
	}
	for _, c := range []struct {
		name string
		in   any
		want string // or the reason code
	}{
		{"nil", nil, `null`},
		{"string", "a\u2028\"\\\x00\x1f\b😀</", `"a` + "\u2028" + `\"\\\u0000\u001f\b😀</"`},
		{"not UTF-8", "a\xff", "json_syntax: invalid UTF-8"},
		{"not UTF-8 in a raw message", json.RawMessage("\"\xff\""), "json_syntax: invalid UTF-8"},
		{"not UTF-8 in two names", map[string]int{"\xff": 1, "\xfe": 2}, "json_syntax: invalid UTF-8"},
		{"not UTF-8 in a text", named("\xff"), "json_syntax: invalid UTF-8"},
		{"lone surrogate in a raw message", json.RawMessage(`"\ud800"`), "json_syntax: invalid surrogate"},
		{"ints", []int64{0, -1, 1 << 52, 1<<53 - 1, -(1<<53 - 1), 1 << 53, -(1 << 53)},
			`[0,-1,4503599627370496,9007199254740991,-9007199254740991,9007199254740992,-9007199254740992]`},
		{"int not exact", int64(1<<53 + 1), "json_syntax: a double does not hold"},
		{"int below not exact", -int64(1<<53 + 1), "json_syntax: a double does not hold"},
		{"uint beyond", uint64(math.MaxUint64), "json_syntax: a double does not hold"},
		{"floats", []float64{0, math.Copysign(0, -1), 1e21, 1e-7, 0.1, 1 << 53, 1e300, 5e-324},
			`[0,0,1e+21,1e-7,0.1,9007199254740992,1e+300,5e-324]`},
		{"NaN", math.NaN(), "internal"},
		{"infinite", math.Inf(-1), "internal"},
		{"no JSON", func() {}, "internal"},
		{"digest", []Digest{{}, Sum(nil)}, `["","sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]`},
		{"bytes", [][]byte{nil, {}, {1, 2, 3, 255}}, `[null,"","AQID/w=="]`},
		{"array of bytes", [3]uint8{1, 2, 3}, `[1,2,3]`},
		{"duration", time.Minute, `60000000000`},
		{"time", time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC), `"2026-01-02T03:04:05.0000006Z"`},
		{"nothing", struct {
			A []int
			B map[string]int
			C *int
			D any
			E json.RawMessage
		}{}, `{"A":null,"B":null,"C":null,"D":null,"E":null}`},
		{"nothing, left out", struct {
			A []int          `json:",omitempty"`
			B map[string]int `json:",omitempty"`
			C *int           `json:",omitempty"`
			D any            `json:",omitempty"`
			E int            `json:",omitempty"`
			F bool           `json:",omitempty"`
			G string         `json:",omitempty"`
			H Digest         `json:",omitzero"`
			I time.Time      `json:",omitzero"`
			J always         `json:",omitzero"`
		}{A: []int{}, J: 7}, `{}`},
		{"something that is not left out", struct {
			A []int             `json:",omitempty"`
			E int               `json:",omitempty"`
			F bool              `json:",omitempty"`
			L []int             `json:",omitzero"`
			M *string           `json:",omitempty"`
			N struct{ A []int } `json:",omitempty"`
		}{[]int{0}, -1, true, []int{}, new(string), struct{ A []int }{}}, `{"A":[0],"E":-1,"F":true,"L":[],"M":"","N":{"A":null}}`},
		{"map", map[string]any{"\ufb33": 1, "😀": nil, "a": []any{true, "x", 1.5}, "": map[string]int{}},
			`{"":{},"a":[true,"x",1.5],"😀":null,"` + "\ufb33" + `":1}`},
		{"names with escapes", map[string]int{"\"": 1, "\\": 2, "a": 3, "!": 4, "\n": 5, "#": 6}, `{"\n":5,"!":4,"\"":1,"#":6,"\\":2,"a":3}`},
		{"map by text", map[named]int{"a": 1}, `{"<a>":1}`},
		{"map by number", map[int]int{2: 1, 10: 2}, `{"10":2,"2":1}`},
		{"text", struct {
			T named
			P *named
			Q *named
		}{n, &n, nil}, `{"P":"<x>","Q":null,"T":"<x>"}`},
		{"marshaler", loose{` { "b" : 1.0, "a": "\u0041\/", "c": [ ] } `}, `{"a":"A/","b":1,"c":[]}`},
		{"marshaler without output", loose{``}, "internal"},
		{"marshaler with two values", loose{`1 2`}, "internal"},
		{"raw", json.RawMessage(`{"b":0,"a":{"d":[1,-2,"\u001f\u000a"],"c":{}}}`), `{"a":{"c":{},"d":[1,-2,"\u001f\n"]},"b":0}`},
		{"raw empty", json.RawMessage{}, "internal"},
		{"raw, name twice", json.RawMessage(`{"a":1,"a":2}`), "json_syntax"},
		{"raw, name twice by escape", json.RawMessage(`{"a":1,"\u0061":2}`), "json_syntax"},
		{"raw, numbers", json.RawMessage(`[1.50,-0,-0.0,1E3,1e21,100000000000000000000,1234567890123456]`), `[1.5,0,0,1000,1e+21,100000000000000000000,1234567890123456]`},
		{"raw, not exact", json.RawMessage(`[9007199254740993]`), "json_syntax: a double does not hold"},
		{"raw, beyond", json.RawMessage(`1e400`), "json_syntax: a double does not hold"},
		{"raw, leading zero", json.RawMessage(`01`), "internal"},
		{"raw, cut", json.RawMessage(`{"a":`), "internal"},
		{"a thousand deep", deep.([]any)[0], strings.Repeat("[", 1000) + `"end"` + strings.Repeat("]", 1000)},
		{"too deep", deep, "json_syntax"},
		{"embedded", struct {
			Base
			A string `json:"a"`
		}{Base{"x"}, "y"}, `{"a":"y","from_base":"x"}`},
		{"name twice", struct {
			Base
			A string `json:"from_base"`
		}{Base{"x"}, "y"}, `{"from_base":"y"}`},
		{"embedded pointer", struct{ *Base }{&Base{"x"}}, `{"from_base":"x"}`},
		{"everything", &wide{example: example{Name: "n", Any: []any{"x"}, Map: map[string]string{"k": "v"}, Skip: "hidden"}, Raw: json.RawMessage(`[1]`),
			Text: "t", Plain2: map[string]any{"z": 1, "b": nil}},
			`{"Plain":false,"any":["x"],"b":0,"bytes":null,"count":0,"d":"","deep":null,"float":0,"from_base":"","map":{"k":"v"},"name":"n",` +
				`"pair":[0,0],"plain2":{"b":null,"z":1},"ptext":null,"ptr":null,"raw":[1],"text":"<t>","uint":0}`},
	} {
		got, err := Marshal(c.in)
		reason := fault.ReasonOf(err)
		want, text, _ := strings.Cut(c.want, ": ") // of one reason there are several
		if err == nil && string(got) != c.want || err != nil && (reason != want || !strings.Contains(err.Error(), text)) {
			t.Errorf("%s: got %s, %v, want %s", c.name, got, err, c.want)
		}
		if err != nil && (fault.KindOf(err) == fault.Internal) != (reason == "internal") {
			t.Errorf("%s: kind %v, %s", c.name, fault.KindOf(err), reason)
		}
	}
	loop := map[string]any{}
	loop["x"] = loop
	if _, err := Marshal(loop); err == nil {
		t.Error("a value that contains itself was printed")
	}
}

// FuzzMarshal: Marshal prints what encoding/json prints, in canonical form, of values that
// encoding/json has read and of raw messages. If it refuses, encoding/json does too, or the
// printed text has no canonical form.
func FuzzMarshal(f *testing.F) {
	seeds(f)
	f.Add([]byte(`{"name":"\u0000","any":{"\ufb33":[1.5,-0]},"raw":{"b":1},"bytes":"AQI=","mapped":{"a":1},"float":1e-7}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var w wide
		var anything any
		values := []any{json.RawMessage(in), loose{string(in)}, in}
		if json.Unmarshal(in, &anything) == nil {
			values = append(values, anything)
		}
		if json.Unmarshal(in, &w) == nil {
			values = append(values, w, &w, w.example, w.Plain2)
		}
		for _, v := range values {
			var printed bytes.Buffer
			e := json.NewEncoder(&printed)
			e.SetEscapeHTML(false)
			var want []byte
			werr := e.Encode(v)
			if werr == nil {
				want, werr = Canonical(printed.Bytes())
			}
			got, err := Marshal(v)
			if (err == nil) != (werr == nil) || !bytes.Equal(got, want) {
				t.Fatalf("%T: got %s, %v, want %s, %v", v, got, err, want, werr)
			}
			if err == nil {
				if err := Check(got); err != nil {
					t.Fatalf("%T: %s: %v", v, got, err)
				}
			}
		}
	})
}

// TestArrangeManyNumbers: the work for numbers that have another spelling grows with the text. If
// those of one spelling moved the text behind them, the whole would take a quarter of an hour.
func TestArrangeManyNumbers(t *testing.T) {
	n := sample.Of(1<<17, 1<<20) // of each spelling
	text := []byte("[" + strings.Repeat("1e0,-0,1e20,-1.5,", n) + `"1e0"]`)
	want := "[" + strings.Repeat("1,0,100000000000000000000,-1.5,", n) + `"1e0"]`
	if got, err := arrange(text); err != nil || string(got) != want {
		t.Errorf("%d times four numbers: %d bytes, %v; want %d", n, len(got), err, len(want))
	}
}

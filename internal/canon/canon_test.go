package canon

import (
	"bytes"
	"encoding/json"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"palyra/internal/fault"
)

// TestRFCExample is RFC 8785 §3.2.2 and §3.2.4: input, and output as bytes.
func TestRFCExample(t *testing.T) {
	in := `{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}`
	want := `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],` +
		`"string":"€$\u000f\nA'B\"\\\\\"/"}`
	got, err := Canonical([]byte(in))
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}

// TestRFCSorting is RFC 8785 §3.2.3.
func TestRFCSorting(t *testing.T) {
	in := `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",` +
		`"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`
	want := []string{"Carriage Return", "One", "Control", "Latin Small Letter O With Diaeresis", "Euro Sign",
		"Emoji: Grinning Face", "Hebrew Letter Dalet With Dagesh"}
	b, err := Canonical([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	d := json.NewDecoder(bytes.NewReader(b))
	for i := 0; d.More() || i == 0; i++ {
		tok, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := tok.(string); ok && i%2 == 0 {
			got = append(got, s)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestRFCNumbers is RFC 8785 appendix B.
func TestRFCNumbers(t *testing.T) {
	for _, c := range []struct {
		bits uint64
		want string
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		f := math.Float64frombits(c.bits)
		if got, err := Marshal(f); err != nil || string(got) != c.want {
			t.Errorf("Marshal(%016x) = %s, %v, want %s", c.bits, got, err, c.want)
		}
		if err := Check([]byte(c.want)); err != nil {
			t.Errorf("Check(%s) = %v", c.want, err)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := Marshal(f); err == nil {
			t.Errorf("Marshal(%v) passed", f)
		}
	}
}

func TestMarshal(t *testing.T) {
	for _, c := range []struct {
		name string
		in   any
		want string // "" means refused
	}{
		{"members sorted, html kept", struct {
			B string `json:"b"`
			A []int  `json:"a"`
		}{"<&>\u2028", nil}, "{\"a\":null,\"b\":\"<&>\u2028\"}"},
		{"nested map", map[string]any{"b": map[string]int{"y": 1, "x": 2}, "a": []any{}}, `{"a":[],"b":{"x":2,"y":1}}`},
		{"controls", "\x00\x1f\x7f\b\t\n\f\r", `"\u0000\u001f` + "\x7f" + `\b\t\n\f\r"`},
		{"replacement character itself", "\ufffd", "\"\ufffd\""},
		{"invalid UTF-8", "a\xffb", ""},
		{"invalid UTF-8 in a name", map[string]int{"\xff": 1}, ""},
		{"raw replacement escape", json.RawMessage(`"\ufffd"`), "\"\ufffd\""},
		{"largest exact", uint64(1 << 53), "9007199254740992"},
		{"not exact", uint64(1<<53 + 1), ""},
		{"exact but printed as another", uint64(1 << 63), ""},
		{"smallest int64", int64(math.MinInt64), ""},
		{"digest", struct{ D Digest }{Sum(nil)},
			`{"D":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`},
	} {
		got, err := Marshal(c.in)
		if string(got) != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: got %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}

type inside struct {
	Deep []int `json:"deep"`
}

type example struct {
	inside
	Name  string            `json:"name"`
	Count int64             `json:"count"`
	Ptr   *inside           `json:"ptr"`
	Map   map[string]string `json:"map"`
	Pair  [2]int            `json:"pair"`
	D     Digest            `json:"d"`
	Any   any               `json:"any"`
	Skip  string            `json:"-"`
	Plain bool
}

func TestDecode(t *testing.T) {
	deep := strings.Repeat("[", 33) + strings.Repeat("]", 33)
	for _, c := range []struct{ name, in, reason string }{
		{"everything", `{"name":"n","count":7,"ptr":{"deep":[1]},"map":{"k":"v"},"pair":[1,2],"d":"","any":{"x":[null]},"Plain":true,"deep":null}`, ""},
		{"empty object", ` { } `, ""},
		{"nils", `{"ptr":null,"map":null,"any":null}`, ""},
		{"unknown member", `{"nam":"n"}`, "invalid_input: unknown member"},
		{"unknown member below", `{"ptr":{"x":1}}`, "invalid_input: unknown member"},
		{"other case", `{"Name":"n"}`, "invalid_input: unknown member"},
		{"folded case", `{"plain":true}`, "invalid_input: unknown member"},
		{"hidden field", `{"Skip":"x"}`, "invalid_input: unknown member"},
		{"dash field", `{"-":"x"}`, "invalid_input: unknown member"},
		{"duplicate", `{"name":"a","name":"b"}`, "json_syntax: twice"},
		{"duplicate by escape", `{"name":"a","n\u0061me":"b"}`, "json_syntax: twice"},
		{"duplicate in any", `{"any":{"a":1,"a":1}}`, "json_syntax: twice"},
		{"null string", `{"name":null}`, "invalid_input"},
		{"null digest", `{"d":null}`, "invalid_input"},
		{"null document", `null`, "invalid_input"},
		{"null in array", `{"deep":[null]}`, "invalid_input"},
		{"short pair", `{"pair":[1]}`, "invalid_input"},
		{"long pair", `{"pair":[1,2,3]}`, "invalid_input"},
		{"wrong type", `{"name":1}`, "invalid_input"},
		{"string for number", `{"count":"1"}`, "invalid_input"},
		{"fraction for integer", `{"count":1.5}`, "invalid_input"},
		{"array for object", `[]`, "invalid_input"},
		{"bad digest", `{"d":"sha256:00"}`, "invalid_input"},
		{"digest number", `{"d":1}`, "invalid_input"},
		{"trailing value", `{} {}`, "json_syntax: data after the value"},
		{"trailing text", `{}x`, "json_syntax: data after the value"},
		{"empty", ``, "json_syntax"},
		{"space", ` `, "json_syntax"},
		{"byte order mark", "\ufeff{}", "json_syntax"},
		{"comment", `{/**/}`, "json_syntax"},
		{"comma at end", `{"name":"n",}`, "json_syntax"},
		{"array comma at end", `{"deep":[1,]}`, "json_syntax"},
		{"single quotes", `{'name':'n'}`, "json_syntax"},
		{"unclosed", `{"name":"n"`, "json_syntax"},
		{"unclosed string", `{"name":"n`, "json_syntax"},
		{"unclosed escape", `{"name":"\`, "json_syntax"},
		{"unclosed hex", `{"name":"\u00`, "json_syntax"},
		{"bad hex", `{"name":"\u00g0"}`, "json_syntax"},
		{"unknown escape", `{"name":"\x41"}`, "json_syntax"},
		{"raw control", "{\"name\":\"a\nb\"}", "json_syntax"},
		{"leading zero", `{"count":01}`, "json_syntax"},
		{"plus", `{"count":+1}`, "json_syntax"},
		{"no fraction", `{"any":1.}`, "json_syntax"},
		{"no exponent", `{"any":1e}`, "json_syntax"},
		{"bare minus", `{"any":-}`, "json_syntax"},
		{"hex number", `{"any":0x10}`, "json_syntax"},
		{"nan", `{"any":NaN}`, "json_syntax"},
		{"half a word", `{"any":tru}`, "json_syntax"},
		{"huge number", `{"any":1e400}`, "json_syntax: a double does not hold"},
		{"not exact", `{"count":9007199254740993}`, "json_syntax: a double does not hold"},
		{"invalid UTF-8", "{\"name\":\"\xff\"}", "json_syntax: string is not UTF-8"},
		{"invalid UTF-8 after escape", "{\"name\":\"\\n\xff\"}", "json_syntax: string is not UTF-8"},
		{"overlong UTF-8", "{\"name\":\"\xc0\xaf\"}", "json_syntax: string is not UTF-8"},
		{"encoded surrogate", "{\"name\":\"\xed\xa0\x80\"}", "json_syntax: string is not UTF-8"},
		{"lone high", `{"name":"\ud800"}`, "json_syntax: string is not UTF-8"},
		{"lone low", `{"name":"\udc00"}`, "json_syntax: string is not UTF-8"},
		{"high high", `{"name":"\ud800\ud800"}`, "json_syntax: string is not UTF-8"},
		{"replacement escape is fine", `{"name":"\ufffd"}`, ""},
		{"deep", `{"any":` + deep + `}`, "json_syntax: nesting beyond"},
		{"large", `{"name":"` + strings.Repeat("x", 4096) + `"}`, "json_too_large: limit 2100"},
		{"as many values as may be", `{"any":[` + strings.Repeat("0,", 1021) + `0]}`, ""},
		{"one more", `{"any":[` + strings.Repeat("0,", 1022) + `0]}`, "json_too_large: more than 1024 values"},
	} {
		var s example
		err := Decode([]byte(c.in), &s, Limits{Bytes: 2100})
		reason, text, _ := strings.Cut(c.reason, ": ") // of one reason there are several
		if fault.ReasonOf(err) != reason || (err == nil) != (reason == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v (%s), want %q", c.name, err, fault.ReasonOf(err), c.reason)
		}
		if err != nil && fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: kind %v", c.name, fault.KindOf(err))
		}
	}
}

// TestDecodeMemory: what a text costs in memory is bounded by its length, whatever it is
// made of. A slice of structures took 75 times as much, a tree of maps 47 times as much
// for good.
func TestDecodeMemory(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name, text string
		into       any
	}{
		{"structures", "[" + strings.Repeat("{},", size/3-1) + "{}]", new([]struct {
			A string
			B []byte
		})},
		{"strings", "[" + strings.Repeat(`"",`, size/3-1) + `""]`, new([]string)},
		{"maps", "[" + strings.Repeat(`{"":0},`, size/7-1) + "{}]", new(any)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := Decode([]byte(c.text), c.into, Limits{})
		runtime.ReadMemStats(&after)
		if fault.ReasonOf(err) != "json_too_large" {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 4*size {
			t.Errorf("%s: %d KiB for a text of %d", c.name, n>>10, len(c.text)>>10)
		}
	}
}

func TestDecodeDoesNotQuoteValues(t *testing.T) {
	var s example
	err := Decode([]byte(`{"count":"hunter2"}`), &s, Limits{})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		in     string
		reason string
	}{
		{`{"a":1,"b":[true,null]}`, ""},
		{`{"b":1,"a":2}`, "json_syntax: not in canonical form"},
		{`{"a": 1}`, "json_syntax: not in canonical form"},
		{`1.0`, "json_syntax: not in canonical form"},
		{`-0`, "json_syntax: not in canonical form"},
		{`1E3`, "json_syntax: not in canonical form"},
		{`"\u0041"`, "json_syntax: not in canonical form"},
		{`"\/"`, "json_syntax: not in canonical form"},
		{`"\u000A"`, "json_syntax: not in canonical form"},
		{"1\n", "json_syntax: not in canonical form"},
		{`{"a":1,"a":1}`, "json_syntax"},
	} {
		reason, text, _ := strings.Cut(c.reason, ": ")
		if err := Check([]byte(c.in)); fault.ReasonOf(err) != reason || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("Check(%s): got %v, want %q", c.in, err, c.reason)
		}
	}
}

func seeds(f *testing.F) {
	for _, s := range []string{`{}`, `[]`, `null`, `"\ud83d\ude00\u0080\ufb33"`, `{"\ufb33":1,"😀":2,"a":{"b":[-0,1e-7,5e-324]}}`,
		`[1e21,1E-6,123456789012345670000,9007199254740993]`, `{"a":1,"a":2}`, `"\ufffd"`, ` [ true , false ] `, "\"\xff\"", `{"deep":[[[[]]]]}`} {
		f.Add([]byte(s))
	}
}

// FuzzCanonical: what parses prints to something that parses to the same, that
// is a fixed point, and that encoding/json reads as the same value.
func FuzzCanonical(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := Canonical(in)
		if err != nil {
			return
		}
		if !json.Valid(in) {
			t.Fatalf("accepted %q, encoding/json does not", in)
		}
		again, err := Canonical(got)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("not idempotent: %q then %q, %v", got, again, err)
		}
		if err := Check(got); err != nil {
			t.Fatalf("Check(%q) = %v", got, err)
		}
		var a, b any
		if json.Unmarshal(in, &a) != nil || json.Unmarshal(got, &b) != nil {
			t.Fatalf("encoding/json reads only one of %q and %q", in, got)
		}
		ja, _ := json.Marshal(a)
		jb, _ := json.Marshal(b)
		// Minus zero is the one number that canonical form does not keep.
		if fixed := strings.ReplaceAll(string(ja), "-0", "0"); string(ja) != string(jb) && fixed != strings.ReplaceAll(string(jb), "-0", "0") {
			t.Fatalf("values differ: %s and %s", ja, jb)
		}
		m, err := Marshal(b)
		if err != nil || !bytes.Equal(m, got) {
			t.Fatalf("Marshal of the value is %q, %v, want %q", m, err, got)
		}
	})
}

// FuzzDecode: what Decode takes, encoding/json takes with the same result, and
// printing it again loses nothing that was said.
func FuzzDecode(f *testing.F) {
	seeds(f)
	f.Add([]byte(`{"name":"n","count":7,"ptr":{"deep":[1]},"map":{"k":"v"},"pair":[1,2],"Plain":true}`))
	f.Add([]byte(`{"NAME":"n"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var s, r example
		if err := Decode(in, &s, Limits{}); err != nil {
			if fault.ReasonOf(err) == "" {
				t.Fatalf("no reason code: %v", err)
			}
			return
		}
		if err := json.Unmarshal(in, &r); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", in, err)
		}
		a, err := Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := Marshal(r)
		if !bytes.Equal(a, b) {
			t.Fatalf("%s and %s", a, b)
		}
		if len(a) > 1<<20 {
			return
		}
		var back example
		if err := Decode(a, &back, Limits{Bytes: len(a), Values: len(a)}); err != nil {
			t.Fatalf("own output %s: %v", a, err)
		}
	})
}

// FuzzOrder compares the order of names with the definition: UTF-16 code units.
func FuzzOrder(f *testing.F) {
	f.Add("\ufb33", "😀")
	f.Add("a", "ab")
	f.Add("😀a", "😁")
	f.Add("\uffff", "\U00010000")
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = strings.ToValidUTF8(a, "?"), strings.ToValidUTF8(b, "?")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		got := compareUTF16([]byte(a), []byte(b))
		if min(1, max(-1, got)) != want {
			t.Errorf("compare %q, %q: got %d, want %d", a, b, got, want)
		}
	})
}

func FuzzNumber(f *testing.F) {
	f.Add(uint64(0x44b52d02c7e14af6))
	f.Add(uint64(0x3eb0c6f7a0b5ed8c))
	f.Fuzz(func(t *testing.T, bits uint64) {
		v := math.Float64frombits(bits)
		if math.IsNaN(v) || math.IsInf(v, 0) || v == 0 {
			return
		}
		got, gerr := Marshal(v)
		want, err := json.Marshal(v)
		if gerr != nil || err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%016x: got %s, %v, encoding/json %s", bits, got, gerr, want)
		}
		var back float64
		if json.Unmarshal(got, &back) != nil || back != v {
			t.Fatalf("%016x: %s reads back as %v", bits, got, back)
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	s := example{Name: strings.Repeat("name ", 20), Map: map[string]string{"a": "b", "c": "d"}, inside: inside{Deep: []int{1, 2, 3}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Marshal(s); err != nil {
			b.Fatal(err)
		}
	}
}

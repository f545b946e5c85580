package cell

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// fillIn gives every field below v a value of its own, so that one which is
// forgotten somewhere is missed.
func fillIn(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fillIn(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillIn(v.Index(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(*n+i) & 0xff)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, k := range []string{"b", "a"} {
			e := reflect.New(v.Type().Elem()).Elem()
			fillIn(e, n)
			v.SetMapIndex(reflect.ValueOf(k), e)
		}
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-int64(*n) << 8)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n) & 0x7f)
	default:
		panic("no value for " + v.Kind().String())
	}
}

func results() []*isolate.Result {
	full := new(isolate.Result)
	n := 0
	fillIn(reflect.ValueOf(full).Elem(), &n)
	empty := &isolate.Result{Evidence: new(evidence.Evidence)}
	hollow := &isolate.Result{Outcome: isolate.Exited, Evidence: &evidence.Evidence{Degraded: []string{},
		Limits: evidence.Limits{Soft: map[string]int64{}}, Process: evidence.Process{Groups: []uint32{}}}}
	return []*isolate.Result{full, empty, hollow}
}

// What travels in the fixed layout arrives as it was, every field of it.
func TestResultTravels(t *testing.T) {
	for i, want := range results() {
		b, call := appendCell(nil, want.Evidence, nil), appendCall(nil, want)
		e, err := parseCell(string(b))
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if got, err := parseCall(string(call), e); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %v\ngot  %+v\nwant %+v", i, err, got, want)
		}
		// In two parts, as of a cell that waited, it is the same.
		own, common := formOf(want.Evidence)
		form := &cellForm{own, string(common)}
		if two := appendCell(nil, nil, form); !bytes.Equal(two, b) {
			t.Errorf("%d: what a waiting cell answers is another message", i)
		}
		part := &isolate.Result{Outcome: want.Outcome, Evidence: new(evidence.Evidence)}
		*part.Evidence = *want.Evidence
		if err := form.fill(part.Evidence); err != nil || !reflect.DeepEqual(part, want) {
			t.Errorf("%d: filled in: %v, %+v", i, err, part)
		}
		for n := range b {
			if _, err := parseCell(string(b[:n])); err == nil {
				t.Fatalf("%d: the first %d of %d bytes are a cell, too", i, n, len(b))
			}
		}
		for n := range call {
			if _, err := parseCall(string(call[:n]), new(evidence.Evidence)); err == nil {
				t.Fatalf("%d: the first %d of %d bytes are a result, too", i, n, len(call))
			}
		}
		if _, err := parseCell(string(append(b, 0))); err == nil {
			t.Errorf("%d: a byte more of a cell is not noticed", i)
		}
		if _, err := parseCall(string(append(call, 0)), new(evidence.Evidence)); err == nil {
			t.Errorf("%d: a byte more is not noticed", i)
		}
	}
}

func FuzzResult(f *testing.F) {
	for _, r := range results() {
		f.Add(appendCell(nil, r.Evidence, nil), appendCall(nil, r))
	}
	f.Fuzz(func(t *testing.T, cell, call []byte) {
		e, err := parseCell(string(cell))
		if err == nil {
			if again := appendCell(nil, e, nil); !bytes.Equal(again, cell) {
				t.Errorf("read cell %q\nmade %q", cell, again)
			}
		}
		r, err := parseCall(string(call), new(evidence.Evidence))
		if err == nil {
			if again := appendCall(nil, r); !bytes.Equal(again, call) {
				t.Errorf("read %q\nmade %q", call, again)
			}
		}
	})
}

func specs() []*isolate.Spec {
	full := new(isolate.Spec)
	n := 0
	fillIn(reflect.ValueOf(full).Elem(), &n)
	full.Tier = tier.C
	plain := &isolate.Spec{Version: 1, Tier: tier.B, Argv: []string{"a\n\"\\\u2028é", "<&>", "\x7f", ""}, Env: []string{}, Cwd: "/",
		Exec: isolate.File{Path: "/usr/bin/true", Digest: canon.Sum(nil), Size: 1<<53 - 1}, Operands: []isolate.File{},
		Limits: isolate.Limits{Wall: time.Minute, Memory: 1 << 40}}
	return []*isolate.Spec{full, plain, new(isolate.Spec)}
}

// What the grant is bound to is read as encoding/json would read it.
func TestSpecTravels(t *testing.T) {
	for i, want := range specs() {
		b, err := canon.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseSpec(string(b))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %v\ngot  %+v\nwant %+v", i, err, got, want)
		}
		for n := range b {
			if _, err := parseSpec(string(b[:n])); err == nil {
				t.Fatalf("%d: the first %d of %d bytes are a spec, too", i, n, len(b))
			}
		}
	}
}

// A spec has one form.
func TestSpecRefused(t *testing.T) {
	good, err := canon.Marshal(specs()[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseSpec(string(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to string }{
		{`{"argv"`, ` {"argv"`}, {`"workspace":null}`, `"workspace":null} `}, {`"version":1`, `"version":1.0`}, {`"version":1`, `"version":01`},
		{`"version":1`, `"version":-0`}, {`"version":1`, `"version":null`}, {`"version":1`, `"Version":1`}, {`"version":1`, `"version":1,"x":2`},
		{`"env":[]`, `"env":[,]`}, {`"env":[]`, `"env":[""`}, {`"<&>"`, `"\u003c&>"`}, {`"<&>"`, "\"\xff\""}, {`"<&>"`, "\"\t\""},
		{`"tier":"b"`, `"tier":"d"`}, {`"tier":"b"`, `"tier":"B"`}, {`"size":9007199254740991`, `"size":9007199254740993`},
		{`"operands":[]`, `"network":"","operands":[]`}, {`"digest":"sha256:e3`, `"digest":"sha256:E3`}, {`"cwd":"/"`, `"cwd":null`},
		{`"stdin":""`, `"stdin":"","stdin":""`},
	} {
		bad := bytes.Replace(good, []byte(c.from), []byte(c.to), 1)
		if bytes.Equal(bad, good) {
			t.Errorf("%s is not in %s", c.from, good)
		}
		if s, err := parseSpec(string(bad)); err == nil {
			t.Errorf("with %s: %+v", c.to, s)
		}
	}
}

func FuzzSpec(f *testing.F) {
	for _, s := range specs() {
		b, err := canon.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSpec(string(b))
		var want isolate.Spec
		if err != nil {
			// What is canonical and of the type is a spec.
			if canon.Decode(b, &want, canon.Limits{}) == nil {
				if again, err := canon.Marshal(&want); err == nil && bytes.Equal(again, b) {
					t.Errorf("refused %q", b)
				}
			}
			return
		}
		if err := json.Unmarshal(b, &want); err != nil || !reflect.DeepEqual(s, &want) {
			t.Errorf("%q: %v\ngot  %+v\nwant %+v", b, err, s, &want)
		}
		if again, err := canon.Marshal(s); err != nil || !bytes.Equal(again, b) {
			t.Errorf("read %q\nmade %q, %v", b, again, err)
		}
	})
}

func FuzzRun(f *testing.F) {
	f.Add(append(appendRun(nil, opRun, 7, hasScript|hasStdin, 3, make([]byte, grantSize)), "{}"...))
	f.Add(appendRun(nil, opExplain, 1, hasSpec, 0, bytes.Repeat([]byte{1}, grantSize)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRun(b)
		if err != nil {
			return
		}
		if again := append(appendRun(nil, r.kind, r.ID, r.has, r.operands, r.grant), r.spec...); !bytes.Equal(again, b) {
			t.Errorf("read %q\nmade %q", b, again)
		}
	})
}

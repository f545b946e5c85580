package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// fillIn gives every field below v a value of its own, so that a forgotten one is missed.
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
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
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
	return []*isolate.Result{full, empty, hollow, new(isolate.Result)}
}

// TestResultTravels: every field of a Result in the fixed layout arrives unchanged.
func TestResultTravels(t *testing.T) {
	for i, want := range results() {
		b := AppendResult(nil, want)
		if got, err := ParseResult(string(b)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %v\ngot  %+v\nwant %+v", i, err, got, want)
		}
		for n := range b {
			if _, err := ParseResult(string(b[:n])); !errors.Is(err, ErrCodec) {
				t.Fatalf("%d: the first %d of %d bytes: %v", i, n, len(b), err)
			}
		}
		if _, err := ParseResult(string(append(b, 0))); !errors.Is(err, ErrCodec) {
			t.Errorf("%d: a byte more: %v", i, err)
		}
	}
}

// TestResultRefused: a value has one form.
func TestResultRefused(t *testing.T) {
	table := func(keys ...string) string {
		out := binary.LittleEndian.AppendUint32(nil, uint32(len(keys)+1))
		for _, k := range keys {
			out = append(append(binary.LittleEndian.AppendUint32(out, uint32(len(k))), k...), 1, 0, 0, 0, 0, 0, 0, 0)
		}
		return string(out)
	}
	const none, one, most = "\x00\x00\x00\x00", "\x01\x00\x00\x00", "\xff\xff\xff\xff"
	for _, c := range []struct {
		name string
		into any
		in   string
		ok   bool
	}{
		{"a table", new(map[string]int64), table("a", "b"), true},
		{"keys in another order", new(map[string]int64), table("b", "a"), false},
		{"a key twice", new(map[string]int64), table("a", "a"), false},
		{"a table of more than there is", new(map[string]int64), most, false},
		{"a truth", new(bool), "\x01\x00\x00\x00" + none, true},
		{"another truth", new(bool), "\x02\x00\x00\x00" + none, false},
		{"a small number", new(uint32), most + none, true},
		{"a number that is too large", new(uint32), none + one, false},
		{"no pointer", new(*int64), none, true},
		{"a pointer to two", new(*int64), "\x03\x00\x00\x00" + none + none + none + none, false},
		{"a list of more than there is", new([]string), most + one, false},
		{"a text of more than there is", new(string), most, false},
		{"a digest cut", new(canon.Digest), none, false},
	} {
		d := codec{in: c.in, reading: true}
		d.walk(reflect.ValueOf(c.into).Elem())
		if ok := !d.bad && d.in == ""; ok != c.ok {
			t.Errorf("%s: read %v, want %v", c.name, ok, c.ok)
		}
	}
}

// TestVersion: a type with other fields has another layout, and so another version.
func TestVersion(t *testing.T) {
	seen := make(map[string]reflect.Type)
	for _, typ := range []reflect.Type{
		reflect.TypeFor[struct{ A int }](), reflect.TypeFor[struct{ A, B int }](), reflect.TypeFor[struct{ B, A int }](),
		reflect.TypeFor[struct{ A string }](), reflect.TypeFor[struct{ A *int }](), reflect.TypeFor[struct{ A []int }](),
		reflect.TypeFor[struct{ A map[string]int }](), reflect.TypeFor[struct{ A map[string]string }](),
		reflect.TypeFor[struct{ A struct{ B int } }](), reflect.TypeFor[struct {
			A struct{}
			B int
		}](),
	} {
		l := string(layout(nil, typ))
		if other := seen[l]; other != nil {
			t.Errorf("%v and %v have the layout %s", other, typ, l)
		}
		seen[l] = typ
	}
	if v := Version(); v>>32 != protocol || uint32(v) == 0 {
		t.Errorf("version %#x", v)
	}
}

func FuzzResult(f *testing.F) {
	for _, r := range results() {
		f.Add(AppendResult(nil, r))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResult(string(b))
		if err != nil {
			return
		}
		if again := AppendResult(nil, r); !bytes.Equal(again, b) {
			t.Errorf("read %q\nmade %q", b, again)
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

// TestSpecTravels: the bytes that the grant is bound to are read as encoding/json would read
// them.
func TestSpecTravels(t *testing.T) {
	for i, want := range specs() {
		b, err := canon.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseSpec(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %v\ngot  %+v\nwant %+v", i, err, got, want)
		}
		for n := range b {
			if _, err := ParseSpec(b[:n]); err == nil {
				t.Fatalf("%d: the first %d of %d bytes are a spec, too", i, n, len(b))
			}
		}
	}
}

// TestSpecRefused: a spec has one reading. Another form of it has another digest, for which
// there is no grant.
func TestSpecRefused(t *testing.T) {
	good, err := canon.Marshal(specs()[1])
	if err != nil {
		t.Fatal(err)
	}
	want, err := ParseSpec(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to string
		reads    bool
	}{
		{`{"argv"`, ` {"argv"`, true}, {`"workspace":null}`, `"workspace":null} `, true}, {`"<&>"`, `"\u003c&>"`, true},
		{`"operands":[]`, `"network":"","operands":[]`, true}, {`"cwd":"/"`, `"cwd":"/","cwd_inode":""`, true},
		{`"version":1`, `"version":1.0`, false}, {`"version":1`, `"version":01`, false},
		{`"inodes":0`, `"inodes":-0`, true}, {`"version":1`, `"version":null`, false}, {`"version":1`, `"Version":1`, false}, {`"version":1`, `"version":1,"x":2`, false},
		{`"env":[]`, `"env":[,]`, false}, {`"env":[]`, `"env":[""`, false}, {`"<&>"`, "\"\xff\"", false}, {`"<&>"`, "\"\t\"", false},
		{`"tier":"b"`, `"tier":"d"`, false}, {`"tier":"b"`, `"tier":"B"`, false}, {`"size":9007199254740991`, `"size":9007199254740993`, false},
		{`"digest":"sha256:e3`, `"digest":"sha256:E3`, false}, {`"cwd":"/"`, `"cwd":null`, false},
		{`"stdin":""`, `"stdin":"","stdin":""`, false},
	} {
		bad := bytes.Replace(good, []byte(c.from), []byte(c.to), 1)
		if bytes.Equal(bad, good) {
			t.Errorf("%s is not in %s", c.from, good)
		}
		if s, err := ParseSpec(bad); (err == nil) != c.reads || c.reads && !reflect.DeepEqual(s, want) {
			t.Errorf("with %s: %+v, %v", c.to, s, err)
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
		s, err := ParseSpec(b)
		var want isolate.Spec
		if err != nil {
			// Canonical JSON of the type is a spec.
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
		again, err := canon.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := ParseSpec(again); err != nil || !reflect.DeepEqual(other, s) {
			t.Errorf("read %q\nmade %q, which reads %+v, %v", b, again, other, err)
		}
	})
}

func FuzzRun(f *testing.F) {
	f.Add(append(AppendRun(nil, OpRun, 7, HasScript|HasStdin, 3, make([]byte, GrantSize)), "{}"...))
	f.Add(AppendRun(nil, OpExplain, 1, HasSpec, 0, bytes.Repeat([]byte{1}, GrantSize)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRun(b)
		if err != nil {
			return
		}
		if again := append(AppendRun(nil, r.Kind, r.ID, r.Has, r.More, r.Grant), r.Spec...); !bytes.Equal(again, b) {
			t.Errorf("read %q\nmade %q", b, again)
		}
	})
}

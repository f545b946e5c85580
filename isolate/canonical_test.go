package isolate

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"palyra/internal/canon"
	"palyra/isolate/tier"
)

// same holds Canonical to canon.Marshal, errors included.
func same(t *testing.T, s *Spec) {
	t.Helper()
	got, err := s.Canonical()
	want, werr := canon.Marshal(s)
	if (err == nil) != (werr == nil) || !bytes.Equal(got, want) {
		t.Errorf("%+v:\ngot  %s, %v\nwant %s, %v", s, got, err, want, werr)
	}
}

// give sets every field below v to a value of its own, so that a field which
// Canonical forgets, or puts elsewhere, is missed.
func give(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		give(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			give(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			give(v.Index(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(*n+int64(i)) & 0xff)
		}
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(*n << 20)
	case reflect.Uint8:
		v.SetUint(uint64(tier.C))
	case reflect.Uint32:
		v.SetUint(uint64(*n))
	default:
		panic("no value for " + v.Kind().String())
	}
}

func TestCanonical(t *testing.T) {
	full := new(Spec)
	n := int64(0)
	give(reflect.ValueOf(full).Elem(), &n)
	same(t, full)
	same(t, new(Spec))
	for name, mod := range map[string]func(*Spec){
		"no arguments":    func(s *Spec) { s.Argv = []string{} },
		"no operands":     func(s *Spec) { s.Operands = []File{} },
		"a quote":         func(s *Spec) { s.Argv[1] = `say "x"` },
		"a backslash":     func(s *Spec) { s.Env[0] = `A=\n` },
		"a control":       func(s *Spec) { s.Cwd = "/a\nb" },
		"beyond ASCII":    func(s *Spec) { s.Exec.Path = "/ü/\u2028/😀" },
		"markup":          func(s *Spec) { s.Argv[0] = "<a>&</a>\x7f" },
		"not UTF-8":       func(s *Spec) { s.Workspace.Source = "/\xff" },
		"a large number":  func(s *Spec) { s.Limits.Memory = 1 << 53 },
		"a large size":    func(s *Spec) { s.Exec.Size = 1<<53 - 1 },
		"below zero":      func(s *Spec) { s.Limits.PIDs = -5 },
		"far below zero":  func(s *Spec) { s.Limits.Wall = -1 << 53 },
		"another tier":    func(s *Spec) { s.Tier = tier.Tier(9) },
		"a read-only one": func(s *Spec) { s.Workspace.ReadOnly = false },
	} {
		t.Run(name, func(t *testing.T) {
			s := new(Spec)
			n := int64(0)
			give(reflect.ValueOf(s).Elem(), &n)
			mod(s)
			same(t, s)
		})
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{}`, `{"argv":["a","\u0001"],"env":[],"tier":"c","version":1,"limits":{"cpu":9007199254740993}}`,
		`{"workspace":{"source":"/é","uid":4294967295},"operands":[{"path":"x\"y"}],"script":{"size":-1},"network":"void"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := new(Spec)
		if json.Unmarshal(b, s) == nil {
			same(t, s)
		}
	})
}

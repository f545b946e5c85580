package sys

import (
	"reflect"
	"testing"
	"unsafe"
)

// steps reads encoded steps, with addresses of strings replaced by what is there.
func stepsAt(a *Arena, at uintptr, t Tape) (out []any) {
	base := a.addr(0)
	word := func(p uintptr) uintptr { return *(*uintptr)(unsafe.Pointer(&a.mem[p-base])) }
	str := func(p uintptr) string {
		b := a.mem[p-base:]
		for n := range b {
			if b[n] == 0 {
				return string(b[:n])
			}
		}
		return "without end"
	}
	for i := range t {
		s := *(*rawStep)(unsafe.Pointer(&a.mem[int(at-base)+i*int(unsafe.Sizeof(rawStep{}))]))
		out = append(out, s.nr, s.flags, s.out, s.alt)
		for j := range s.args {
			switch {
			case j >= len(t[i].Args):
				out = append(out, s.args[j])
			case t[i].Args[j].kind == argVec:
				list := []string{}
				for p := s.args[j]; word(p) != 0; p += 8 {
					list = append(list, str(word(p)))
				}
				out = append(out, list)
			case t[i].Args[j].kind == argStr:
				out = append(out, str(s.args[j]))
			default:
				out = append(out, s.args[j])
			}
		}
	}
	return out
}

// A prepared end that was filled in is what the same tape with these values is,
// also in memory that was used before.
func TestPrepared(t *testing.T) {
	tape := func(after, fd int, argv, env []string) Tape {
		return Tape{
			{Call: "close_range", Args: []Arg{FD("after", after), Int(^uint32(0)), Int(2)}},
			{Call: "dup3", Args: []Arg{FD("stdin", fd), Int(0), Int(0)}},
			{Call: "execveat", Args: []Arg{Int(4), Str(""), Strings("argv", argv), Strings("env", env), Int(0x1000), Secret("cookie", 7)}},
		}
	}
	var m Memory
	for range 2 {
		a, err := m.NewArena(tape(1, 2, []string{"x"}, nil), false, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range a.mem[a.used:] {
			a.mem[a.used+i] = 0xff
		}
		want := tape(70, 66, []string{"a", "", "long argument"}, []string{})
		at, err := a.encode(want, 1)
		if err != nil {
			t.Fatal(err)
		}
		r, err := a.Prepare(tape(0, -1, nil, nil))
		if err != nil {
			t.Fatal(err)
		}
		if !r.Room(3, 14) || r.Room(1, len(a.mem)) {
			t.Error("the room is not what there is")
		}
		for _, err := range []error{r.FD("after", 70), r.FD("stdin", 66), r.Strings("argv", want[2].Args[2].vec), r.Strings("env", nil)} {
			if err != nil {
				t.Error(err)
			}
		}
		if r.FD("stdout", 1) == nil || r.Strings("stdin", nil) == nil {
			t.Error("a label that is not there was set")
		}
		if got, want := stepsAt(a, r.at, want), stepsAt(a, at, want); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		a.Free()
		if len(m.free) != 1 {
			t.Fatalf("%d blocks are kept, want the arena's", len(m.free))
		}
		for i, b := range m.free[0] {
			if b != 0 {
				t.Fatalf("byte %d of free memory is %d", i, b)
			}
		}
	}
}

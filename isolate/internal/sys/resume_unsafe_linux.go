package sys

import (
	"fmt"
	"unsafe"
)

// Rest is the end of a child's tape, encoded before what it is for is known: the
// numbers of its descriptors and its lists of strings are filled in by their
// labels. It is for one child.
type Rest struct {
	a    *Arena
	at   uintptr
	base int // offset of the steps in the arena's memory
	tape Tape
}

// Prepare encodes t for a child that waits in its step Park. Filled in, it is what
// Resume of the same tape with those values is; nothing else may be encoded
// meanwhile.
func (a *Arena) Prepare(t Tape) (*Rest, error) {
	if need := sizeOf(t); a.used+need > len(a.mem) {
		if err := a.grow(need); err != nil {
			return nil, err
		}
	}
	at, err := a.encode(t, a.steps+1)
	if err != nil {
		return nil, err
	}
	return &Rest{a, at, int(at - a.addr(0)), t}, nil
}

// fill sets every argument of a kind and label to v.
func (r *Rest) fill(kind argKind, label string, v uintptr) error {
	found := false
	for i := range r.tape {
		for j := range r.tape[i].Args {
			if x := &r.tape[i].Args[j]; x.kind == kind && x.label == label {
				found = true
				// In bounds: encode reserved len(r.tape) steps at base; the memory has not
				// moved, since it is not grown between Prepare and Go (see Strings).
				s := (*rawStep)(unsafe.Pointer(&r.a.mem[r.base+i*int(unsafe.Sizeof(rawStep{}))]))
				s.args[j] = v
			}
		}
	}
	if !found {
		return fmt.Errorf("tape: no argument %q", label)
	}
	return nil
}

// FD sets a descriptor.
func (r *Rest) FD(label string, n int) error { return r.fill(argFD, label, uintptr(n)) }

// Room reports whether so many strings of so many bytes in all can be set.
func (r *Rest) Room(strings, bytes int) bool {
	const piece = 16 + 15
	return r.a.used+bytes+strings*(piece+8)+4*piece <= len(r.a.mem)
}

// Strings sets a list of strings, for which there is Room.
func (r *Rest) Strings(label string, v []string) error {
	return r.fill(argVec, label, r.a.putStrings(v))
}

// Go lets the child go on. It can be called once.
func (r *Rest) Go() error { return r.a.wake(r.at) }

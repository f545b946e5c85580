package seccomp

import (
	"testing"

	"palyra/isolate/tier"
)

// TestDepth bounds what a call costs at run time, and so what installing costs:
// the longest way to a decision on the number alone.
func TestDepth(t *testing.T) {
	for _, a := range arches {
		depth(t, a, Options{Tier: tier.C, ExecCookie: 1}, 375, 20)
		// The options of sockets are tried one after the other, in cells that never wait.
		depth(t, a, Options{Tier: tier.C, ExecCookie: 1, AllowInet: true}, 445, 22)
	}
}

func depth(t *testing.T, a Arch, o Options, instructions, comparisons int) {
	m := newMachine(t, Cell(o), a)
	// The kernel makes two instructions of a jump that goes elsewhere in both cases.
	n := len(m.tracer.prog)
	for _, i := range m.tracer.prog {
		if i.Jt != 0 && i.Jf != 0 {
			n++
		}
	}
	if n > instructions {
		t.Errorf("%s, inet %t: %d instructions of the kernel's; installing costs 0.1 to 0.2 µs for each", a, o.AllowInet, n)
	}
	for nr := range uint32(600) {
		for i := range m.tracer.hit {
			m.tracer.hit[i] = 0
		}
		m.tracer.run(t, words(Data{Arch: a.Audit(), Nr: nr}))
		steps := 0
		for pc, h := range m.tracer.hit {
			if code := m.tracer.prog[pc].Code; h != 0 && (code == jgeK || code == jeqK) {
				steps++
			}
		}
		if steps > comparisons {
			t.Errorf("%s, inet %t: number %d takes %d comparisons", a, o.AllowInet, nr, steps)
		}
	}
}

package seccomp

import (
	"testing"

	"palyra/isolate/tier"
)

// TestDepth bounds what a call costs at run time, and so what installing costs:
// the longest way to a decision on the number alone.
func TestDepth(t *testing.T) {
	for _, a := range arches {
		m := newMachine(t, Cell(Options{Tier: tier.C, ExecCookie: 1, AllowInet: true}), a)
		// The kernel makes two instructions of a jump that goes elsewhere in both cases.
		n := len(m.tracer.prog)
		for _, i := range m.tracer.prog {
			if i.Jt != 0 && i.Jf != 0 {
				n++
			}
		}
		if n > 370 {
			t.Errorf("%s: %d instructions of the kernel's; installing costs 0.1 to 0.2 µs for each", a, n)
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
			if steps > 20 {
				t.Errorf("%s: number %d takes %d comparisons", a, nr, steps)
			}
		}
	}
}

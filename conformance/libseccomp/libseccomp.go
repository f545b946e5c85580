// Package libseccomp compiles the rules of palyra/isolate/native/seccomp with
// libseccomp, which is not ours, so that a test can hold the two programs
// against each other. It is a module of its own because it needs cgo.
//
//	cd conformance/libseccomp && go test -v ./...
//
// libseccomp has no "first clause that matches", and takes an argument once per rule. So a
// policy becomes several of its filters: one for the first clause of every rule, one for
// the second, ..., and one for the rest; the first that has an opinion decides. libseccomp
// chooses the number of a name, how to mask and compare an argument, and the answer to a
// foreign architecture and an unknown number.
//
// The library is loaded when the test starts (libseccomp.so.2; Debian's package
// libseccomp2), no header is needed.
//
// The test doesn't protect against a wrong rule: both sides compile the same policy.
package libseccomp

import "palyra/isolate/native/seccomp"

// data is struct seccomp_data in 32-bit words as both architectures lay it out.
type data [16]uint32

func words(arch, nr uint32, args [6]uint64) (w data) {
	w[0], w[1] = nr, arch
	w[2], w[3] = 0xdeadbeef, 0xfeedface // instruction pointer
	for i, a := range args {
		w[4+2*i], w[5+2*i] = uint32(a), uint32(a>>32)
	}
	return w
}

// How an instruction has been gone through.
const (
	reached = 1 << iota
	taken
	notTaken
)

// machine interprets classic BPF as the kernel does for seccomp: words of
// seccomp_data only, no packet.
type machine struct {
	prog []seccomp.Instr
	hit  []uint8
}

func newMachine(prog []seccomp.Instr) *machine {
	return &machine{prog, make([]uint8, len(prog))}
}

// run returns what the program returns. It panics for an instruction that
// neither compiler writes and for a program without an end.
func (m *machine) run(w *data) seccomp.Action {
	var acc uint32
	for pc := 0; pc < len(m.prog); pc++ {
		i := &m.prog[pc]
		m.hit[pc] |= reached
		var yes bool
		switch i.Code {
		case 0x20: // LD|W|ABS
			acc = w[i.K/4]
			continue
		case 0x54: // ALU|AND|K
			acc &= i.K
			continue
		case 0x05: // JMP|JA
			pc += int(i.K)
			continue
		case 0x06: // RET|K
			return seccomp.Action(i.K)
		case 0x15: // JMP|JEQ|K
			yes = acc == i.K
		case 0x25: // JMP|JGT|K
			yes = acc > i.K
		case 0x35: // JMP|JGE|K
			yes = acc >= i.K
		case 0x45: // JMP|JSET|K
			yes = acc&i.K != 0
		default:
			panic("libseccomp: unknown BPF instruction")
		}
		if yes {
			m.hit[pc] |= taken
			pc += int(i.Jt)
		} else {
			m.hit[pc] |= notTaken
			pc += int(i.Jf)
		}
	}
	panic("libseccomp: BPF program has no end")
}

// uncovered returns the instructions that never ran and the jumps that always
// went one way.
func (m *machine) uncovered() (pcs []int) {
	for pc, h := range m.hit {
		switch m.prog[pc].Code {
		case 0x15, 0x25, 0x35, 0x45:
			if h != reached|taken|notTaken {
				pcs = append(pcs, pc)
			}
		default:
			if h != reached {
				pcs = append(pcs, pc)
			}
		}
	}
	return pcs
}

package seccomp

import (
	"encoding/binary"
	"slices"
	"testing"

	"palyra/isolate/tier"
)

// FuzzCall compares the cell's programs with the rule table on any call.
func FuzzCall(f *testing.F) {
	for _, a := range arches {
		for _, name := range []string{"clone", "ioctl", "execveat", "socket", "openat", "prctl", "mknodat", "read", "mount"} {
			nr, _ := a.Number(name)
			f.Add(a.Audit(), nr, uint64(1), uint64(1<<32|0x5412), uint64(0o100), uint64(0o4755), uint64(0), uint64(1))
			f.Add(uint32(0x40000003), nr|x32Bit, uint64(0x10000000), uint64(0), uint64(0), uint64(0), uint64(0), ^uint64(0))
		}
	}
	var ms []*machine
	for _, p := range variants() {
		for _, a := range arches {
			ms = append(ms, newMachine(f, p, a))
		}
	}
	f.Fuzz(func(t *testing.T, arch, nr uint32, a0, a1, a2, a3, a4, a5 uint64) {
		for _, m := range ms {
			m.check(t, Data{arch, nr, [6]uint64{a0, a1, a2, a3, a4, a5}})
		}
	})
}

// FuzzCompile builds a policy from the input, compiles it and compares the
// program with the rules over the policy's own corpus.
func FuzzCompile(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01\x02\x00\x00\x00\x00\x04\x00\x03\x01\x00\x05\x00\x00\x00\x06\x00\x00\x00"))
	f.Add([]byte("a policy is only bytes, and bytes make a policy: whatever they say, the program says it, too"))
	f.Add(slices.Repeat([]byte{1, 0, 255, 7, 3, 9, 128, 64}, 60))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2000 {
			return
		}
		p := fromBytes(b)
		for _, a := range arches {
			if _, err := Compile(p, a); err != nil {
				return // refused with a reason; TestCompileRefuses has those
			}
			m := newMachine(t, p, a)
			corpus(p, a, func(d Data) { m.check(t, d) })
		}
	})
}

// fromBytes makes an arbitrary policy, mostly a well-formed one.
func fromBytes(b []byte) Policy {
	next := func() byte {
		if len(b) == 0 {
			return 0
		}
		v := b[0]
		b = b[1:]
		return v
	}
	word := func() uint64 {
		var w [8]byte
		n := copy(w[:1+next()%4], b)
		b = b[n:]
		return binary.LittleEndian.Uint64(w[:])
	}
	actions := []Action{Allow, KillProcess, Errno(EPERM), Errno(ENOSYS), Errno(7)}
	names := sortedNames()
	p := Policy{Name: "fuzz", Default: Errno(EPERM), Unknown: Errno(ENOSYS)}
	used := make(map[string]bool)
	for len(b) > 0 && len(p.Rules) < 60 {
		r := Rule{Else: actions[next()%5], Why: "fuzz"}
		for range 1 + next()%3 {
			if n := names[(int(next())|int(next())<<8)%len(names)]; !used[n] {
				used[n] = true
				r.Calls = append(r.Calls, n)
			}
		}
		for range next() % 4 {
			c := Clause{Then: actions[next()%5]}
			for range 1 + next()%3 {
				w := Cond{Arg: int(next() % 6)}
				switch next() % 4 {
				case 0:
					w.Op, w.Mask = AnyBit, uint32(word())
				case 1:
					w.Wide, w.Values = true, []uint64{word() << (next() % 64)}
				case 2:
					w.Mask = uint32(word()) | 1
					fallthrough
				default:
					for range 1 + next()%9 {
						v := word() & 0xffffffff
						if w.Mask != 0 {
							v &= uint64(w.Mask)
						}
						w.Values = append(w.Values, v)
					}
				}
				c.When = append(c.When, w)
			}
			r.Clauses = append(r.Clauses, c)
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}

func sortedNames() []string {
	var names []string
	for n := range AMD64.numbers() {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func BenchmarkCompile(b *testing.B) {
	p := Cell(Options{Tier: tier.C, ExecCookie: 7, AllowInet: true})
	for b.Loop() {
		if _, err := Compile(p, AMD64); err != nil {
			b.Fatal(err)
		}
	}
}

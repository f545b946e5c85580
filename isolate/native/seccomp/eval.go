package seccomp

// Data is what the kernel shows to a filter, struct seccomp_data without the
// instruction pointer.
type Data struct {
	Arch uint32
	Nr   uint32
	Args [6]uint64
}

// Eval says what p does with d on architecture a, by reading the rules one
// after the other. It is the plain meaning of a Policy, which the compiled
// program is tested against.
func (p Policy) Eval(a Arch, d Data) Action {
	if a.Audit() == 0 || d.Arch != a.Audit() {
		return KillProcess
	}
	if a == AMD64 && d.Nr >= x32Bit {
		return KillProcess
	}
	name := ""
	for n, nr := range a.numbers() {
		if nr == d.Nr {
			name = n
		}
	}
	if name == "" {
		return p.Unknown
	}
	for _, r := range p.Rules {
		for _, c := range r.Calls {
			if c == name {
				return r.eval(d.Args)
			}
		}
	}
	return p.Default
}

func (r Rule) eval(args [6]uint64) Action {
next:
	for _, c := range r.Clauses {
		for _, w := range c.When {
			if !w.holds(args) {
				continue next
			}
		}
		return c.Then
	}
	return r.Else
}

func (c Cond) holds(args [6]uint64) bool {
	v := args[c.Arg]
	if !c.Wide {
		v &= 0xffffffff
		if c.Mask != 0 {
			v &= uint64(c.Mask)
		}
	}
	if c.Op == AnyBit {
		return v != 0
	}
	for _, w := range c.Values {
		if v == w {
			return true
		}
	}
	return false
}

package seccomp

// Data is what the kernel shows to a filter, struct seccomp_data without the
// instruction pointer.
type Data struct {
	Arch uint32
	Nr   uint32
	Args [6]uint64
}

// meaning returns what p does with a call on architecture a, by reading the
// rules: the plain meaning of a Policy, which the compiled program is tested
// against.
func (p Policy) meaning(a Arch) func(Data) Action {
	names := make(map[uint32]string)
	for name, nr := range a.numbers() {
		names[nr] = name
	}
	rules := make(map[string]Rule)
	for _, r := range p.Rules {
		for _, name := range r.Calls {
			rules[name] = r
		}
	}
	return func(d Data) Action {
		if a.Audit() == 0 || d.Arch != a.Audit() {
			return KillProcess
		}
		if a == AMD64 && d.Nr >= x32Bit {
			return KillProcess
		}
		name, ok := names[d.Nr]
		if !ok {
			return p.Unknown
		}
		r, ok := rules[name]
		if !ok {
			return p.Default
		}
		return r.eval(d.Args)
	}
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

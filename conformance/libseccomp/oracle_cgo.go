//go:build linux && cgo

package libseccomp

import (
	"fmt"
	"maps"
	"slices"

	"palyra/isolate/native/seccomp"
)

// noOpinion is what a filter returns that leaves the decision to the next one:
// SECCOMP_RET_TRACE with a number of ours. No policy has it.
const noOpinion seccomp.Action = 0x7ff07a1a

// oracle is a policy as libseccomp understands it.
type oracle struct {
	filters []*machine
	skipped map[uint32]string // numbers of calls that this libseccomp has no name for
}

// newOracle compiles p for an architecture with libseccomp.
func newOracle(p seccomp.Policy, a seccomp.Arch) (*oracle, error) {
	o := &oracle{skipped: make(map[uint32]string)}
	clauses := 0
	for _, r := range p.Rules {
		clauses = max(clauses, len(r.Clauses))
	}
	for i := range clauses {
		err := o.compile(p, a, noOpinion, func(f filter, r *seccomp.Rule, nr int) error {
			if i >= len(r.Clauses) {
				return nil
			}
			for _, cs := range alternatives(r.Clauses[i].When) {
				if err := f.add(r.Clauses[i].Then, nr, cs); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	err := o.compile(p, a, p.Unknown, func(f filter, r *seccomp.Rule, nr int) error {
		if r.Else == p.Unknown { // libseccomp refuses a rule that says what the default says
			return nil
		}
		return f.add(r.Else, nr, nil)
	})
	return o, err
}

func (o *oracle) compile(p seccomp.Policy, a seccomp.Arch, deflt seccomp.Action, add func(filter, *seccomp.Rule, int) error) error {
	f, err := newFilter(deflt, a.Audit())
	if err != nil {
		return err
	}
	defer f.close()
	for i := range p.Rules {
		for _, name := range p.Rules[i].Calls {
			want, ok := a.Number(name)
			if !ok {
				continue
			}
			nr := numberOf(native(), name)
			if got := numberOf(a.Audit(), name); nr == -1 || got == -1 {
				o.skipped[want] = name
				continue
			} else if got != int(want) {
				return fmt.Errorf("%s: number of %q is %d for us and %d for libseccomp", a, name, want, got)
			}
			if err := add(f, &p.Rules[i], nr); err != nil {
				return fmt.Errorf("%s: %q: %w", a, name, err)
			}
		}
	}
	prog, err := f.program()
	if err == nil {
		o.filters = append(o.filters, newMachine(prog))
	}
	return err
}

func (o *oracle) run(w *data) seccomp.Action {
	for _, m := range o.filters {
		if a := m.run(w); a != noOpinion {
			return a
		}
	}
	return noOpinion
}

// alternatives writes conditions that must all hold as lists of comparisons of
// which one must hold, each argument at most once in a list.
func alternatives(conds []seccomp.Cond) [][]compare {
	lists := []map[int]compare{{}}
	for _, c := range conds {
		var next []map[int]compare
		for _, l := range lists {
			for _, one := range single(c) {
				have, ok := l[one.arg]
				if ok && (have.value^one.value)&have.mask&one.mask != 0 {
					continue // contradicts
				}
				m := maps.Clone(l)
				m[one.arg] = compare{one.arg, have.mask | one.mask, have.value | one.value}
				next = append(next, m)
			}
		}
		lists = next
	}
	var out [][]compare
	for _, l := range lists {
		var cs []compare
		for _, arg := range slices.Sorted(maps.Keys(l)) {
			cs = append(cs, l[arg])
		}
		out = append(out, cs)
	}
	return out
}

// single writes one condition as comparisons of which one must hold.
func single(c seccomp.Cond) (out []compare) {
	mask := uint64(c.Mask)
	switch {
	case c.Wide:
		mask = ^uint64(0)
	case c.Mask == 0:
		mask = 0xffffffff
	}
	if c.Op == seccomp.AnyBit {
		for b := range 32 {
			if mask>>b&1 != 0 {
				out = append(out, compare{c.Arg, 1 << b, 1 << b})
			}
		}
		return out
	}
	for _, v := range c.Values {
		out = append(out, compare{c.Arg, mask, v})
	}
	return out
}

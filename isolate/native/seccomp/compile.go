package seccomp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Compile translates p into the program for a.
//
// The program is a balanced binary search over system call numbers, because
// the kernel runs a filter once for every number when it is installed (to find
// the calls that are always allowed, kernel 5.11) and a linear list makes that
// more expensive than the launch of a process. It ends in short lists, because the
// kernel also compiles it each time, and a list takes fewer instructions. Rules with
// conditions are blocks of comparisons at the leaves; every path ends in a RET.
func Compile(p Policy, a Arch) (Filter, error) {
	rules, err := p.check(a)
	if err != nil {
		return Filter{}, fmt.Errorf("compile seccomp policy %q for %s: %w", p.Name, a, err)
	}
	g := &generator{rets: make(map[Action]int), memo: make(map[node]int)}
	entry := g.search(p.segments(a, rules, g))
	entry = g.load(offNr, entry)
	entry = g.jump(jeqK, a.Audit(), entry, g.ret(KillProcess))
	g.load(offArch, entry)
	if g.err != nil {
		return Filter{}, fmt.Errorf("compile seccomp policy %q for %s: %w", p.Name, a, g.err)
	}
	if len(g.code) > maxInstrs {
		return Filter{}, fmt.Errorf("compile seccomp policy %q for %s: %d instructions, limit is %d", p.Name, a, len(g.code), maxInstrs)
	}
	slices.Reverse(g.code)
	return Filter{g.code}, nil
}

// check refuses a policy that could mean something else than it says, and
// returns the rules by system call number.
func (p Policy) check(a Arch) (map[uint32]*Rule, error) {
	if a.Audit() == 0 {
		return nil, errors.New("no such architecture")
	}
	if p.Default == 0 || p.Unknown == 0 {
		return nil, errors.New("default action is not set")
	}
	byNr := make(map[uint32]*Rule)
	seen := make(map[string]bool)
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Why == "" || r.Else == 0 {
			return nil, fmt.Errorf("rule %d (%q): no reason or no action", i, r.Calls)
		}
		if err := r.checkClauses(); err != nil {
			return nil, fmt.Errorf("rule %d (%q): %w", i, r.Calls, err)
		}
		for _, name := range r.Calls {
			if seen[name] {
				return nil, fmt.Errorf("system call %q is named twice", name)
			}
			seen[name] = true
			_, amd := AMD64.Number(name)
			_, arm := ARM64.Number(name)
			if !amd && !arm {
				return nil, fmt.Errorf("no architecture has a system call %q", name)
			}
			if nr, ok := a.Number(name); ok {
				byNr[nr] = r
			}
		}
	}
	return byNr, nil
}

func (r *Rule) checkClauses() error {
	for _, c := range r.Clauses {
		if c.Then == 0 || len(c.When) == 0 {
			return errors.New("clause without action or condition")
		}
		for _, w := range c.When {
			switch {
			case w.Arg < 0 || w.Arg > 5:
				return fmt.Errorf("argument %d", w.Arg)
			case w.Op == In && len(w.Values) == 0, w.Op == AnyBit && (len(w.Values) != 0 || w.Mask == 0), w.Op > AnyBit:
				return fmt.Errorf("argument %d: malformed comparison", w.Arg)
			case w.Wide && (len(w.Values) != 1 || w.Mask != 0 || w.Op != In):
				return fmt.Errorf("argument %d: wide comparison takes one value and no mask", w.Arg)
			}
			for _, v := range w.Values {
				if !w.Wide && (v > 0xffffffff || w.Mask != 0 && v&^uint64(w.Mask) != 0) {
					return fmt.Errorf("argument %d: value %#x can never match", w.Arg, v)
				}
			}
		}
	}
	return nil
}

// segments cuts the range of numbers into pieces with the same meaning.
func (p Policy) segments(a Arch, rules map[uint32]*Rule, g *generator) []segment {
	var nrs []uint32
	for _, nr := range a.numbers() {
		nrs = append(nrs, nr)
	}
	slices.Sort(nrs)
	var segs []segment
	add := func(lo uint32, key any, gen func() int) {
		if n := len(segs); n > 0 && segs[n-1].key == key {
			return
		}
		segs = append(segs, segment{lo, key, gen})
	}
	unknown := func() int { return g.ret(p.Unknown) }
	next := uint32(0) // first number not yet covered
	for _, nr := range nrs {
		if nr > next {
			add(next, p.Unknown, unknown)
		}
		switch r := rules[nr]; {
		case r == nil:
			add(nr, p.Default, func() int { return g.ret(p.Default) })
		case len(r.Clauses) == 0:
			add(nr, r.Else, func() int { return g.ret(r.Else) })
		default:
			add(nr, r, func() int { return g.block(r) })
		}
		next = nr + 1
	}
	add(next, p.Unknown, unknown)
	if a == AMD64 {
		add(x32Bit, KillProcess, func() int { return g.ret(KillProcess) })
	}
	return segs
}

// block generates the comparisons of one rule and returns its entry. Clauses in
// a row that look at nothing but the same bits of the same argument become one
// search.
func (g *generator) block(r *Rule) int {
	next := g.ret(r.Else)
	for end := len(r.Clauses); end > 0; {
		start := end - 1
		for start > 0 && sameWord(r.Clauses[start-1], r.Clauses[start]) {
			start--
		}
		if start < end-1 {
			next = g.choose(r.Clauses[start:end], next)
		} else {
			t := g.ret(r.Clauses[start].Then)
			for _, w := range slices.Backward(r.Clauses[start].When) {
				t = g.cond(w, t, next)
			}
			next = t
		}
		end = start
	}
	return next
}

// sameWord reports whether both clauses only compare the same word.
func sameWord(a, b Clause) bool {
	if len(a.When) != 1 || len(b.When) != 1 {
		return false
	}
	x, y := a.When[0], b.When[0]
	return x.Op == In && y.Op == In && !x.Wide && !y.Wide && x.Arg == y.Arg && x.Mask == y.Mask
}

// choose generates one search for clauses of the same word.
func (g *generator) choose(cs []Clause, next int) int {
	actions := make(map[uint32]Action)
	for _, c := range slices.Backward(cs) { // the first clause with a value wins
		for _, v := range c.When[0].Values {
			actions[uint32(v)] = c.Then
		}
	}
	return g.word(cs[0].When[0], g.search(set(actions, g.ret, func() int { return next })))
}

func (g *generator) cond(c Cond, yes, no int) int {
	lo := uint32(offArgs + 8*c.Arg)
	if c.Wide {
		t := g.load(lo+4, g.jump(jeqK, uint32(c.Values[0]>>32), yes, no))
		return g.load(lo, g.jump(jeqK, uint32(c.Values[0]), t, no))
	}
	if c.Op == AnyBit {
		return g.load(lo, g.jump(jsetK, c.Mask, yes, no))
	}
	actions := make(map[uint32]Action, len(c.Values))
	for _, v := range c.Values {
		actions[uint32(v)] = Allow // any one action: all lead to yes
	}
	return g.word(c, g.search(set(actions, func(Action) int { return yes }, func() int { return no })))
}

// word loads what c compares, then goes to next.
func (g *generator) word(c Cond, next int) int {
	if c.Mask != 0 {
		next = g.and(c.Mask, next)
	}
	return g.load(uint32(offArgs+8*c.Arg), next)
}

// set cuts the 32-bit numbers into those with an action and the rest.
func set(actions map[uint32]Action, yes func(Action) int, no func() int) []segment {
	var segs []segment
	add := func(lo uint32, key any, gen func() int) {
		if n := len(segs); n == 0 || segs[n-1].key != key {
			segs = append(segs, segment{lo, key, gen})
		}
	}
	next := uint64(0)
	for _, v := range slices.Sorted(maps.Keys(actions)) {
		if uint64(v) > next {
			add(uint32(next), nil, no)
		}
		a := actions[v]
		add(v, a, func() int { return yes(a) })
		next = uint64(v) + 1
	}
	if next <= 0xffffffff {
		add(uint32(next), nil, no)
	}
	return segs
}

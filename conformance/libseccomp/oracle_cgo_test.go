//go:build linux && cgo

package libseccomp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

func needLibrary(t *testing.T) {
	t.Helper()
	if err := load(); err != nil {
		t.Skipf("needs libseccomp: %v", err)
	}
}

var arches = []seccomp.Arch{seccomp.AMD64, seccomp.ARM64}

// variants are all policies that Cell can give, up to the cookie.
func variants() (ps []seccomp.Policy) {
	for i, o := range []seccomp.Options{
		{Tier: tier.B}, {Tier: tier.B, AllowPathMetadata: true}, {Tier: tier.B, ReadOnly: true},
		{Tier: tier.C}, {Tier: tier.C, AllowInet: true}, {Tier: tier.C, AllowUnix: true},
		{Tier: tier.C, AllowInet: true, AllowUnix: true}, {Tier: tier.C, NoPair: true}, {Tier: tier.C, AllowUncounted: true}, {Tier: tier.C, AllowShared: true, AllowIPC: true},
		{Tier: tier.B, AllowShared: true}, {Tier: tier.C, AllowUncounted: true, AllowShared: true, AllowIPC: true},
	} {
		for _, cookie := range []uint64{0, 0xfedcba9876543210} {
			o.ExecCookie = cookie
			p := seccomp.Cell(o)
			p.Name = fmt.Sprintf("%s-%d-%x", p.Name, i, cookie)
			ps = append(ps, p)
		}
	}
	return ps
}

// knownDifference is where libseccomp means something else on purpose: to it the number -1
// is a call that a tracer cancelled, not one of the x32 table, and gets what an unknown
// number gets. We kill it: no tracer attaches to a cell.
func knownDifference(a seccomp.Arch, nr uint32) bool {
	return a == seccomp.AMD64 && nr == 0xffffffff
}

// judge runs both over the calls of a generator and returns how many there were.
func judge(t *testing.T, p seccomp.Policy, a seccomp.Arch, covered bool) int {
	t.Helper()
	f, err := seccomp.Compile(p, a)
	if err != nil {
		t.Fatal(err)
	}
	ours := newMachine(f.Instrs())
	theirs, err := newOracle(p, a)
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	n, different := 0, 0
	generate(p, a, func(arch, nr uint32, args [6]uint64) {
		w := words(arch, nr, args)
		got := ours.run(&w)
		n++
		if arch == a.Audit() && (theirs.skipped[nr] != "" || knownDifference(a, nr)) {
			return
		}
		if want := theirs.run(&w); got != want && different < 10 {
			different++
			t.Errorf("%s %s: arch %#x, call %d, arguments %#x: ours %s, libseccomp's %s", p.Name, a, arch, nr, args, got, want)
		}
	})
	if pcs := ours.uncovered(); covered && len(pcs) > 0 {
		t.Errorf("%s %s: %d of %d instructions not covered, the first is %d", p.Name, a, len(pcs), f.Len(), pcs[0])
	}
	return n
}

// generate calls f with every number and its neighbours, with other
// architectures, and, for rules with conditions, with arguments at which the
// rule may change its mind: alone, together, and with what must not matter set.
func generate(p seccomp.Policy, a seccomp.Arch, f func(arch, nr uint32, args [6]uint64)) {
	rng := rand.New(rand.NewPCG(6, 6))
	odd := [6]uint64{rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64()}
	for _, arch := range []uint32{0, 0x40000003, 0xc000003e, 0xc00000b7, 0x40000028, 0xffffffff} {
		for nr := range uint32(1100) {
			for _, high := range []uint32{0, 0x3ffffc00, 0x40000000, 0x7ffffc00, 0x80000000, 0xfffffbb5} {
				if high == 0 || nr%7 == 0 || nr > 1000 {
					f(arch, high+nr, [6]uint64{})
					f(arch, high+nr, odd)
				}
			}
		}
	}
	for _, r := range p.Rules {
		if len(r.Clauses) == 0 {
			continue
		}
		values := turningPoints(r)
		for _, name := range r.Calls {
			nr, ok := a.Number(name)
			if !ok {
				continue
			}
			for arg := range values {
				for _, v := range values[arg] {
					for range 24 {
						var args [6]uint64
						for j := range args {
							args[j] = values[j][rng.IntN(len(values[j]))]
						}
						args[arg] = v
						f(a.Audit(), nr, args)
					}
				}
			}
		}
	}
}

func turningPoints(r seccomp.Rule) (out [6][]uint64) {
	for arg := range out {
		vs := map[uint64]bool{0: true, 0xffffffff: true, ^uint64(0): true, 1 << 32: true}
		for _, c := range r.Clauses {
			for _, w := range c.When {
				if w.Arg != arg {
					continue
				}
				for b := range 32 {
					if w.Mask>>b&1 != 0 {
						vs[1<<b], vs[1<<b|1<<45], vs[uint64(^w.Mask)|1<<b] = true, true, true
					}
				}
				for _, v := range w.Values {
					for _, x := range []uint64{v, v + 1, v - 1, v | 1<<32, v ^ 1<<63, v ^ 1<<31, v | uint64(^w.Mask), v &^ 0xffffffff} {
						vs[x] = true
					}
				}
			}
		}
		out[arg] = slices.Sorted(maps.Keys(vs))
	}
	return out
}

// TestCell compares every policy of a cell, on both architectures, with
// libseccomp's programs for the same rules, and demands that the comparison
// goes through every instruction and both ways of every jump of ours.
func TestCell(t *testing.T) {
	needLibrary(t)
	total := 0
	for _, p := range variants() {
		for _, a := range arches {
			total += judge(t, p, a, true)
		}
	}
	for _, a := range arches {
		o, err := newOracle(variants()[0], a)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: libseccomp does not know %d of our calls: %q", a, len(o.skipped), slices.Sorted(maps.Values(o.skipped)))
		if len(o.skipped) > 60 {
			t.Errorf("%s: libseccomp does not know %d of our calls", a, len(o.skipped))
		}
	}
	t.Logf("%d policies on %d architectures: %d calls judged alike, every instruction and branch gone through", len(variants()), len(arches), total)
}

// TestRandom does so for policies that no one would write.
func TestRandom(t *testing.T) {
	needLibrary(t)
	var names []string
	for _, r := range seccomp.Cell(seccomp.Options{Tier: tier.C}).Rules {
		names = append(names, r.Calls...)
	}
	slices.Sort(names)
	total, policies := 0, 6
	for seed := range policies {
		p := random(rand.New(rand.NewPCG(uint64(seed), 1)), names)
		p.Name = fmt.Sprint("random-", seed)
		for _, a := range arches {
			total += judge(t, p, a, false) // some of their clauses cannot be reached
		}
	}
	t.Logf("%d random policies on %d architectures: %d calls judged alike", policies, len(arches), total)
}

func random(rng *rand.Rand, names []string) seccomp.Policy {
	actions := []seccomp.Action{seccomp.Allow, seccomp.KillProcess, seccomp.Errno(1), seccomp.Errno(38), seccomp.Errno(7)}
	pick := func() seccomp.Action { return actions[rng.IntN(len(actions))] }
	word := func() uint64 { return uint64(rng.Uint32()) >> rng.IntN(32) }
	p := seccomp.Policy{Default: seccomp.Errno(1), Unknown: seccomp.Errno(38)}
	names = slices.Clone(names)
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	// libseccomp knows no rule for the rest, so the rest is one rule.
	for len(names) > 0 {
		n := 1 + rng.IntN(4)
		last := len(p.Rules) == 50 || n >= len(names)
		if last {
			n = len(names)
		}
		r := seccomp.Rule{Calls: names[:n], Else: pick(), Why: "random"}
		names = names[n:]
		for range rng.IntN(4) {
			if last {
				break
			}
			c := seccomp.Clause{Then: pick()}
			for range 1 + rng.IntN(3) {
				w := seccomp.Cond{Arg: rng.IntN(6)}
				switch rng.IntN(4) {
				case 0:
					w.Op, w.Mask = seccomp.AnyBit, uint32(word())|1<<rng.IntN(32)
				case 1:
					w.Wide, w.Values = true, []uint64{word() << rng.IntN(40)}
				case 2:
					w.Mask = uint32(word()) | 1
					fallthrough
				default:
					for range 1 + rng.IntN(4) {
						v := word()
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

// TestNotices has the comparison find a wrong rule: without that, agreement
// would mean nothing.
func TestNotices(t *testing.T) {
	needLibrary(t)
	p := seccomp.Cell(seccomp.Options{Tier: tier.C, ExecCookie: 0xfedcba9876543210})
	for _, a := range arches {
		theirs, err := newOracle(p, a)
		if err != nil {
			t.Fatal(err)
		}
		wrong := p
		wrong.Rules = slices.Clone(p.Rules)
		for i, r := range wrong.Rules {
			if len(r.Clauses) == 0 {
				continue
			}
			wrong.Rules[i].Clauses = r.Clauses[1:]
			f, err := seccomp.Compile(wrong, a)
			if err != nil {
				t.Fatal(err)
			}
			ours, found := newMachine(f.Instrs()), false
			generate(p, a, func(arch, nr uint32, args [6]uint64) {
				w := words(arch, nr, args)
				found = found || theirs.skipped[nr] == "" && !knownDifference(a, nr) && ours.run(&w) != theirs.run(&w)
			})
			known := slices.ContainsFunc(r.Calls, func(name string) bool { nr, ok := a.Number(name); return ok && theirs.skipped[nr] == "" })
			if !found && known {
				t.Errorf("%s: the rule for %q without its first clause passes", a, r.Calls)
			}
			wrong.Rules[i] = r
		}
	}
}

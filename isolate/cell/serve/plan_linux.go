package serve

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

func (s *server) explain(r *wire.Request, fds []int) (*wire.Plan, error) {
	spec, _, f, err := s.admit("explain in palyra-cell", r, fds)
	if err != nil {
		return nil, err
	}
	x := &run{s: s, at: s.launch, spec: spec, files: f, status: -1, gate: -1, mounts: -1, deadline: time.Now().Add(layerPatience)}
	defer x.clean()
	if err := x.prepare(); err != nil {
		return nil, err
	}
	p := &wire.Plan{Tier: s.tier.String(), Executor: x.ev.Executor, Limits: x.spec.Limits, Landlock: x.ev.Landlock,
		Cgroup: x.ev.Cgroup, Degraded: x.ev.Degraded, Namespaces: []string{}, Template: []string{},
		Tape: wire.PlanTape{Digest: x.tape.Digest()}, Seccomp: s.planFilter(x)}
	p.Tape.Steps = planSteps(nil, x.tape, 0)
	if p.Warm, err = s.planWarm(x); err != nil {
		return nil, err
	}
	if s.tier != tier.C {
		return p, nil
	}
	if p.Network, p.Namespaces, err = s.planNetwork(x); err != nil {
		return nil, err
	}
	// Ask the thread that clones, since a cell starts from its mounts.
	var mounts evidence.Mounts
	s.launch.run(func(t *thread) {
		if err = t.enter(); err == nil {
			mounts, err = evidence.ReadMounts("/proc/self/task", sys.ThreadID())
		}
	})
	p.Template = mounts.Table
	return p, err
}

// planWarm returns the tape of a cell that waits for calls like x, followed by the steps that
// it gets with x, or nil if there are no such cells. A call whose arguments don't fit such a
// cell (waiting.fits) is built for itself all the same.
func (s *server) planWarm(x *run) (*wire.PlanTape, error) {
	k, ok := s.kindOf(x.spec)
	if !ok || !x.executable() {
		return nil, nil
	}
	w := s.ahead(k, network{})
	defer w.release()
	if err := w.prepare(); err != nil {
		return nil, err
	}
	fds := x.fds
	fds.Status, fds.Gate = -1, -1
	rest := native.Rest(&native.Cell{Spec: x.spec, FDs: fds, Cookie: s.cookie})
	return &wire.PlanTape{Digest: sys.DigestAfter(w.tape.Text(), rest),
		Steps: planSteps(planSteps(nil, w.tape, 0), rest, 1)}, nil
}

// planNetwork returns the namespaces that a cell of x would have for itself: its clone's, and
// the user namespace that the tape makes.
func (s *server) planNetwork(x *run) (string, []string, error) {
	var err error
	at := s.launch
	if isolate.AllowsHostNetwork(x.spec.Network) {
		if at, err = s.host(); err != nil {
			return "", nil, err
		}
	}
	at.run(func(t *thread) {
		var back func() error
		if back, err = x.network(t); err == nil {
			t.lost = back()
		}
	})
	if err != nil {
		return "", nil, err
	}
	kinds := append(native.Kinds(x.ns), "user")
	if x.spec.Network == isolate.NetworkEgress {
		kinds = append(kinds, "net")
	}
	slices.Sort(kinds)
	return x.ev.Network.Mode, kinds, nil
}

// planSteps numbers the steps of a tape as sys.Tape.Lines lists them.
func planSteps(out []wire.PlanStep, t sys.Tape, depth int) []wire.PlanStep {
	for _, s := range t {
		out = append(out, wire.PlanStep{Number: len(out) + 1, Depth: depth, Call: s.String(), Why: s.Why})
		out = planSteps(out, s.Child, depth+1)
	}
	return out
}

// planFilter describes the filter without its cookie. Here, as for the program, the rule that
// the cookie opens denies.
func (s *server) planFilter(x *run) wire.PlanFilter {
	p := seccomp.Cell(s.filterOptions(s.filterKind(x.spec)))
	out := wire.PlanFilter{Policy: x.filter.policy, Name: p.Name, Instructions: x.filter.filter.Len(),
		Default: p.Default.String(), Unknown: p.Unknown.String(), Rules: []wire.PlanRule{}}
	for _, r := range p.Rules {
		var does []string
		for _, c := range r.Clauses {
			does = append(does, c.Then.String()+" if "+conditions(c.When))
		}
		out.Rules = append(out.Rules, wire.PlanRule{Calls: r.Calls, Does: append(does, r.Else.String()), Why: r.Why})
	}
	return out
}

// conditions prints a clause's comparisons; argN is the argument, from 0.
func conditions(conds []seccomp.Cond) string {
	var out []string
	for _, c := range conds {
		text := fmt.Sprintf("arg%d", c.Arg)
		if c.Mask != 0 {
			text += fmt.Sprintf("&%#x", c.Mask)
		}
		if c.Op == seccomp.AnyBit {
			out = append(out, text+" != 0")
			continue
		}
		var values []string
		for _, v := range c.Values {
			values = append(values, fmt.Sprintf("%#x", v))
		}
		out = append(out, text+" in {"+strings.Join(values, " ")+"}")
	}
	return strings.Join(out, " and ")
}

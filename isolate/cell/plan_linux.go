package cell

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/native/seccomp"
	"palyra/isolate/tier"
)

// Explain returns what Run would do with s and f. Nothing runs, so it takes no
// grant. Where the call would be refused for want of a control, so is this.
func (c *Client) Explain(ctx context.Context, s *isolate.Spec, f *isolate.Files) (*Plan, error) {
	_, q, err := c.ask(opExplain, answerGrace, s, make([]byte, grantSize), f)
	if err != nil {
		return nil, err
	}
	r, err := c.later(ctx, "explain in palyra-cell", q)
	if err != nil {
		return nil, err
	}
	return r.Plan, r.Error.err()
}

// explain prepares a call, says what it made and lets go of it.
func (s *server) explain(r *request, fds []int) (*Plan, error) {
	spec, _, f, err := s.admit("explain in palyra-cell", r, fds)
	if err != nil {
		return nil, err
	}
	x := &run{s: s, at: s.launch, spec: spec, files: f, status: -1, gate: -1, mounts: -1}
	defer x.release()
	if err := x.prepare(); err != nil {
		return nil, err
	}
	p := &Plan{Tier: s.tier.String(), Executor: x.ev.Executor, Limits: x.spec.Limits, Landlock: x.ev.Landlock,
		Cgroup: x.ev.Cgroup, Degraded: x.ev.Degraded, Namespaces: []string{}, Template: []string{},
		Tape: PlanTape{Digest: x.tape.Digest()}, Seccomp: s.planFilter(x)}
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
	// Of the thread that clones, since its mounts are what a cell starts from.
	var mounts evidence.Mounts
	s.launch.run(func(t *thread) {
		if err = t.enter(); err == nil {
			mounts, err = evidence.ReadMounts("/proc/self/task", sys.ThreadID())
		}
	})
	p.Template = mounts.Table
	return p, err
}

// planWarm is the tape of a cell that waits for calls like x, and the rest that it
// gets with x, or nil if there are no such cells. One that its arguments do not
// fit into (waiting.fits) is built for the call all the same.
func (s *server) planWarm(x *run) (*PlanTape, error) {
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
	lines := append(w.tape.Lines(), rest.Lines()...)
	return &PlanTape{Digest: canon.Sum([]byte(strings.Join(lines, "\n") + "\n")),
		Steps: planSteps(planSteps(nil, w.tape, 0), rest, 1)}, nil
}

// planNetwork says which namespaces a cell of x would have for itself: those of
// its clone and the user namespace, which the tape makes.
func (s *server) planNetwork(x *run) (string, []string, error) {
	var err error
	s.launch.run(func(t *thread) {
		var back func() error
		if back, err = x.network(t); err == nil {
			t.lost = back()
		}
	})
	if err != nil {
		return "", nil, err
	}
	kinds := append(native.Kinds(x.ns), "user")
	slices.Sort(kinds)
	return x.ev.Network.Mode, kinds, nil
}

// planSteps numbers the steps of a tape as sys.Tape.Lines lists them.
func planSteps(out []PlanStep, t sys.Tape, depth int) []PlanStep {
	for _, s := range t {
		out = append(out, PlanStep{Number: len(out) + 1, Depth: depth, Call: s.String(), Why: s.Why})
		out = planSteps(out, s.Child, depth+1)
	}
	return out
}

// planFilter is the filter without its cookie: the rule that the cookie opens
// denies here, as it does to the program.
func (s *server) planFilter(x *run) PlanFilter {
	p := seccomp.Cell(s.filterOptions(s.filterKind(x.spec)))
	out := PlanFilter{Policy: x.filter.policy, Name: p.Name, Instructions: x.filter.filter.Len(),
		Default: p.Default.String(), Unknown: p.Unknown.String(), Rules: []PlanRule{}}
	for _, r := range p.Rules {
		var does []string
		for _, c := range r.Clauses {
			does = append(does, c.Then.String()+" if "+conditions(c.When))
		}
		out.Rules = append(out.Rules, PlanRule{Calls: r.Calls, Does: append(does, r.Else.String()), Why: r.Why})
	}
	return out
}

// conditions prints what a clause compares; argN is the argument, from 0.
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

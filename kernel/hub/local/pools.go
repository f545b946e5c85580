package local

import "palyra/internal/budget"

// pools are the budgets of what the hub itself does for a request. Each is for
// the process, with a share for each principal; the kernel has those of calls.
type pools struct {
	reads   *budget.Pool // bytes of lists and look-ups, until their answers are written
	policy  *budget.Pool // sets of policies that are checked, tested or compared
	explain *budget.Pool // questions of how a call would be decided
	probe   *budget.Pool // examinations of the host
}

func newPools() *pools {
	return &pools{
		reads:   budget.New(budget.Limits{Name: "reads", Total: 80 << 20, Each: 24 << 20, Reserve: 16 << 20, Line: 256}),
		policy:  budget.New(budget.Limits{Name: "policy", Total: 2, Each: 1, Reserve: 1, Line: 8}),
		explain: budget.New(budget.Limits{Name: "explain", Total: 5, Each: 2, Reserve: 1, Line: 64}),
		probe:   budget.New(budget.Limits{Name: "probe", Total: 1, Line: 64}),
	}
}

func (p *pools) all() []*budget.Pool { return []*budget.Pool{p.reads, p.policy, p.explain, p.probe} }

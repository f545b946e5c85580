package kernel

import (
	"context"
	"time"

	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/kernel/internal/planted"
)

// What a call left in its workspace is looked at when it is over, and listed in
// its receipt. Nothing is removed or changed: the workspace is its owner's.

// lookBefore notes what is in a workspace that the program may write to. The
// private one, which goes with the call, is nobody's to find anything in.
func (c *call) lookBefore() {
	if w := c.s.capsule.Workspace; w != nil && !w.ReadOnly {
		c.look = planted.Begin(c.s.place.workspace.File())
	}
}

// cut is how long the workspace of a call that was cancelled or stopped is looked
// at: somebody waits for its end, who has seen danger.
const cut = 5 * time.Millisecond

// lookAfter lists what the program planted.
func (c *call) lookAfter(ctx context.Context) {
	if c.look == nil {
		return
	}
	r := c.out.Result
	dead := r != nil && r.Evidence != nil && r.Evidence.Exit.TreeDead
	c.out.Planted = c.look.End(dead, lookLimits(ctx))
}

func lookLimits(ctx context.Context) planted.Limits {
	if ctx.Err() != nil {
		return planted.Limits{Time: cut}
	}
	return planted.Limits{}
}

// withoutList returns p without the list of what was planted, if that is what
// it was too long for. What a program leaves must not keep its result from
// being recorded.
func withoutList(p receipt.Predicate, err error) (receipt.Predicate, bool) {
	if fault.ReasonOf(err) != "statement_size" || p.Planted == nil || len(p.Planted.Found) == 0 {
		return p, false
	}
	p.Planted = p.Planted.Counts()
	return p, true
}

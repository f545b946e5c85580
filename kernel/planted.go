package kernel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"palyra/crypt/receipt"
	"palyra/crypt/scrub"
	"palyra/isolate/evidence"
	"palyra/kernel/internal/pin"
	"palyra/kernel/internal/planted"
)

// After a call the gate lists the traps in its workspace in the receipt. It removes and changes
// nothing: the workspace is its owner's.

// lookBefore notes the content of a workspace that the program may write to. A private one goes
// with the call, so no later reader can find anything in it, and what a layer holds is marked
// where it's shown (isolate/stage).
func (c *call) lookBefore() {
	w := c.s.capsule.Workspace
	switch {
	case w == nil || w.ReadOnly:
	case !w.Staged:
		c.look = planted.Begin(c.s.place.workspace.File())
		c.kept = c.keeping(c.look, c.s.place.workspace)
	case c.trip != nil:
		if upper, err := pin.Dir(c.s.layer.Upper()); err == nil {
			c.kept = c.keeping(planted.Begin(upper.File()), upper)
		}
	}
}

// cut bounds the look at the workspace of a call that was cancelled or stopped: the caller is
// waiting for its end, perhaps because of danger.
const cut = 5 * time.Millisecond

func (c *call) lookAfter(ctx context.Context) {
	r := c.out.Result
	dead := r != nil && r.Evidence != nil && r.Evidence.Exit.TreeDead
	if c.look != nil {
		c.out.Planted = c.look.End(dead, lookLimits(ctx))
		c.unname(c.out.Planted)
	}
	c.readChanges(ctx, dead)
}

// maxUnnamed bounds a name that had values of secrets, in bytes.
const maxUnnamed = 4096

// unname removes values of secrets from the names of what was found, which the program chose and
// receipts keep.
func (c *call) unname(p *receipt.Planted) {
	if p == nil {
		return
	}
	values := c.k.values(&c.who.Principal)
	for i := range p.Found {
		f := &p.Found[i]
		f.Path = c.trip.look(evidence.LeakPlanted, unnamed(values, f.Path))
		f.Target = c.trip.look(evidence.LeakPlanted, unnamed(values, f.Target))
	}
	slices.SortFunc(p.Found, receipt.Finding.Compare)
	p.Found = slices.CompactFunc(p.Found, func(f, g receipt.Finding) bool { return f.Compare(g) == 0 })
}

// unnamed returns a name that a program chose without values of secrets.
func unnamed(values scrub.Values, name string) string {
	s := values.String(name)
	if s != name && len(s) > maxUnnamed { // a mask is longer than most values
		s = strings.ToValidUTF8(s[:maxUnnamed], "")
	}
	return s
}

func lookLimits(ctx context.Context) planted.Limits {
	if ctx.Err() != nil {
		return planted.Limits{Time: cut}
	}
	return planted.Limits{}
}

// withoutList returns p without its list of planted files, if the list made it too large. A
// program's leftovers must not keep its result from being recorded.
func withoutList(p receipt.Predicate, err error) (receipt.Predicate, bool) {
	if !errors.Is(err, receipt.ErrTooLarge) || p.Planted == nil || len(p.Planted.Found) == 0 {
		return p, false
	}
	p.Planted = p.Planted.Counts()
	return p, true
}

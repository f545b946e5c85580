package kernel

import (
	"context"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/isolate"
)

// handing is a call on its way to a palyra-cell.
type handing struct {
	lane     *lane
	grant    grant.Grant // for the lane's runner
	set      *policy.Set // that decided
	decision authz.Decision
}

// again hands a call to another palyra-cell, once, when the first one was gone
// before it took it: a palyra-cell that died while it waited, and was not yet seen
// to have died. That it never took the call is what isolate/cell says with this error
// and no Result; without that the call may have run, and is not made again.
//
// It is the same call, with the intent that it has, the same descriptors, of which
// nothing was read, and what is left of its time. It waits no longer than a grant lives:
// nothing runs on a permission that is older. died is the error that it has if
// there is no other palyra-cell in time, or the policies have changed.
func (c *call) again(ctx context.Context, h *handing, spec *isolate.Spec, files *isolate.Files, deadline time.Time, died error) (*isolate.Result, error) {
	k := c.k
	k.dismiss(h.lane)
	next := k.lane(h.lane.tier)
	late := time.NewTimer(min(time.Until(deadline), grantTTL))
	defer late.Stop()
	select {
	case <-next.ready:
	case <-ctx.Done():
		return nil, died
	case <-late.C:
		return nil, died
	}
	left := *spec
	left.Limits.Wall = time.Until(deadline)
	if next.err != nil || ctx.Err() != nil || left.Limits.Wall <= 0 || k.PolicySet() != h.set {
		return nil, died
	}
	if err := c.s.recheck(); err != nil {
		return nil, err
	}
	digest, err := left.Digest()
	if err != nil {
		return nil, err
	}
	g, err := authz.New(h.set, next.key).Regrant(h.decision, c.s.id, digest, grantTTL)
	if err != nil {
		return nil, err
	}
	h.lane, h.grant = next, g
	return next.runner.Run(ctx, g, &left, files)
}

package main

import (
	"context"
	"errors"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/httpapi"
)

// guard stands before the hub while palyrad must not take new calls: when it drains, when
// the disk is nearly full, and in safe mode, in which only changes that take authority away
// are allowed. It never refuses reading.
type guard struct {
	httpapi.Hub
	refuse func() error // why no call is taken, nil if one is
	safe   bool
}

var _ hub.Hub = (*guard)(nil)

// Do implements hub.Hub. It always takes a no to a request for approval.
func (g *guard) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	var err error
	switch op {
	case hub.CreateSession.Operation, hub.StartRun.Operation, hub.Call.Operation:
		err = g.refuse()
	case hub.ResolveApproval.Operation:
		if in.(hub.Resolution).Answer.Approve {
			err = g.whenSafe()
		}
	case hub.CreateToken.Operation, hub.RotateToken.Operation, hub.PutMember.Operation, hub.Resume.Operation:
		err = g.whenSafe()
	}
	if err != nil {
		return nil, err
	}
	return g.Hub.Do(ctx, c, op, in)
}

// whenSafe refuses in safe mode.
func (g *guard) whenSafe() error {
	if !g.safe {
		return nil
	}
	return fault.New(fault.Unavailable, "safe_mode", "change state", errors.New("palyrad is in safe mode after failed starts: everything can be read, nothing is changed")).
		WithHint("look at the log of the starts that failed, repair it, restart palyrad")
}

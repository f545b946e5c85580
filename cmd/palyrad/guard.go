package main

import (
	"context"

	"palyra/hub"
	"palyra/transport/httpapi"
)

// guard stands before the hub while palyrad must not take new calls: when it drains, when
// the disk is nearly full, and in safe mode, in which only changes that take authority away
// are allowed. It never refuses reading.
type guard struct {
	httpapi.Hub
	refuse   func() error // why no call is taken, nil if one is
	whenSafe func() error // why nothing is changed, nil outside of safe mode
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
	case hub.BeginPairing.Operation, hub.ApprovePairing.Operation, hub.RenewDevice.Operation: // a device is authority, too
		err = g.whenSafe()
	}
	if err != nil {
		return nil, err
	}
	return g.Hub.Do(ctx, c, op, in)
}

package main

import (
	"context"

	"palyra/hub"
	"palyra/transport/httpapi"
)

// guard stands before the hub while palyrad must not take new calls: when it drains, when
// the disk is nearly full, and in safe mode, in which only changes that take authority away
// are allowed. It never refuses reading. The table of operations says which are which.
type guard struct {
	httpapi.Hub
	refuse   func() error // why no call is taken, nil if one is
	whenSafe func() error // why nothing is changed, nil outside of safe mode
}

var _ hub.Hub = (*guard)(nil)

// Do implements hub.Hub.
func (g *guard) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	var err error
	switch op.EffectOf(in) {
	case hub.Begins:
		err = g.refuse()
	case hub.Gives, hub.Mends:
		err = g.whenSafe()
	}
	if err != nil {
		return nil, err
	}
	return g.Hub.Do(ctx, c, op, in)
}

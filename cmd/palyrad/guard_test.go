package main

import (
	"context"
	"errors"
	"testing"

	"palyra/hub"
	"palyra/transport/httpapi"
)

// asked is a hub that notes what reaches it.
type asked struct {
	httpapi.Hub
	op *hub.Operation
}

func (a *asked) Do(_ context.Context, _ hub.Caller, op *hub.Operation, _ any) (any, error) {
	a.op = op
	return nil, nil
}

// TestSafeModeGivesNothing: in safe mode no one gets more authority, or the same for longer; what
// takes it away works.
func TestSafeModeGivesNothing(t *testing.T) {
	safe := errors.New("safe mode")
	for _, tt := range []struct {
		op    *hub.Operation
		in    any
		gives bool
	}{
		{hub.CreateToken.Operation, nil, true},
		{hub.RotateToken.Operation, nil, true},
		{hub.PutMember.Operation, nil, true},
		{hub.Resume.Operation, nil, true},
		{hub.ResolveApproval.Operation, hub.Resolution{Answer: hub.Answer{Approve: true}}, true},
		{hub.BeginPairing.Operation, nil, true},
		{hub.ApprovePairing.Operation, nil, true},
		{hub.RenewDevice.Operation, nil, true},

		{hub.ResolveApproval.Operation, hub.Resolution{}, false},
		{hub.RevokeToken.Operation, nil, false},
		{hub.RemoveMember.Operation, nil, false},
		{hub.RevokeDevice.Operation, nil, false},
		{hub.DenyPairing.Operation, nil, false},
		{hub.ListDevices.Operation, nil, false},
		{hub.Stop.Operation, nil, false},
	} {
		behind := &asked{}
		g := &guard{Hub: behind, refuse: func() error { return safe }, whenSafe: func() error { return safe }}
		_, err := g.Do(t.Context(), hub.Caller{}, tt.op, tt.in)
		if refused := err != nil && behind.op == nil; refused != tt.gives || !refused && behind.op != tt.op {
			t.Errorf("%s: %v", tt.op.ID, err)
		}
	}
}

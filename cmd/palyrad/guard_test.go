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

// TestSafeModeGivesNothing goes through all operations: in safe mode no one gets more authority, or
// the same for longer, and nothing is begun or changed; what reads or takes away works.
func TestSafeModeGivesNothing(t *testing.T) {
	safe, full := errors.New("safe mode"), errors.New("no calls")
	ask := func(op *hub.Operation, in any) error {
		behind := &asked{}
		g := &guard{Hub: behind, refuse: func() error { return full }, whenSafe: func() error { return safe }}
		_, err := g.Do(t.Context(), hub.Caller{}, op, in)
		if (err == nil) != (behind.op == op) {
			t.Errorf("%s: %v, and it came to %v", op.ID, err, behind.op)
		}
		return err
	}
	want := map[hub.Effect]error{hub.Gives: safe, hub.Begins: full, hub.Mends: safe, hub.Keeps: nil}
	for _, op := range hub.Operations() {
		if err := ask(op, nil); err != want[op.Effect] {
			t.Errorf("%s: %v, want %v", op.ID, err, want[op.Effect])
		}
	}
	for _, op := range []*hub.Operation{hub.AddServer.Operation, hub.AcceptServer.Operation, hub.RotateKey.Operation, hub.Reload.Operation, hub.CreateToken.Operation,
		hub.PutMember.Operation, hub.Resume.Operation, hub.ApprovePairing.Operation, hub.RenewDevice.Operation} {
		if err := ask(op, nil); err != safe {
			t.Errorf("%s: %v", op.ID, err)
		}
	}
	for _, answer := range []bool{true, false} {
		if err := ask(hub.ResolveApproval.Operation, hub.Resolution{Answer: hub.Answer{Approve: answer}}); (err != nil) != answer {
			t.Errorf("the answer %v: %v", answer, err)
		}
	}
}

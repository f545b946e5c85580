package local

import (
	"io"
	"reflect"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestStopGivesNothing goes through all operations: while a stop denies new runs no one gets more
// authority, not an owner either, and what reads, ends or mends works.
func TestStopGivesNothing(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	bob := h.member(1002, access.Operator)
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	for _, op := range hub.Operations() {
		if op == hub.Resume.Operation || op == hub.Stop.Operation { // below
			continue
		}
		in := reflect.New(op.In).Elem()
		switch op {
		case hub.Backup.Operation:
			in.Set(reflect.ValueOf(hub.BackupTo{W: io.Discard}))
		case hub.ResolveApproval.Operation:
			in.Set(reflect.ValueOf(hub.Resolution{Answer: hub.Answer{Approve: true}}))
		}
		_, err := h.Do(ctx, h.owner, op, in.Interface())
		if stopped := fault.ReasonOf(err) == "stopped"; op.Effect != hub.Begins && stopped != (op.Effect == hub.Gives) {
			t.Errorf("%s, which has effect %d: %v", op.ID, op.Effect, err)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if d := hub.DenialOf(err); fault.ReasonOf(err) != "stopped" || d == nil || d.Layer != hub.LayerStop {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := hub.CreateToken.Do(ctx, h, bob, hub.NewToken{Name: "more", Scopes: []string{"session.read"}, TTL: time.Hour})
	refused("a token", err)
	_, err = hub.PutMember.Do(ctx, h, h.owner, hub.MemberPut{Principal: "uid:4242", MemberChange: hub.MemberChange{Role: "owner"}})
	refused("a member", err)
	_, err = hub.BeginPairing.Do(ctx, h, h.owner, hub.None{})
	refused("a pairing", err)
	_, err = hub.Call.Do(ctx, h, h.owner, hub.NewCall{Tool: "palyra.echo", Input: []byte(`{"text":"x"}`)})
	refused("a call", err)
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: bob.User}); err != nil {
		t.Errorf("taking a role away: %v", err)
	}
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Errorf("another stop: %v", err)
	}
	if _, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "more", Scopes: []string{"session.read"}, TTL: time.Hour}); err != nil {
		t.Errorf("after the stop: %v", err)
	}
}

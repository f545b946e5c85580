package local

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/hub"
)

// token mints a token for c and returns who it authenticates, as a surface would.
func (h *house) token(c hub.Caller, scopes ...string) (hub.Caller, string) {
	h.t.Helper()
	s, err := h.CreateToken(h.t.Context(), c, hub.NewToken{Name: "t", Scopes: scopes, TTL: time.Hour})
	if err != nil {
		h.t.Fatal(err)
	}
	got, err := h.Authenticate(h.t.Context(), hub.Credential{Token: s.Secret, Surface: "http"})
	if err != nil {
		h.t.Fatal(err)
	}
	return got, s.ID
}

// TestAnswersThatDoNotCount: from the requester through a second surface, from a
// token that was revoked, from somebody who was an admin, from a device of
// another principal; and after a cancel, after the end, and twice.
func TestAnswersThatDoNotCount(t *testing.T) {
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.ApprovalTimeout = 30 * time.Second })
	ctx := t.Context()
	alice, bob, carol := h.member(1001, access.Admin), h.member(1002, access.Admin), h.member(1003, access.Admin)
	ofAlice, _ := h.token(alice, "approval.read", "approval.resolve")
	ofBob, bobs := h.token(bob, "approval.read", "approval.resolve")
	weak, _ := h.token(bob, "approval.read")
	r := h.start(alice, writeFile("a", "x"))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	id := h.question(h.owner).ID
	if _, err := h.RevokeToken(ctx, bob, bobs, 0); err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveMember(ctx, h.owner, carol.User, 0); err != nil {
		t.Fatal(err)
	}
	claimed := ofAlice // a transport that mixes up the device
	claimed.Device = "device:bob"
	made := bob // a caller that nobody authenticated: another's token
	made.Token = ofAlice.Token
	for name, c := range map[string]struct {
		who    hub.Caller
		reason string
	}{
		"requester, socket":     {alice, "self_approval"},
		"requester, token":      {ofAlice, "self_approval"},
		"requester, a device":   {claimed, "self_approval"},
		"revoked token":         {ofBob, "permission_denied"},
		"token without scope":   {weak, "permission_denied"},
		"removed member":        {carol, "permission_denied"},
		"token of another":      {made, "permission_denied"},
		"nobody":                {hub.Caller{}, "permission_denied"},
		"a stranger":            {h.peer(4711), "permission_denied"},
		"somebody made up":      {hub.Caller{User: "uid:0 ", Role: "owner"}, "permission_denied"},
		"an owner by role only": {hub.Caller{User: "uid:4712", Role: "owner", Scopes: []string{"approval.resolve"}}, "permission_denied"},
	} {
		if _, err := h.ResolveApproval(ctx, c.who, id, 0, hub.Answer{Approve: true}); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v (%s), want %s", name, err, fault.ReasonOf(err), c.reason)
		}
	}
	if a, err := h.Approval(ctx, h.owner, id); err != nil || a.State != hub.ApprovalPending || a.Version != 1 {
		t.Fatalf("they changed something: %+v, %v", a, err)
	}
	// The end: a cancel, then answers.
	if _, err := h.CancelRun(ctx, alice, r.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := h.ResolveApproval(ctx, h.owner, id, 0, hub.Answer{Approve: true}); fault.ReasonOf(err) != "version_conflict" {
			t.Errorf("after the cancel: %v", err)
		}
	}
	// Twice, and a yes after a no.
	for _, first := range []bool{true, false} {
		r := h.start(alice, writeFile("twice", "x"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q := h.question(h.owner)
		if _, err := h.ResolveApproval(ctx, bob, q.ID, q.Version, hub.Answer{Approve: first}); err != nil {
			t.Fatal(err)
		}
		for _, yes := range []bool{true, false} {
			if _, err := h.ResolveApproval(ctx, h.owner, q.ID, 0, hub.Answer{Approve: yes}); fault.ReasonOf(err) != "version_conflict" {
				t.Errorf("a second answer: %v", err)
			}
		}
		r = h.ended(alice, r.ID)
		if (r.State == hub.RunDone) != first {
			t.Errorf("answered %v, the run is %s", first, r.State)
		}
		if first {
			if err := os.Remove(filepath.Join(h.work(), "twice")); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(h.work(), "a")); err == nil {
		t.Error("it ran")
	}
}

// TestAnswerAfterItsTime: nobody answered in time, and somebody answers then.
func TestAnswerAfterItsTime(t *testing.T) {
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.ApprovalTimeout = 50 * time.Millisecond })
	alice := h.member(1001, access.Operator)
	r := h.start(alice, writeFile("late", "x"))
	r = h.ended(alice, r.ID)
	id := r.Steps[0].Approval
	if _, err := h.ResolveApproval(t.Context(), h.owner, id, 0, hub.Answer{Approve: true}); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("after its time: %v", err)
	}
	if a, err := h.Approval(t.Context(), h.owner, id); err != nil || a.State != hub.ApprovalExpired {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := os.Stat(filepath.Join(h.work(), "late")); err == nil || r.State != hub.RunFailed {
		t.Errorf("%s, %v", r.State, err)
	}
}

// TestNoMoreThanOneHas: whoever holds a little makes nothing that holds more.
func TestNoMoreThanOneHas(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	admin := h.member(1001, access.Admin)
	little, id := h.token(admin, "token.manage", "session.read", "run.start")
	for name, f := range map[string]func() error{
		"a scope more": func() error {
			_, err := h.CreateToken(ctx, little, hub.NewToken{Name: "x", Scopes: []string{"member.manage"}, TTL: time.Hour})
			return err
		},
		"for another": func() error {
			_, err := h.CreateToken(ctx, little, hub.NewToken{Name: "x", Principal: h.owner.User, Scopes: []string{"run.start"}, TTL: time.Hour})
			return err
		},
		"an owner": func() error {
			_, err := h.PutMember(ctx, admin, hub.Member{Principal: "uid:7", Role: "owner"})
			return err
		},
		"a member": func() error {
			_, err := h.PutMember(ctx, little, hub.Member{Principal: "uid:7", Role: "operator"})
			return err
		},
		"an approval": func() error {
			_, err := h.ResolveApproval(ctx, little, "apr_"+digits32, 0, hub.Answer{Approve: true})
			return err
		},
		"other rules":   func() error { _, err := h.Reload(ctx, little); return err },
		"the stop":      func() error { _, err := h.Resume(ctx, little); return err },
		"a run of more": func() error { _, err := h.RevokeGrant(ctx, little, "grt_"+digits32); return err },
	} {
		if err := f(); fault.KindOf(err) != fault.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Not by way of the token's own successor either.
	s, err := h.RotateToken(ctx, little, id, hub.Rotation{})
	if err != nil {
		t.Fatal(err)
	}
	next, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret})
	if err != nil || len(next.Scopes) != 3 {
		t.Errorf("the successor has %q, %v", next.Scopes, err)
	}
}

const digits32 = "00000000000000000000000000000000"

package local

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/kernel/hub"
)

// TestWhy: the denial of a call carries the id of a decision; by it the operator
// gets who said no, the rules and a change, and what that change would do is
// known before it is applied.
func TestWhy(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	h.call(h.owner, argv("/bin/true"))
	r := h.call(h.owner, argv("/bin/sh", "-c", "id"))
	d := r.Steps[0].Denial
	if d == nil || len(d.DecisionID) != 32 {
		t.Fatalf("%+v", r.Steps[0])
	}
	for _, id := range []string{d.DecisionID, d.DecisionID[:8]} {
		why, err := h.PolicyWhy(ctx, h.owner, id)
		if err != nil || why.DecisionID != d.DecisionID || why.Layer != hub.LayerPolicy || why.Fix != d.Fix || !slices.Equal(why.Policies, d.Policies) ||
			len(why.Rules) != len(d.Policies) || why.Rules[0].Line == 0 || why.Run != r.ID || why.Outcome != "denied" || why.Effect != "deny" || why.LogIndex == nil {
			t.Errorf("%+v, %v", why, err)
		}
	}
	if !strings.HasPrefix(d.Fix, "--- ") {
		t.Fatalf("no diff: %s", d.Fix)
	}
	for name, q := range map[string]hub.PolicyDiffQuery{"fix": {Fix: d.DecisionID}, "diff": {Diff: d.Fix}} {
		v, err := h.PolicyDiff(ctx, h.owner, q)
		if err != nil || v.Replayed != 2 || len(v.Changed) != 1 || v.Changed[0].DecisionID != d.DecisionID || v.Changed[0].After.Effect == "deny" {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
	for _, q := range []hub.PolicyDiffQuery{{}, {Diff: d.Fix, Fix: d.DecisionID}, {Diff: "permit;"}, {Fix: "00000000"}, {Diff: d.Fix, Last: 1 << 20}} {
		if _, err := h.PolicyDiff(ctx, h.owner, q); fault.KindOf(err) != fault.Usage && fault.KindOf(err) != fault.NotFound {
			t.Errorf("%+v: %v", q, err)
		}
	}
	// A call that stays as it is, by one policy more, has not changed.
	same := "--- /dev/null\n+++ b/90-x.cedar\n@@ -0,0 +1 @@\n+@id(\"x\") @untested(\"a test\") permit (principal, action == Palyra::Action::\"tool.execute\", resource) when { context.executable.name == \"true\" };\n"
	if v, err := h.PolicyDiff(ctx, h.owner, hub.PolicyDiffQuery{Diff: same}); err != nil || v.Replayed != 2 || len(v.Changed) != 0 || v.Same != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	b, err := h.PolicyExport(ctx, h.owner, d.DecisionID)
	var bundle policy.Bundle
	if err != nil || json.Unmarshal(b, &bundle) != nil || bundle.Decision != d.DecisionID || bundle.Answer.Effect != policy.Deny || len(bundle.Questions) < 2 {
		t.Errorf("%s, %v", b, err)
	}
}

// TestWhyOfRefusals: denials that are none of a call carry an id, too, and the
// operator gets the rest by it; nobody else does.
func TestWhyOfRefusals(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	stranger := hub.Caller{User: "uid:4242", Surface: "unix"}
	_, err := h.Sessions(ctx, stranger, hub.SessionQuery{})
	d := hub.DenialOf(err)
	if d == nil || len(d.DecisionID) != 32 || d.Layer != hub.LayerAccess || len(d.Policies) != 1 || d.Fix == "" {
		t.Fatalf("%v %+v", err, d)
	}
	why, err := h.PolicyWhy(ctx, h.owner, d.DecisionID)
	if err != nil || why.Layer != hub.LayerAccess || why.Permission != "session.read" || why.Principal != stranger.User || why.Time == "" {
		t.Errorf("%+v, %v", why, err)
	}
	if _, err := h.PolicyWhy(ctx, stranger, d.DecisionID); fault.KindOf(err) != fault.Denied {
		t.Errorf("a stranger reads why: %v", err)
	}
	if _, err := h.Stop(ctx, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	s := argv("/bin/true")
	_, err = h.Call(ctx, h.owner, hub.NewCall{Tool: s.Tool, Input: s.Input})
	if d = hub.DenialOf(err); d == nil || len(d.DecisionID) != 32 || d.Layer != hub.LayerStop {
		t.Fatalf("%v %+v", err, d)
	}
	if why, err = h.PolicyWhy(ctx, h.owner, d.DecisionID[:10]); err != nil || why.Layer != hub.LayerStop {
		t.Errorf("%+v, %v", why, err)
	}
	for range maxRefusals + 10 {
		h.need(stranger, "session.read")
	}
	if n := len(h.refused.last); n > maxRefusals {
		t.Errorf("%d denials are remembered", n)
	}
}

// TestRegistryDenials: what the registry of members and tokens refuses has an id
// that tells the operator why, and says still what it said.
func TestRegistryDenials(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	admin := h.member(1001, access.Admin)
	mint := func(c hub.Caller, n hub.NewToken) error {
		n.Name, n.TTL = "t", time.Hour
		_, err := h.CreateToken(ctx, c, n)
		return err
	}
	own, err := h.CreateToken(ctx, admin, hub.NewToken{Name: "t", Scopes: []string{"session.read"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.RevokeToken(ctx, admin, own.Token.ID, 0); err != nil {
		t.Fatal(err)
	}
	for reason, do := range map[string]func() error{
		"exceeds_own_permissions": func() error { return mint(admin, hub.NewToken{Scopes: []string{"backup.manage"}}) },
		"not_own_principal": func() error {
			return mint(h.owner, hub.NewToken{Principal: admin.User, Scopes: []string{"session.read"}})
		},
		"token_revoked": func() error {
			_, err := h.RotateToken(ctx, admin, own.Token.ID, hub.Rotation{TTL: time.Hour})
			return err
		},
	} {
		err := do()
		d := hub.DenialOf(err)
		if fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != reason || d == nil || len(d.DecisionID) != 32 || d.Layer != hub.LayerAccess || d.Reason != reason {
			t.Errorf("%s: %v, %+v", reason, err, d)
			continue
		}
		if why, err := h.PolicyWhy(ctx, h.owner, d.DecisionID); err != nil || why.Reason != reason {
			t.Errorf("%s: %+v, %v", reason, why, err)
		}
	}
	_, err = h.PutMember(ctx, admin, hub.Member{Principal: "uid:1002", Role: "owner"})
	if d := hub.DenialOf(err); d == nil || !strings.Contains(err.Error(), "does not hold") || !strings.Contains(err.Error(), d.DecisionID) {
		t.Errorf("%v", err)
	}
	if err := h.RemoveMember(ctx, admin, h.owner.User, 0); hub.DenialOf(err) == nil {
		t.Errorf("%v", err)
	}
	if err := h.RemoveMember(ctx, h.owner, "uid:1002", 0); fault.KindOf(err) != fault.NotFound || hub.DenialOf(err) != nil {
		t.Errorf("another error: %v", err)
	}
}

package local

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

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

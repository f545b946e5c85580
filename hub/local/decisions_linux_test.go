package local

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestWhy: the denial of a call carries the id of a decision and no fix; by the id
// the operator gets who said no, the rules and a change, and what that change would
// do is known before it is applied.
func TestWhy(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	h.call(h.owner, argv("/bin/true"))
	r := h.call(h.owner, argv("/bin/sh", "-c", "id"))
	d := r.Steps[0].Denial
	if d == nil || len(d.DecisionID) != 32 || d.Fix != "" {
		t.Fatalf("%+v", r.Steps[0])
	}
	fix := ""
	for _, id := range []string{d.DecisionID, d.DecisionID[:8]} {
		why, err := hub.GetDecision.Do(ctx, h, h.owner, id)
		if err != nil || why.DecisionID != d.DecisionID || why.Layer != hub.LayerPolicy || !strings.HasPrefix(why.Fix, "--- ") || !slices.Equal(why.Policies, d.Policies) ||
			len(why.Rules) != len(d.Policies) || why.Rules[0].Line == 0 || why.Run != r.ID || why.Outcome != "denied" || why.Effect != "deny" || why.LogIndex == nil {
			t.Fatalf("%+v, %v", why, err)
		}
		fix = why.Fix
	}
	if p := h.verify(r.Steps[0]).Statement.Predicate; p.Decision.Fix != "" {
		t.Errorf("the receipt's fix is %q", p.Decision.Fix)
	}
	for name, q := range map[string]hub.PolicyDiffQuery{"fix": {Fix: d.DecisionID}, "diff": {Diff: fix}} {
		v, err := hub.DiffPolicy.Do(ctx, h, h.owner, q)
		if err != nil || v.Replayed != 2 || len(v.Changed) != 1 || v.Changed[0].DecisionID != d.DecisionID || v.Changed[0].After.Effect == "deny" {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
	for _, q := range []hub.PolicyDiffQuery{{}, {Diff: fix, Fix: d.DecisionID}, {Diff: "permit;"}, {Fix: "00000000"}, {Diff: fix, Last: 1 << 20}} {
		if _, err := hub.DiffPolicy.Do(ctx, h, h.owner, q); fault.KindOf(err) != fault.Usage && fault.KindOf(err) != fault.NotFound {
			t.Errorf("%+v: %v", q, err)
		}
	}
	// A call that stays as it is, by one policy more, has not changed.
	same := "--- /dev/null\n+++ b/90-x.cedar\n@@ -0,0 +1 @@\n+@id(\"x\") @untested(\"a test\") permit (principal, action == Palyra::Action::\"tool.execute\", resource) when { context.executable.name == \"true\" };\n"
	if v, err := hub.DiffPolicy.Do(ctx, h, h.owner, hub.PolicyDiffQuery{Diff: same}); err != nil || v.Replayed != 2 || len(v.Changed) != 0 || v.Same != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	b, err := hub.ExportDecision.Do(ctx, h, h.owner, d.DecisionID)
	var bundle policy.Bundle
	if err != nil || json.Unmarshal(b, &bundle) != nil || bundle.Decision != d.DecisionID || bundle.Answer.Effect != policy.Deny || len(bundle.Questions) < 2 {
		t.Errorf("%s, %v", b, err)
	}
}

// TestFixIsPaidByWhoAsks: whoever looks a decision up stands in their own line for
// what the answer takes; a call that is denied takes no place in it. Without
// policy.read there is no answer.
func TestFixIsPaidByWhoAsks(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice := h.member(1001, access.Operator)
	for range 2 {
		_, done, err := h.explaining(ctx, alice)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
	}
	r := h.call(alice, argv("/bin/sh", "-c", "id"))
	if r.Steps[0].Outcome != "denied" {
		t.Fatalf("%+v", r.Steps[0])
	}
	id := r.Steps[0].Denial.DecisionID
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if why, err := hub.GetDecision.Do(short, h, alice, id); err == nil {
		t.Errorf("there is no place, and the fix is %q", why.Fix)
	}
	if why, err := hub.GetDecision.Do(ctx, h, h.owner, id); err != nil || why.Fix == "" {
		t.Errorf("%+v, %v", why, err)
	}
	s, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "t", Scopes: []string{"run.start", "session.read"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	web, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret, Surface: "http"})
	if err != nil {
		t.Fatal(err)
	}
	if why, err := hub.GetDecision.Do(ctx, h, web, id); fault.KindOf(err) != fault.Denied {
		t.Errorf("%+v, %v", why, err)
	}
}

// TestWhyOfRefusals: a denial that isn't of a call carries an id, too. Only the operator
// gets the rest by it.
func TestWhyOfRefusals(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	stranger := hub.Caller{User: "uid:4242", Surface: "unix"}
	_, err := hub.ListSessions.Do(ctx, h, stranger, hub.SessionQuery{})
	d := hub.DenialOf(err)
	if d == nil || len(d.DecisionID) != 32 || d.Layer != hub.LayerAccess || len(d.Policies) != 1 || d.Fix == "" {
		t.Fatalf("%v %+v", err, d)
	}
	why, err := hub.GetDecision.Do(ctx, h, h.owner, d.DecisionID)
	if err != nil || why.Layer != hub.LayerAccess || why.Permission != "session.read" || why.Principal != stranger.User || why.Time == "" {
		t.Errorf("%+v, %v", why, err)
	}
	if _, err := hub.GetDecision.Do(ctx, h, stranger, d.DecisionID); fault.KindOf(err) != fault.Denied {
		t.Errorf("a stranger reads why: %v", err)
	}
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Fatal(err)
	}
	s := argv("/bin/true")
	_, err = hub.Call.Do(ctx, h, h.owner, hub.NewCall{Tool: s.Tool, Input: s.Input})
	if d = hub.DenialOf(err); d == nil || len(d.DecisionID) != 32 || d.Layer != hub.LayerStop {
		t.Fatalf("%v %+v", err, d)
	}
	if why, err = hub.GetDecision.Do(ctx, h, h.owner, d.DecisionID[:10]); err != nil || why.Layer != hub.LayerStop {
		t.Errorf("%+v, %v", why, err)
	}
}

// TestRefusalsBySource: a flood of denials, of strangers under many names or of a
// member, pushes out no other's, neither from memory nor from the log.
func TestRefusalsBySource(t *testing.T) {
	var log lines
	h := newHouse(t, func(c *Config, _ *kernel.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	alice, bob := h.member(1001, access.Operator), h.member(1002, access.Operator)
	deny := func(c hub.Caller) string {
		d := hub.DenialOf(h.need(c, access.BackupManage))
		if d == nil {
			t.Fatal("not denied")
		}
		return d.DecisionID
	}
	flood := func(who func(i int) hub.Caller) (last string) {
		for i := range 2 * maxRefusals {
			last = deny(who(i))
		}
		return last
	}
	deny(bob)
	strange := flood(func(i int) hub.Caller { return hub.Caller{User: peer(uint32(50000 + i)), Surface: "unix"} })
	hers := deny(alice)
	flood(func(i int) hub.Caller { return hub.Caller{User: peer(uint32(50000 + i)), Surface: "unix"} })
	his := flood(func(int) hub.Caller { return bob })
	for name, id := range map[string]string{"alice's": hers, "bob's newest": his} {
		if _, err := hub.GetDecision.Do(t.Context(), h, h.owner, id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := hub.GetDecision.Do(t.Context(), h, h.owner, strange); err == nil {
		t.Error("strangers have more than their share")
	}
	if n := len(h.refused.last); n > 2*eachRefusals+1 {
		t.Errorf("%d denials are remembered", n)
	}
	text := log.String()
	if n := strings.Count(text, "msg=denied"); !strings.Contains(text, hers) || n > 500 {
		t.Errorf("%d lines in the log, alice's among them: %v", n, strings.Contains(text, hers))
	}
	// When all have their share, the one with most gives way.
	var r refusals
	for i := range maxRefusals {
		r.add(&refusal{source: fmt.Sprint(i % 8)})
	}
	for range eachRefusals {
		r.add(&refusal{source: "new"})
	}
	has := make(map[string]int)
	for _, x := range r.last {
		has[x.source]++
	}
	if len(r.last) != maxRefusals || has["new"] < 100 || has["0"] < 100 || has["7"] < 100 {
		t.Errorf("%v", has)
	}
}

// lines is a log in memory.
type lines struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRegistryDenials: what the registry of members and tokens refuses has an id
// that tells the operator why, and says still what it said.
func TestRegistryDenials(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	admin := h.member(1001, access.Admin)
	mint := func(c hub.Caller, n hub.NewToken) error {
		n.Name, n.TTL = "t", time.Hour
		_, err := hub.CreateToken.Do(ctx, h, c, n)
		return err
	}
	own, err := hub.CreateToken.Do(ctx, h, admin, hub.NewToken{Name: "t", Scopes: []string{"session.read"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RevokeToken.Do(ctx, h, admin, hub.TokenChange{ID: own.Token.ID, Version: 0}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason string
		do     func() error
	}{
		{"permission_denied", func() error { return mint(admin, hub.NewToken{Scopes: []string{"backup.manage"}}) }},
		{"permission_denied", func() error {
			return mint(h.owner, hub.NewToken{Principal: admin.User, Scopes: []string{"session.read"}})
		}},
		{"token_revoked", func() error {
			_, err := hub.RotateToken.Do(ctx, h, admin, hub.Rotation{ID: own.Token.ID, RotationRequest: hub.RotationRequest{TTL: time.Hour}})
			return err
		}},
	} {
		reason, err := c.reason, c.do()
		d := hub.DenialOf(err)
		if fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != reason || d == nil || len(d.DecisionID) != 32 || d.Layer != hub.LayerAccess || d.Reason != reason {
			t.Errorf("%s: %v, %+v", reason, err, d)
			continue
		}
		if why, err := hub.GetDecision.Do(ctx, h, h.owner, d.DecisionID); err != nil || why.Reason != reason {
			t.Errorf("%s: %+v, %v", reason, why, err)
		}
	}
	_, err = hub.PutMember.Do(ctx, h, admin, hub.MemberPut{Principal: "uid:1002", MemberChange: hub.MemberChange{Role: "owner"}})
	if d := hub.DenialOf(err); d == nil || !strings.Contains(err.Error(), "does not hold") || !strings.Contains(err.Error(), d.DecisionID) {
		t.Errorf("%v", err)
	}
	if _, err := hub.RemoveMember.Do(ctx, h, admin, hub.MemberRemoval{Principal: h.owner.User, Version: 0}); hub.DenialOf(err) == nil {
		t.Errorf("%v", err)
	}
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: "uid:1002", Version: 0}); fault.KindOf(err) != fault.NotFound || hub.DenialOf(err) != nil {
		t.Errorf("another error: %v", err)
	}
}

package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

func writeFile(path, content string) hub.Step {
	return step("fs.write_file", obj{"workspace": "src", "path": path, "mode": "create", "content": content})
}

// asks starts a run and reports whether a person is asked about it. If so it is
// cancelled.
func (h *house) asks(c hub.Caller, session string, s hub.Step) (bool, hub.Run) {
	h.t.Helper()
	r, err := hub.StartRun.Do(h.t.Context(), h, c, hub.NewRun{Session: session, Steps: []hub.Step{s}})
	if err != nil {
		h.t.Fatal(err)
	}
	tape, err := hub.ReadTape.Do(h.t.Context(), h, c, hub.TapeQuery{Run: r.ID})
	if err != nil {
		h.t.Fatal(err)
	}
	defer tape.Close()
	for {
		ev, err := tape.Next(h.t.Context())
		if err != nil {
			return false, h.ended(c, r.ID)
		}
		if ev.Kind == hub.EventRunWaitingApproval {
			if r, err = hub.CancelRun.Do(h.t.Context(), h, c, r.ID); err != nil {
				h.t.Fatal(err)
			}
			return true, r
		}
	}
}

// approve starts a run that is asked about, and answers.
func (h *house) approve(c, by hub.Caller, session string, s hub.Step, a hub.Answer) (hub.Approval, hub.Run) {
	h.t.Helper()
	r, err := hub.StartRun.Do(h.t.Context(), h, c, hub.NewRun{Session: session, Steps: []hub.Step{s}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.until(c, r.ID, hub.EventRunWaitingApproval)
	v, err := hub.ResolveApproval.Do(h.t.Context(), h, by, hub.Resolution{ID: h.question(by).ID, Version: 0, Answer: a})
	if err != nil {
		h.t.Fatal(err)
	}
	return v, h.ended(c, r.ID)
}

// TestStandingGrant: from the preview over the uses to the revocation, with the
// receipts of all of it.
func TestStandingGrant(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, mallory := h.member(1001, access.Operator), h.member(1002, access.Operator)
	admin := h.member(1003, access.Admin)
	ses := h.session(alice)

	// Two that got no yes: the preview has the one that the pattern covers.
	for _, path := range []string{"old.txt", ".git/hooks/pre-commit"} {
		if err := os.MkdirAll(filepath.Join(h.work(), ".git/hooks"), 0o755); err != nil {
			t.Fatal(err)
		}
		if asked, _ := h.asks(alice, ses, writeFile(path, "x")); !asked {
			t.Fatal("nobody was asked")
		}
	}
	r, err := hub.StartRun.Do(ctx, h, alice, hub.NewRun{Session: ses, Steps: []hub.Step{writeFile("a.txt", "1")}})
	if err != nil {
		t.Fatal(err)
	}
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	yes := hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	v, err := hub.PreviewApproval.Do(ctx, h, h.owner, hub.PreviewQuery{ID: q.ID, Answer: yes})
	if err != nil || v.Looked != 2 || len(v.Refused) != 1 || !slices.Contains(v.Refused[0].Argv, "path=old.txt") || !strings.Contains(v.Text, "ANY FILE") {
		t.Errorf("the preview is %+v, %v", v, err)
	}
	if v.Void != "" {
		t.Errorf("an owner's yes is void: %s", v.Void)
	}
	// Each is told beforehand of a yes that won't count.
	once := hub.PreviewQuery{ID: q.ID, Answer: hub.Answer{Approve: true}}
	for who, c := range map[string]hub.Caller{"self_approval": alice, "forbidden": admin} {
		in := once
		if who == "forbidden" {
			in.Answer = yes
		}
		if v, err := hub.PreviewApproval.Do(ctx, h, c, in); err != nil || v.Void != who {
			t.Errorf("the preview of %s says %q, %v; want %q", c.User, v.Void, err, who)
		}
	}
	if v, err := hub.PreviewApproval.Do(ctx, h, admin, once); err != nil || v.Void != "" {
		t.Errorf("an admin's yes for one call is void: %q, %v", v.Void, err)
	}
	// Only an owner can give a pattern for a sensitive call: default policy.
	if _, err := hub.ResolveApproval.Do(ctx, h, admin, hub.Resolution{ID: q.ID, Version: 0, Answer: yes}); fault.ReasonOf(err) != "forbidden" || hub.DenialOf(err) == nil ||
		!slices.Equal(hub.DenialOf(err).Policies, []string{"sensitive_patterns_by_owner"}) {
		t.Errorf("an admin's pattern: %v", err)
	}
	a, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: yes})
	if err != nil || a.Scope != "session" || a.State != hub.ApprovalApproved {
		t.Fatalf("%+v, %v", a, err)
	}
	first := h.ended(alice, r.ID)
	gs, err := hub.ListGrants.Do(ctx, h, h.owner, hub.None{})
	if err != nil || len(gs.Items) != 1 || gs.Items[0].Approval != q.ID || gs.Items[0].Pattern != v.Pattern || gs.Items[0].Uses != 1 {
		t.Fatalf("%+v, %v", gs, err)
	}
	g := gs.Items[0]
	if p := h.verify(first.Steps[0]).Statement.Predicate.Approval; p == nil || p.Grant != g.ID || p.Pattern != v.Pattern || p.Scope != "session" {
		t.Errorf("the first receipt names %+v", p)
	}

	// Covered: no approver is asked, and the receipt says why.
	asked, run := h.asks(alice, ses, writeFile("b.txt", "2"))
	if asked || run.State != hub.RunDone {
		t.Fatalf("asked %v, %s %s", asked, run.State, run.Reason)
	}
	p := h.verify(run.Steps[0]).Statement.Predicate.Approval
	if p == nil || p.Grant != g.ID || p.Pattern != v.Pattern || p.ID == q.ID || p.Approver != h.owner.User || p.Capsule != run.Steps[0].Capsule {
		t.Errorf("the receipt of the use names %+v", p)
	}
	if row, err := hub.GetApproval.Do(ctx, h, h.owner, p.ID); err != nil || row.State != hub.ApprovalApproved || row.Detail != "by grant "+g.ID || row.Card.Argv[2] != "path=b.txt" {
		t.Errorf("the record of the use is %+v, %v", row, err)
	}
	if b, err := os.ReadFile(filepath.Join(h.work(), "b.txt")); err != nil || string(b) != "2" {
		t.Errorf("%q, %v", b, err)
	}

	// Not covered: another requester, another session, what plants a hook.
	for name, f := range map[string]func() bool{
		"another requester": func() bool { asked, _ := h.asks(mallory, h.session(mallory), writeFile("m.txt", "x")); return asked },
		"another session":   func() bool { asked, _ := h.asks(alice, h.session(alice), writeFile("s.txt", "x")); return asked },
		"a hook":            func() bool { asked, _ := h.asks(alice, ses, writeFile(".git/hooks/post-commit", "x")); return asked },
	} {
		if !f() {
			t.Errorf("%s: nobody was asked", name)
		}
	}

	if _, err := hub.RevokeGrant.Do(ctx, h, mallory, "grt_"+strings.Repeat("0", 32)); fault.ReasonOf(err) != "not_found" {
		t.Errorf("%v", err)
	}
	if got, err := hub.RevokeGrant.Do(ctx, h, admin, g.ID); err != nil || got.ID != g.ID || got.Uses != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if asked, _ := h.asks(alice, ses, writeFile("c.txt", "3")); !asked {
		t.Error("a revoked grant still covers")
	}
	want := []string{"approval.grant " + g.ID, "approval.revoke " + g.ID}
	if got := h.acts("approval."); !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
}

// acts lists the administrative acts whose name begins so, with their subjects.
func (h *house) acts(prefix string) (out []string) {
	h.t.Helper()
	for from := uint64(0); ; from += maxEntries {
		p, err := hub.ListJournalEntries.Do(h.t.Context(), h, h.owner, hub.JournalQuery{From: from, Limit: maxEntries})
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range p.Items {
			if strings.HasPrefix(e.Act, prefix) {
				out = append(out, e.Act+" "+e.Subject)
			}
		}
		if p.Next == "" {
			return out
		}
	}
}

// TestGrantEnds: what a grant rests on, and what ends it: policy, session, stop,
// restart, the membership and the token of whoever gave it.
func TestGrantEnds(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	change := func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir }
	h := newHouse(t, change)
	ctx := t.Context()
	alice := h.member(1001, access.Operator)
	timed := hub.Answer{Approve: true, Scope: "timed", For: time.Hour, Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	n := 0
	grant := func(by hub.Caller, a hub.Answer) string {
		t.Helper()
		n++
		ses := h.session(alice)
		_, r := h.approve(alice, by, ses, writeFile("g"+string(rune('a'+n)), "x"), a)
		n++
		if asked, r := h.asks(alice, ses, writeFile("g"+string(rune('a'+n)), "x")); asked || r.State != hub.RunDone {
			t.Fatalf("the grant covers nothing: %s %s", r.State, r.Reason)
		}
		return r.Session
	}
	gone := func(what, ses string) {
		t.Helper()
		n++
		if asked, _ := h.asks(alice, ses, writeFile("g"+string(rune('a'+n)), "x")); !asked {
			t.Errorf("%s: the grant still covers", what)
		}
		if p, err := hub.ListGrants.Do(ctx, h, h.owner, hub.None{}); err != nil || len(p.Items) != 0 {
			for _, g := range p.Items { // void, but listed until it expires
				if _, err := hub.RevokeGrant.Do(ctx, h, h.owner, g.ID); err != nil {
					t.Error(err)
				}
			}
		}
	}
	// Policy: also when the old set is back.
	ses := grant(h.owner, timed)
	more := filepath.Join(dir, "90-more.cedar")
	text := "\n@id(\"more\")\npermit (principal in Palyra::Role::\"owner\", action == Palyra::Action::\"tool.list\", resource);\n"
	for _, f := range []func() error{func() error { return os.WriteFile(more, []byte(text), 0o644) }, func() error { return os.Remove(more) }} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Reload.Do(ctx, h, h.owner, hub.None{}); err != nil {
			t.Fatal(err)
		}
		gone("policy", ses)
	}
	// Stop.
	ses = grant(h.owner, timed)
	if _, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true}); err != nil {
		t.Fatal(err)
	}
	gone("stop", ses)
	// The token that it was given with, and the one who gave it.
	tok, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "t", Scopes: []string{"approval.read", "approval.resolve", "trust.operate", "workspace.manage"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	byToken, err := h.Authenticate(ctx, hub.Credential{Token: tok.Secret, Surface: "http"})
	if err != nil {
		t.Fatal(err)
	}
	ses = grant(byToken, timed)
	if _, err := hub.RevokeToken.Do(ctx, h, h.owner, hub.TokenChange{ID: tok.ID, Version: 0}); err != nil {
		t.Fatal(err)
	}
	gone("token", ses)
	second := h.member(1009, access.Owner)
	ses = grant(second, timed)
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: second.User, Version: 0}); err != nil {
		t.Fatal(err)
	}
	gone("member", ses)
	// Session.
	once := hub.Answer{Approve: true, Scope: "session", Pattern: timed.Pattern}
	ses = grant(h.owner, once)
	if _, err := hub.EndSession.Do(ctx, h, alice, hub.SessionChange{ID: ses, Version: 0}); err != nil {
		t.Fatal(err)
	}
	if p, err := hub.ListGrants.Do(ctx, h, h.owner, hub.None{}); err != nil || len(p.Items) != 0 {
		t.Errorf("after its session: %+v, %v", p, err)
	}
	// Restart.
	ses = grant(h.owner, timed)
	h.stop()
	h.reopen(change)
	gone("restart", ses)
}

// TestTwoPersonRule: a policy that wants two people gets two, and the receipt
// names both.
func TestTwoPersonRule(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	rule := `
@id("two_people")
forbid (principal, action == Palyra::Action::"approval.resolve", resource)
when { context.sensitive_call && context.approvers < 2 };
`
	if err := os.WriteFile(filepath.Join(dir, "60-two.cedar"), []byte(rule), 0o644); err != nil {
		t.Fatal(err)
	}
	waive(t, dir)
	h := newHouse(t, func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir })
	ctx := t.Context()
	alice, bob := h.member(1001, access.Admin), h.member(1002, access.Admin)
	r := h.start(alice, writeFile("a", "x"))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	if v, err := hub.ResolveApproval.Do(ctx, h, bob, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil || v.State != hub.ApprovalPending || !slices.Equal(v.Yes, []string{bob.User}) {
		t.Fatalf("%+v, %v", v, err)
	}
	for _, c := range []hub.Caller{alice, bob} { // neither the requester nor the same person again
		v, err := hub.ResolveApproval.Do(ctx, h, c, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}})
		if c.User == alice.User && fault.ReasonOf(err) != "self_approval" || c.User == bob.User && (err != nil || v.State != hub.ApprovalPending) {
			t.Errorf("%s: %+v, %v", c.User, v, err)
		}
	}
	if v, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil || v.State != hub.ApprovalApproved {
		t.Fatalf("%+v, %v", v, err)
	}
	r = h.ended(alice, r.ID)
	if p := h.verify(r.Steps[0]).Statement.Predicate.Approval; r.State != hub.RunDone || p == nil || !slices.Equal(p.Approvers, []string{bob.User, h.owner.User}) {
		t.Errorf("%s, the receipt names %+v", r.State, p)
	}
	// The first loses the right while the second thinks: it takes another person.
	for name, lose := range map[string]func() (hub.Caller, func() error){
		"token": func() (hub.Caller, func() error) {
			s, err := hub.CreateToken.Do(ctx, h, bob, hub.NewToken{Name: "t", Scopes: []string{"approval.resolve"}, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			c, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret, Surface: "tcp"})
			if err != nil {
				t.Fatal(err)
			}
			return c, func() error {
				_, err := hub.RevokeToken.Do(ctx, h, bob, hub.TokenChange{ID: s.ID, Version: 0})
				return err
			}
		},
		"role": func() (hub.Caller, func() error) {
			c := h.member(1004, access.Admin)
			return c, func() error {
				all, err := hub.ListMembers.Do(ctx, h, h.owner, hub.None{})
				if err != nil {
					return err
				}
				m := all.Items[slices.IndexFunc(all.Items, func(m hub.Member) bool { return m.Principal == c.User })]
				_, err = hub.PutMember.Do(ctx, h, h.owner, hub.MemberPut{Principal: m.Principal, Version: m.Version, MemberChange: hub.MemberChange{Role: string(access.Operator)}})
				return err
			}
		},
		"membership": func() (hub.Caller, func() error) {
			c := h.member(1005, access.Admin)
			return c, func() error {
				_, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: c.User, Version: 0})
				return err
			}
		},
	} {
		first, loses := lose()
		r = h.start(alice, writeFile("b-"+name, "x"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q = h.question(h.owner)
		if v, err := hub.ResolveApproval.Do(ctx, h, first, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil || v.State != hub.ApprovalPending {
			t.Fatalf("%s: %+v, %v", name, v, err)
		}
		if err := loses(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		v, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}})
		if err != nil || v.State != hub.ApprovalPending || !slices.Equal(v.Yes, []string{h.owner.User}) {
			t.Errorf("%s gone: the second yes makes it %s, with the yes of %q, %v", name, v.State, v.Yes, err)
		}
		if _, err := hub.CancelRun.Do(ctx, h, alice, r.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoNeedsPolicy: a no ends another's call, and takes the right to a yes.
// Requesters take back what they asked for themselves.
func TestNoNeedsPolicy(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, mallory, admin := h.member(1001, access.Operator), h.member(1002, access.Operator), h.member(1003, access.Admin)
	for _, by := range []hub.Caller{alice, admin} {
		r := h.start(alice, writeFile("a", "x"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q := h.question(h.owner)
		if v, err := hub.ResolveApproval.Do(ctx, h, mallory, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{}}); fault.KindOf(err) != fault.Denied {
			t.Errorf("another operator's no: %s, %v", v.State, err)
		}
		if v, err := hub.GetApproval.Do(ctx, h, h.owner, q.ID); err != nil || v.State != hub.ApprovalPending {
			t.Errorf("it is %s, %v", v.State, err)
		}
		if v, err := hub.ResolveApproval.Do(ctx, h, by, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{}}); err != nil || v.State != hub.ApprovalDenied {
			t.Errorf("the no of %s: %s, %v", by.User, v.State, err)
		}
		h.ended(alice, r.ID)
	}
}

// TestSelfByPolicy: a policy may permit approval.self; the default does not.
func TestSelfByPolicy(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	rule := "\n@id(\"alone\")\npermit (principal in Palyra::Role::\"owner\", action == Palyra::Action::\"approval.self\", resource);\n"
	if err := os.WriteFile(filepath.Join(dir, "60-self.cedar"), []byte(rule), 0o644); err != nil {
		t.Fatal(err)
	}
	waive(t, dir)
	h := newHouse(t, func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir })
	if _, r := h.approve(h.owner, h.owner, h.session(h.owner), writeFile("a", "x"), hub.Answer{Approve: true}); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	admin := h.member(1001, access.Admin)
	r := h.start(admin, writeFile("b", "x"))
	h.until(admin, r.ID, hub.EventRunWaitingApproval)
	if _, err := hub.ResolveApproval.Do(t.Context(), h, admin, hub.Resolution{ID: h.question(admin).ID, Version: 0, Answer: hub.Answer{Approve: true}}); fault.ReasonOf(err) != "self_approval" {
		t.Errorf("an admin, whom it does not permit: %v", err)
	}
}

// TestTokenAtTheSocket: a policy that trusts the person at the unix socket means no token that
// is used there.
func TestTokenAtTheSocket(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	rule := "\n@id(\"alone\")\npermit (principal in Palyra::Role::\"owner\", action == Palyra::Action::\"approval.self\", resource)\nwhen { context.channel == \"unix\" };\n"
	if err := os.WriteFile(filepath.Join(dir, "60-self.cedar"), []byte(rule), 0o644); err != nil {
		t.Fatal(err)
	}
	waive(t, dir)
	h := newHouse(t, func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir })
	s, err := hub.CreateToken.Do(t.Context(), h, h.owner, hub.NewToken{Name: "t", TTL: time.Hour,
		Scopes: []string{"run.start", "session.read", "session.write", "approval.read", "approval.resolve", "trust.operate", "workspace.manage"}})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := h.Authenticate(t.Context(), hub.Credential{Token: s.Secret, Surface: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	r := h.start(agent, writeFile("a", "x"))
	h.until(agent, r.ID, hub.EventRunWaitingApproval)
	id := h.question(agent).ID
	if _, err := hub.ResolveApproval.Do(t.Context(), h, agent, hub.Resolution{ID: id, Version: 0, Answer: hub.Answer{Approve: true}}); fault.ReasonOf(err) != "self_approval" {
		t.Errorf("the token: %v", err)
	}
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: id, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil {
		t.Errorf("the person: %v", err)
	}
	if r := h.ended(agent, r.ID); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
}

// waive lets a copy of the default policies load without their tests, which
// another policy would fail.
func waive(t *testing.T, dir string) {
	t.Helper()
	tests, err := filepath.Glob(filepath.Join(dir, "*.test.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tests {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.cedar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(strings.ReplaceAll(string(b), "\nforbid", "\n@untested(\"a copy\")\nforbid")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGrantOfARemovedMember: what was granted to a member is gone with the
// membership, whoever gives it back.
func TestGrantOfARemovedMember(t *testing.T) {
	h := newHouse(t, nil)
	alice := h.member(1001, access.Operator)
	h.approve(alice, h.owner, h.session(alice), writeFile("a.txt", "1"),
		hub.Answer{Approve: true, Scope: "timed", For: time.Hour, Pattern: &hub.Pattern{Within: []int{2}, Content: true}})
	ses := h.session(alice)
	if asked, r := h.asks(alice, ses, writeFile("b.txt", "1")); asked || r.State != hub.RunDone {
		t.Fatalf("with the grant: asked %v, %s", asked, r.State)
	}
	if _, err := hub.RemoveMember.Do(t.Context(), h, h.owner, hub.MemberRemoval{Principal: alice.User, Version: 0}); err != nil {
		t.Fatal(err)
	}
	alice = h.member(1001, access.Operator)
	if asked, _ := h.asks(alice, ses, writeFile("c.txt", "1")); !asked {
		t.Error("the grant came back with the member")
	}
}

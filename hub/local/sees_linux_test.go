package local

import (
	"encoding/json"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestWhoSeesWhose: an operator learns that another's calls, requests and grants exist, and
// nothing that is in them. A caller who can answer a request sees it, and one who manages
// members sees everything.
func TestWhoSeesWhose(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, mallory, admin := h.member(1001, access.Operator), h.member(1002, access.Operator), h.member(1003, access.Admin)
	approver, _ := h.token(admin, "approval.read", "approval.resolve") // it manages no members
	auditor, _ := h.token(alice, "journal.read")                       // it may not read policy

	const secret = "ALICES-WORD"
	ran := h.call(alice, argv("echo", secret)).Steps[0]
	r := h.start(alice, writeFile(secret+".txt", secret))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)

	// has reports whether what c is given names anything of alice's.
	has := func(v any, err error) bool {
		t.Helper()
		b, merr := json.Marshal(v)
		if merr != nil {
			t.Fatal(merr)
		}
		return err == nil && (strings.Contains(string(b), secret) || strings.Contains(string(b), r.ID) || strings.Contains(string(b), alice.User))
	}
	for name, look := range map[string]func(c hub.Caller) (any, error){
		"approvals": func(c hub.Caller) (any, error) { return hub.ListApprovals.Do(ctx, h, c, hub.ApprovalQuery{}) },
		"approval":  func(c hub.Caller) (any, error) { return hub.GetApproval.Do(ctx, h, c, q.ID) },
		"preview": func(c hub.Caller) (any, error) {
			p, err := hub.PreviewApproval.Do(ctx, h, c, hub.PreviewQuery{ID: q.ID, Answer: hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{}}})
			return p.Text, err
		},
	} {
		for who, want := range map[*hub.Caller]bool{&alice: true, &h.owner: true, &admin: true, &approver: true, &mallory: false} {
			if got := has(look(*who)); got != want {
				t.Errorf("%s: %s %q sees it: %v", name, who.User, who.Token, got)
			}
		}
	}
	v, err := hub.GetApproval.Do(ctx, h, mallory, q.ID)
	if err != nil || !v.Reduced || v.ID != q.ID || v.Capsule != q.Capsule || v.Card.Argv == nil || v.Text != "" {
		t.Errorf("the reduced request is %+v, %v", v, err)
	}
	for _, by := range []hub.ApprovalQuery{{Run: r.ID}, {Session: r.Session}} {
		by.Limit = 1 // a full page, whose cursor would be the request's id
		if p, err := hub.ListApprovals.Do(ctx, h, mallory, by); err != nil || len(p.Items) != 0 || p.Next != "" {
			t.Errorf("by alice's run: %+v, %v", p, err)
		}
		if p, err := hub.ListApprovals.Do(ctx, h, alice, by); err != nil || len(p.Items) != 1 || p.Next != q.ID {
			t.Errorf("alice by her run: %+v, %v", p, err)
		}
	}

	// An answer that does not count: neither how it is refused nor the fix tells more.
	for _, a := range []hub.Answer{{Approve: true}, {}, {Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{99}}}, {Approve: true, Scope: "what"}} {
		_, err := hub.ResolveApproval.Do(ctx, h, mallory, hub.Resolution{ID: q.ID, Answer: a})
		d := hub.DenialOf(err)
		if d == nil || d.Layer != hub.LayerPolicy {
			t.Errorf("%+v: %v, %+v", a, err, d)
			continue
		}
		why, werr := hub.GetDecision.Do(ctx, h, mallory, d.DecisionID)
		if werr != nil || why.Fix != "" || has(d, nil) || has(err.Error(), nil) || has(why, nil) {
			t.Errorf("%+v: %+v, %v", a, why, werr)
		}
	}

	// A standing grant.
	if _, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}}); err != nil {
		t.Fatal(err)
	}
	h.ended(alice, r.ID)
	for who, want := range map[*hub.Caller]bool{&alice: true, &h.owner: true, &admin: true, &mallory: false} {
		if got := has(hub.ListGrants.Do(ctx, h, *who, hub.None{})); got != want {
			t.Errorf("grants: %s sees it: %v", who.User, got)
		}
	}
	gs, err := hub.ListGrants.Do(ctx, h, mallory, hub.None{})
	if err != nil || len(gs.Items) != 1 || !gs.Items[0].Reduced || gs.Items[0].Pattern.IsZero() {
		t.Fatalf("%+v, %v", gs, err)
	}
	if _, err := hub.RevokeGrant.Do(ctx, h, mallory, gs.Items[0].ID); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another operator takes the grant away: %v", err)
	}
	if _, err := hub.RevokeGrant.Do(ctx, h, alice, gs.Items[0].ID); err != nil {
		t.Errorf("the requester may not: %v", err)
	}

	// The journal. The rest of an answered request is for who answered it.
	for who, want := range map[*hub.Caller]bool{&alice: true, &h.owner: true, &admin: true, &mallory: false} {
		if got := has(hub.ListJournalEntries.Do(ctx, h, *who, hub.JournalQuery{From: 0, Limit: 200})); got != want {
			t.Errorf("journal: %s sees it: %v", who.User, got)
		}
		b, err := hub.GetReceipt.Do(ctx, h, *who, *ran.LogIndex)
		if want != (err == nil && len(b) > 0) || !want && fault.ReasonOf(err) != "not_found" {
			t.Errorf("receipt: %s has %d bytes, %v", who.User, len(b), err)
		}
		if _, err := hub.ProveJournalEntry.Do(ctx, h, *who, *ran.LogIndex); err != nil {
			t.Errorf("proof: %s: %v", who.User, err)
		}
	}
	if got := has(hub.GetApproval.Do(ctx, h, approver, q.ID)); got {
		t.Error("an approver who did not answer it still sees it")
	}
	p, err := hub.ListJournalEntries.Do(ctx, h, mallory, hub.JournalQuery{From: 0, Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range p.Items {
		if mine := e.Principal != ""; mine == e.Reduced || e.Time == "" || e.Type == "" || e.Reduced && e.Statement != nil {
			t.Errorf("entry %d: %+v", e.Index, e)
		}
	}
	// The changes by another policy set, for a token that manages no members.
	diff := hub.PolicyDiffQuery{Candidate: hub.PolicySet{Files: map[string]string{"none.cedar": "@id(\"none\") @untested(\"a test\") forbid (principal, action, resource);\n"}}}
	changer, _ := h.token(admin, "policy.manage")
	for who, want := range map[*hub.Caller]bool{&admin: true, &changer: false} {
		d, err := hub.DiffPolicy.Do(ctx, h, *who, diff)
		if err != nil || len(d.Changed) == 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		if got := has(d, nil); got != want {
			t.Errorf("policy diff: %s %q sees it: %v", who.User, who.Token, got)
		}
	}
	// Without policy.read: the row, and not which policies decided.
	p, err = hub.ListJournalEntries.Do(ctx, h, auditor, hub.JournalQuery{From: *ran.LogIndex, Limit: 1})
	if err != nil || p.Items[0].Outcome != "executed" || p.Items[0].Statement != nil {
		t.Errorf("%+v, %v", p.Items, err)
	}
	if _, err := hub.GetReceipt.Do(ctx, h, auditor, *ran.LogIndex); fault.ReasonOf(err) != "scope_missing" && fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("a receipt without policy.read: %v", err)
	}
}

// TestCancelTellsNoSteps: a token that may cancel runs, and not read them, learns neither
// input nor output from the answer, of a run that has ended either.
func TestCancelTellsNoSteps(t *testing.T) {
	h := newHouse(t, nil)
	r := h.start(h.owner, argv("echo", "WORD"))
	h.until(h.owner, r.ID, hub.EventRunDone)
	stop, _ := h.token(h.owner, "run.cancel")
	both, _ := h.token(h.owner, "run.cancel", "session.read")
	for c, want := range map[*hub.Caller]int{&stop: 0, &both: 1} {
		got, err := hub.CancelRun.Do(t.Context(), h, *c, r.ID)
		if err != nil || got.ID != r.ID || got.State != hub.RunDone || len(got.Steps) != want {
			t.Errorf("%+v, %v; want %d steps", got, err, want)
		}
	}
}

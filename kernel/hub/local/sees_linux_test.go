package local

import (
	"encoding/json"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/internal/fault"
	"palyra/kernel/hub"
)

// TestWhoSeesWhose: an operator learns of another's calls, requests and grants
// that they are there, and nothing that is in them. Who can answer a request sees
// it, and who manages members sees everything.
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
		"approvals": func(c hub.Caller) (any, error) { return h.Approvals(ctx, c, hub.ApprovalQuery{}) },
		"approval":  func(c hub.Caller) (any, error) { return h.Approval(ctx, c, q.ID) },
		"preview": func(c hub.Caller) (any, error) {
			p, err := h.PreviewApproval(ctx, c, q.ID, hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{}})
			return p.Text, err
		},
	} {
		for who, want := range map[*hub.Caller]bool{&alice: true, &h.owner: true, &admin: true, &approver: true, &mallory: false} {
			if got := has(look(*who)); got != want {
				t.Errorf("%s: %s %q sees it: %v", name, who.User, who.Token, got)
			}
		}
	}
	v, err := h.Approval(ctx, mallory, q.ID)
	if err != nil || !v.Reduced || v.ID != q.ID || v.Capsule != q.Capsule || v.Card.Argv == nil || v.Text != "" {
		t.Errorf("the reduced request is %+v, %v", v, err)
	}
	if p, err := h.Approvals(ctx, mallory, hub.ApprovalQuery{Run: r.ID}); err != nil || len(p.Items) != 0 {
		t.Errorf("by alice's run: %+v, %v", p.Items, err)
	}

	// A standing grant.
	if _, err := h.ResolveApproval(ctx, h.owner, q.ID, 0, hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}); err != nil {
		t.Fatal(err)
	}
	h.ended(alice, r.ID)
	for who, want := range map[*hub.Caller]bool{&alice: true, &h.owner: true, &admin: true, &mallory: false} {
		if got := has(h.Grants(ctx, *who)); got != want {
			t.Errorf("grants: %s sees it: %v", who.User, got)
		}
	}
	gs, err := h.Grants(ctx, mallory)
	if err != nil || len(gs.Items) != 1 || !gs.Items[0].Reduced || gs.Items[0].Pattern == "" {
		t.Fatalf("%+v, %v", gs, err)
	}
	if _, err := h.RevokeGrant(ctx, mallory, gs.Items[0].ID); fault.ReasonOf(err) != "no_such_grant" {
		t.Errorf("another operator takes the grant away: %v", err)
	}
	if _, err := h.RevokeGrant(ctx, alice, gs.Items[0].ID); err != nil {
		t.Errorf("the requester may not: %v", err)
	}

	// The journal. The rest of an answered request is for who answered it.
	for who, want := range map[*hub.Caller]bool{&alice: true, &h.owner: true, &admin: true, &mallory: false} {
		if got := has(h.JournalEntries(ctx, *who, 0, 200)); got != want {
			t.Errorf("journal: %s sees it: %v", who.User, got)
		}
		b, err := h.Receipt(ctx, *who, *ran.LogIndex)
		if want != (err == nil && len(b) > 0) || !want && fault.ReasonOf(err) != "no_such_entry" {
			t.Errorf("receipt: %s has %d bytes, %v", who.User, len(b), err)
		}
		if _, err := h.JournalProof(ctx, *who, *ran.LogIndex); err != nil {
			t.Errorf("proof: %s: %v", who.User, err)
		}
	}
	if got := has(h.Approval(ctx, approver, q.ID)); got {
		t.Error("an approver who did not answer it still sees it")
	}
	p, err := h.JournalEntries(ctx, mallory, 0, 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range p.Items {
		if mine := e.Principal != ""; mine == e.Reduced || e.Time == "" || e.Type == "" || e.Reduced && e.Statement != nil {
			t.Errorf("entry %d: %+v", e.Index, e)
		}
	}
	// What another policy set would have changed, for a token that manages no members.
	diff := hub.PolicyDiffQuery{Candidate: hub.PolicySet{Files: map[string]string{"none.cedar": "@id(\"none\") @untested(\"a test\") forbid (principal, action, resource);\n"}}}
	changer, _ := h.token(admin, "policy.manage")
	for who, want := range map[*hub.Caller]bool{&admin: true, &changer: false} {
		d, err := h.PolicyDiff(ctx, *who, diff)
		if err != nil || len(d.Changed) == 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		if got := has(d, nil); got != want {
			t.Errorf("policy diff: %s %q sees it: %v", who.User, who.Token, got)
		}
	}
	// Without policy.read: the row, and not which policies decided.
	p, err = h.JournalEntries(ctx, auditor, *ran.LogIndex, 1)
	if err != nil || p.Items[0].Outcome != "executed" || p.Items[0].Statement != nil {
		t.Errorf("%+v, %v", p.Items, err)
	}
	if _, err := h.Receipt(ctx, auditor, *ran.LogIndex); fault.ReasonOf(err) != "scope_missing" && fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("a receipt without policy.read: %v", err)
	}
}

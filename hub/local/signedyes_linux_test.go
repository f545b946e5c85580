package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/passkey"
	"palyra/crypt/passkey/passkeytest"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// marked is a house with a console whose policies have a rule besides the default set's.
func marked(t *testing.T, rule string) *house {
	dir := t.TempDir()
	copyPolicies(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "60-passkey.cedar"), []byte(rule), 0o644); err != nil {
		t.Fatal(err)
	}
	waive(t, dir)
	return newHouse(t, func(c *Config, k *kernel.Config) {
		k.PolicyDir, c.PolicyDir, c.Console = dir, dir, func() string { return consoleAt }
	})
}

const passkeyForWrites = `
@id("passkey_for_writes")
forbid (principal, action == Palyra::Action::"approval.resolve", resource)
when { context.tool == "fs.write_file" }
unless { context.passkey };
`

// sign answers a question with a passkey's signature, as the console does.
func (h *house) sign(c hub.Caller, r hub.Resolution, k *passkeytest.Key) hub.Resolution {
	h.t.Helper()
	q, err := h.AskAnswer(h.t.Context(), c, r)
	if err != nil || q == nil {
		h.t.Fatalf("asked for a signature: %+v, %v", q, err)
	}
	s := signed(q.Challenge, nil, k)
	r.Signature = &s
	return r
}

func (h *house) resolve(c hub.Caller, r hub.Resolution) (hub.Approval, error) {
	return hub.ResolveApproval.Do(h.t.Context(), h, c, r)
}

func (h *house) asked(c hub.Caller, path string) (hub.Run, hub.Approval) {
	h.t.Helper()
	r := h.start(c, writeFile(path, "x"))
	h.until(c, r.ID, hub.EventRunWaitingApproval)
	return r, h.question(h.owner)
}

// TestSignedYes: a yes that policy marks is refused on every surface without a signature, and runs
// the call with one; the receipt has it, and a no takes none.
func TestSignedYes(t *testing.T) {
	h := marked(t, passkeyForWrites)
	ctx := t.Context()
	alice := h.member(1001, access.Admin)
	c := h.enter(h.owner)
	k, p, _ := h.add(c)
	k.Count = 1
	r, q := h.asked(alice, "a")
	if !q.Passkey {
		t.Error("the question doesn't say that it takes a passkey")
	}
	yes := hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true, Capsule: q.Capsule.String(), Comment: "fine"}}
	if v, err := hub.PreviewApproval.Do(ctx, h, h.owner, hub.PreviewQuery{ID: q.ID, Answer: yes.Answer}); err != nil || !v.Passkey || v.Void != "" {
		t.Errorf("preview: %+v, %v", v, err)
	}
	token := h.owner
	token.Surface = "unix_token"
	http := h.owner
	http.Surface = "http"
	for _, by := range []hub.Caller{h.owner, token, http, c} {
		_, err := h.resolve(by, yes)
		if d := hub.DenialOf(err); fault.ReasonOf(err) != "forbidden" || d == nil || !slices.Equal(d.Policies, []string{"passkey_for_writes"}) ||
			!strings.Contains(err.Error(), "takes a passkey") || !strings.Contains(fault.HintOf(err), "palyra console open") {
			t.Errorf("by %s: %v, hint %q", by.Surface, err, fault.HintOf(err))
		}
	}
	good := h.sign(c, yes, k)
	for _, by := range []hub.Caller{h.owner, http} { // a signature is the console's alone
		if _, err := h.resolve(by, good); fault.ReasonOf(err) != "not_approved" {
			t.Errorf("by %s with a signature: %v", by.Surface, err)
		}
	}
	a, err := h.resolve(c, good)
	if err != nil || a.State != hub.ApprovalApproved || a.Surface != hub.SurfaceConsole || a.Detail != "signed with "+p.ID+". fine" {
		t.Fatalf("%+v, %v", a, err)
	}
	r = h.ended(alice, r.ID)
	ap := h.verify(r.Steps[0]).Statement.Predicate.Approval
	if r.State != hub.RunDone || ap == nil || len(ap.Signed) != 1 || ap.Signed[0].Passkey != p.ID || ap.Signed[0].Statement.Approval != q.ID {
		t.Fatalf("%s, and the receipt has %+v", r.State, ap)
	}
	if err := passkey.VerifyYes(ap.Signed[0]); err != nil {
		t.Error(err)
	}
	r, q = h.asked(alice, "b")
	if a, err := h.resolve(h.owner, hub.Resolution{ID: q.ID, Answer: hub.Answer{}}); err != nil || a.State != hub.ApprovalDenied {
		t.Errorf("a no without a passkey: %+v, %v", a, err)
	}
	h.ended(alice, r.ID)
	if err := h.oracle(); err != nil {
		t.Error(err)
	}
}

// TestSignedYesIsBound: a signature is good for the answer, the question, the member, the page and
// the person that it was made for, and what it isn't good for leaves the question waiting.
func TestSignedYesIsBound(t *testing.T) {
	h := marked(t, passkeyForWrites)
	alice, bob := h.member(1001, access.Admin), h.member(1002, access.Admin)
	c := h.enter(h.owner)
	k, _, _ := h.add(c)
	other := h.enter(bob)
	bobs, _, _ := h.add(other)
	stranger := passkeytest.New(t, consoleSite)
	_, before := h.asked(alice, "before")
	was := h.sign(c, hub.Resolution{ID: before.ID, Version: before.Version, Answer: hub.Answer{Approve: true, Capsule: before.Capsule.String()}}, k)
	if _, err := h.resolve(c, was); err != nil {
		t.Fatal(err)
	}
	h.until(alice, before.Run, hub.EventRunDone)
	r, q := h.asked(alice, "a")
	yes := hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true, Capsule: q.Capsule.String(), Scope: "timed", For: time.Minute, Uses: 2}}
	good := h.sign(c, yes, k)
	with := func(change func(*hub.Resolution)) hub.Resolution {
		x := good
		s := *good.Signature
		x.Signature = &s
		change(&x)
		return x
	}
	at := func(site passkey.Site, flags byte) hub.Resolution { // the owner's passkey, elsewhere or otherwise
		x := *k
		x.Site, x.Flags = site, flags
		return h.sign(c, yes, &x)
	}
	for what, x := range map[string]struct {
		r   hub.Resolution
		why string
	}{
		"another scope":      {with(func(x *hub.Resolution) { x.Answer.Scope, x.Answer.For = "session", 0 }), "another challenge"},
		"once":               {with(func(x *hub.Resolution) { x.Answer = hub.Answer{Approve: true, Capsule: q.Capsule.String()} }), "another challenge"},
		"a longer time":      {with(func(x *hub.Resolution) { x.Answer.For = time.Hour }), "another challenge"},
		"more uses":          {with(func(x *hub.Resolution) { x.Answer.Uses = 0 }), "another challenge"},
		"a comment":          {with(func(x *hub.Resolution) { x.Answer.Comment = "more" }), "another challenge"},
		"a pattern":          {with(func(x *hub.Resolution) { x.Answer.Pattern = &hub.Pattern{Content: true} }), "another challenge"},
		"another capsule":    {with(func(x *hub.Resolution) { x.Answer.Capsule = before.Capsule.String() }), "the answer is to capsule"},
		"another version":    {with(func(x *hub.Resolution) { x.Version++ }), "it is pending"},
		"another question's": {with(func(x *hub.Resolution) { x.Signature = was.Signature }), "another challenge"},
		"another member's":   {with(func(x *hub.Resolution) { x.Signature = h.sign(other, yes, bobs).Signature }), "isn't one of this member's"},
		"a stranger's":       {with(func(x *hub.Resolution) { x.Signature = h.sign(c, yes, stranger).Signature }), "isn't one of this member's"},
		"without a person":   {at(consoleSite, 1<<0), "didn't verify the person"},
		"on another port":    {at(passkey.Site{RP: "localhost", Origin: "http://localhost:7143"}, k.Flags), "of origin"},
		"for another host":   {at(passkey.Site{RP: "palyra.example", Origin: consoleAt}, k.Flags), "another host"},
		"of a sign-in":       {with(func(x *hub.Resolution) { s := signed(h.challenge("n"), nil, k); x.Signature = &s }), "another challenge"},
	} {
		if _, err := h.resolve(c, x.r); err == nil || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: %v, want an error with %q", what, err, x.why)
		}
	}
	if q := h.question(h.owner); q.State != hub.ApprovalPending || len(q.Yes) > 0 {
		t.Fatalf("%+v", q)
	}
	if _, err := h.resolve(c, good); err != nil {
		t.Fatal(err)
	}
	if r = h.ended(alice, r.ID); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	if _, err := h.resolve(c, good); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("twice: %v", err)
	}
	// The grant's act has the signature, and a journal without a good one wouldn't verify.
	acts, err := hub.ListJournalEntries.Do(t.Context(), h, h.owner, hub.JournalQuery{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(acts.Items, func(e hub.JournalEntry) bool { return e.Act == "approval.grant" })
	if i < 0 || !strings.Contains(string(acts.Items[i].Statement), `"signed":"{\"statement\"`) {
		t.Errorf("the journal has no signed grant")
	}
	// It covers the same call, until its passkey is revoked.
	r = h.start(alice, writeFile("a", "x"))
	if r = h.ended(alice, r.ID); r.Steps[0].Outcome == "not_approved" {
		t.Errorf("%s %s: %+v", r.State, r.Reason, r.Steps[0])
	}
	list, err := hub.ListPasskeys.Do(t.Context(), h, c, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Principal == h.owner.User {
			if _, err := hub.RevokePasskey.Do(t.Context(), h, c, p.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	r = h.start(alice, writeFile("a", "x"))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
}

// TestSignedYesCounts: a form that is sent again is no copy of a passkey; a signature that counts no
// more than the one before is, and halts it.
func TestSignedYesCounts(t *testing.T) {
	h := marked(t, strings.Replace(passkeyForWrites, "unless { context.passkey }", "unless { context.passkey && context.approvers >= 2 }", 1))
	alice := h.member(1001, access.Admin)
	c := h.enter(h.owner)
	k, p, _ := h.add(c)
	k.Count = 5
	_, q := h.asked(alice, "a")
	yes := hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true, Capsule: q.Capsule.String()}}
	good := h.sign(c, yes, k)
	for range 2 {
		if v, err := h.resolve(c, good); err != nil || v.State != hub.ApprovalPending || !slices.Equal(v.Yes, []string{h.owner.User}) {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	k.Count = 5
	if _, err := h.resolve(c, h.sign(c, yes, k)); fault.ReasonOf(err) != "not_approved" || !strings.Contains(err.Error(), "a copy") {
		t.Errorf("a copy's: %v", err)
	}
	k.Count = 50
	list, err := hub.ListPasskeys.Do(t.Context(), h, c, hub.None{})
	if err != nil || len(list.Items) != 1 || list.Items[0].ID != p.ID || list.Items[0].State != "halted" {
		t.Fatalf("%+v, %v", list, err)
	}
	// The halted one's yes counts no more: with bob's there is one.
	bob := h.member(1002, access.Admin)
	b := h.enter(bob)
	bobs, _, _ := h.add(b)
	if v, err := h.resolve(b, h.sign(b, yes, bobs)); err != nil || v.State != hub.ApprovalPending || !slices.Equal(v.Yes, []string{bob.User}) {
		t.Errorf("%+v, %v", v, err)
	}
	carol := h.enter(h.member(1003, access.Admin))
	carols, _, _ := h.add(carol)
	if v, err := h.resolve(carol, h.sign(carol, yes, carols)); err != nil || v.State != hub.ApprovalApproved {
		t.Fatalf("%+v, %v", v, err)
	}
	r := h.ended(alice, q.Run)
	if ap := h.verify(r.Steps[0]).Statement.Predicate.Approval; r.State != hub.RunDone || len(ap.Signed) != 2 {
		t.Errorf("%s, and the receipt has %+v", r.State, ap)
	}
}

// TestSignedSelf: policy may let people approve their own calls with a passkey, which neither their
// agents nor their tokens have.
func TestSignedSelf(t *testing.T) {
	h := marked(t, `
@id("own_calls_by_passkey")
permit (principal in Palyra::Role::"owner", action == Palyra::Action::"approval.self", resource)
when { context.passkey };
`)
	c := h.enter(h.owner)
	k, _, _ := h.add(c)
	r, q := h.asked(h.owner, "a")
	yes := hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true, Capsule: q.Capsule.String()}}
	if _, err := h.resolve(h.owner, yes); !q.Passkey || fault.ReasonOf(err) != "self_approval" || !strings.Contains(fault.HintOf(err), "palyra console open") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	if _, err := h.resolve(c, h.sign(c, yes, k)); err != nil {
		t.Fatal(err)
	}
	if r = h.ended(h.owner, r.ID); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
}

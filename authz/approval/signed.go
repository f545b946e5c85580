package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// A yes that policy wants a passkey for is signed by one of the approver's. It signs a statement
// that the hub makes of the question that waits and of the answer, when it asks for the signature
// and again when it takes one. So there is nothing to keep between the two, a signature is good for
// the very answer that its person gave, and a question has one answer.

// statement returns what a yes of by's says yes to. Its origin is left to those who know pages.
func (w *waiter) statement(by By, version int64, t terms, r *Reply) call.Yes {
	y := call.Yes{Type: call.YesType, Approval: w.entry.ID, Version: version, Capsule: w.entry.Request.Capsule, PolicySet: w.entry.Request.PolicySet,
		Approver: by.Principal, Scope: t.scope, Uses: t.uses, Pattern: t.pattern}
	if t.scope == ScopeTimed {
		y.For = int64(t.life)
	}
	if r.Comment != "" {
		y.Comment = canon.Sum([]byte(r.Comment))
	}
	return y
}

// Statement returns what the passkey of by's signs for a yes to a question that waits.
func (h *Hub) Statement(ctx context.Context, id string, version int64, by By, r Reply) (call.Yes, error) {
	const op = "ask for passkey"
	e, err := h.book.Entry(ctx, id)
	if err != nil {
		return call.Yes{}, err
	}
	w := h.waiter(id)
	switch {
	case w == nil || e.State != Pending || e.Version != version:
		return call.Yes{}, fault.New(fault.Busy, "version_conflict", op, fmt.Errorf("it is %s", e.State)).WithHint("read it again")
	case !r.Approve:
		return call.Yes{}, fault.New(fault.Usage, "invalid_input", op, errors.New("a no takes no passkey"))
	}
	_, t, err := r.standing(&w.entry)
	return w.statement(by, version, t, &r), err
}

// verify returns a yes with the signature that came with it.
func (h *Hub) verify(ctx context.Context, w *waiter, by By, version int64, t terms, r *Reply) (*call.SignedYes, error) {
	if h.opt.Verify == nil {
		return nil, fault.New(fault.NotApproved, "not_approved", "answer approval", errors.New("no passkeys are known here"))
	}
	return h.opt.Verify(ctx, by, w.statement(by, version, t, r), r.Signature)
}

// signatureOf returns the yes of an approver, nil if no passkey signed it.
func signatureOf(all []*call.SignedYes, approver string) *call.SignedYes {
	for _, s := range all {
		if s.Statement.Approver == approver {
			return s
		}
	}
	return nil
}

// passkeysOf names the passkeys that signed.
func passkeysOf(all []*call.SignedYes) string {
	var ids []string
	for _, s := range all {
		ids = append(ids, s.Passkey)
	}
	return strings.Join(ids, ", ")
}

// MaxSigned bounds a signed yes as JSON, in bytes: an entry of the journal must take it.
const MaxSigned = maxDetail

// sign adds a signed yes to the detail of an act.
func sign(detail map[string]string, s *call.SignedYes) {
	if s == nil {
		return
	}
	if b, err := json.Marshal(s); err == nil && len(b) <= MaxSigned {
		detail["signed"] = string(b)
	}
}

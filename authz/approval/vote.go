package approval

import (
	"context"
	"fmt"
	"slices"

	"palyra/call"
	"palyra/internal/fault"
)

// vote is one person's yes to a question that needs more, with its credential: both are
// judged again when the last yes comes.
type vote struct {
	by     By
	terms  terms
	signed *call.SignedYes // nil: no passkey signed it
}

// vote judges a yes, whose passkey by then names. It returns the grant that the yes asks for,
// those who said yes to the same, with the yeses that passkeys signed, and whether another person
// has to. The caller holds w.mu.
func (h *Hub) vote(ctx context.Context, w *waiter, by *By, version int64, r *Reply) (g *Standing, voters []By, signed []*call.SignedYes, more bool, err error) {
	const op = "answer approval"
	no := func(err error) (*Standing, []By, []*call.SignedYes, bool, error) { return nil, nil, nil, false, err }
	g, t, err := r.standing(&w.entry)
	if err != nil {
		return no(err)
	}
	if g != nil && h.shelf.full(w.entry.Requester) {
		return no(fault.New(fault.Busy, "too_many", op, fmt.Errorf("%q has %d", w.entry.Requester, maxPerRequester)))
	}
	this := vote{terms: t}
	if r.Signature != nil {
		if this.signed, err = h.verify(ctx, w, *by, version, t, r); err != nil {
			return no(err)
		}
		by.Passkey = this.signed.Passkey
	}
	this.by = *by
	others, enough := h.concurring(ctx, w, t, by.Principal)
	voters = append(others, *by)
	verdict, err := h.judge(ctx, w.question(*by, t, voters))
	switch {
	case err != nil:
		return no(err)
	case verdict == Yes && enough:
		for _, v := range append(slices.Clone(w.yes), this) {
			if v.signed != nil && slices.Contains(voters, v.by) && v.terms == t {
				signed = append(signed, v.signed)
			}
		}
		return g, voters, signed, false, nil
	case verdict == No:
		return no(fault.New(fault.Denied, "not_permitted", op, nil))
	}
	if slices.ContainsFunc(w.yes, func(v vote) bool { return v.by == *by && v.terms == t }) {
		return nil, voters, nil, true, nil
	}
	// Each yes in other terms is another entry of the journal.
	if h.opt.Quota != nil {
		if err := h.opt.Quota(by.Principal); err != nil {
			return no(err)
		}
	}
	d := map[string]string{"requester": w.entry.Requester, "capsule": w.entry.Request.Capsule.String(), "scope": t.scope, "surface": by.Surface}
	sign(d, this.signed)
	if err = h.record(ctx, "approval.concur", w.entry.ID, *by, d); err != nil {
		return no(err)
	}
	// The newest vote counts.
	w.yes = slices.DeleteFunc(w.yes, func(v vote) bool { return v.by.Principal == by.Principal })
	w.yes = append(w.yes, this)
	return nil, voters, nil, true, nil
}

// concurring returns the others who said yes to the same and may still say so, with their
// credentials, and whether each of those yeses is enough beside the others and but's. It
// forgets a yes that is no longer permitted: another must replace it. The caller holds
// w.mu.
func (h *Hub) concurring(ctx context.Context, w *waiter, t terms, but string) (others []By, enough bool) {
	for _, v := range w.yes {
		if v.terms == t && v.by.Principal != but {
			others = append(others, v.by)
		}
	}
	for { // with fewer voters the answer about the rest may be another
		all := append(slices.Clone(others), By{Principal: but})
		enough = true
		left := slices.DeleteFunc(slices.Clone(others), func(by By) bool {
			verdict, err := h.judge(ctx, w.question(by, t, all))
			enough = enough && verdict == Yes
			gone := err != nil || verdict == No
			if gone {
				w.yes = slices.DeleteFunc(w.yes, func(v vote) bool { return v.by == by })
			}
			return gone
		})
		if len(left) == len(others) {
			return others, enough
		}
		others = left
	}
}

// question asks whether by may say yes, with voters.
func (w *waiter) question(by By, t terms, voters []By) Question {
	return Question{By: by, Subject: w.entry.Subject, Request: &w.entry.Request, Scope: t.scope, Pattern: t.bound, Approvers: namesOf(voters)}
}

func namesOf(voters []By) (names []string) {
	for _, v := range voters {
		if !slices.Contains(names, v.Principal) {
			names = append(names, v.Principal)
		}
	}
	return names
}

// Yes returns those who said yes to a question that waits for more.
func (h *Hub) Yes(id string) (names []string) {
	w := h.waiter(id)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	voters := make([]By, len(w.yes))
	for i, v := range w.yes {
		voters[i] = v.by
	}
	return namesOf(voters)
}

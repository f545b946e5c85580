package local

import (
	"context"
	"fmt"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// auditBytes is what an audit remembers of the intents of the longest journal that it takes.
const auditBytes = hub.MaxVerified * 256

func (h *Hub) verifyJournal(ctx context.Context, c hub.Caller, _ hub.None) (none hub.JournalAudit, err error) {
	release, err := h.reads(ctx, c, auditBytes)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return none, err
	}
	defer over()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return none, err
	}
	if err := verifiable(s.Size); err != nil {
		return none, err
	}
	a, err := h.k.Audit()
	if err != nil {
		return none, err
	}
	out := hub.JournalAudit{Origin: a.Journal.Origin, Size: a.Journal.Size, Root: canon.Digest(a.Journal.Root), Intents: a.Intents, Results: a.Results, Outcomes: a.Outcomes, Acts: a.Acts,
		Orphans: []uint64{}, Keys: terms(a.Keys), LogKeys: terms(a.LogKeys), Notes: append([]string{}, a.Journal.Notes...)}
	for _, o := range a.Orphans {
		out.Orphans = append(out.Orphans, o.Index)
	}
	return out, nil
}

// verifiable refuses a journal that would hold a processor for long.
func verifiable(size uint64) error {
	if size <= hub.MaxVerified {
		return nil
	}
	return fault.New(fault.Usage, "invalid_input", "verify journal", fmt.Errorf("it has %d entries; palyrad verifies %d at most", size, hub.MaxVerified)).
		WithHint("palyra journal verify --state DIR verifies one of any length, or a copy of it")
}

func terms(keys []receipt.KeyTerm) []hub.JournalKey {
	out := []hub.JournalKey{}
	for _, k := range keys {
		out = append(out, hub.JournalKey{Hint: k.Hint, From: k.From})
	}
	return out
}

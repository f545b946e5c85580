package local

import (
	"context"

	"palyra/crypt/receipt"
	"palyra/hub/store"
	"palyra/kernel"
)

// JournalResults returns the journal of a kernel as store.CheckJournal reads it.
func JournalResults(k *kernel.Kernel) store.JournalView { return results{k} }

type results struct{ k *kernel.Kernel }

// Results implements store.JournalView.
func (r results) Results(ctx context.Context, f func(store.JournalResult) error) error {
	s, err := r.k.JournalStatus(ctx)
	if err != nil {
		return err
	}
	for rec, err := range r.k.JournalEntries(0, s.Size) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return err
		}
		st, _, err := receipt.ParsePayload(env.Payload)
		if err != nil {
			return err
		}
		if st == nil || st.IsIntent() {
			continue
		}
		p := &st.Predicate
		if err := f(store.JournalResult{LogIndex: rec.Index, Call: p.CallID, Run: p.RunID, Session: p.SessionID, Outcome: p.Outcome, Capsule: p.Capsule.Digest}); err != nil {
			return err
		}
	}
	return nil
}

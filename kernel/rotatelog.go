package kernel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
)

// A rotation of the log's key goes through the steps of rotate.go, with keys/log-next.key and
// keys/log.json. The attestation key in force signs both acts. The second puts the next key in
// force: the checkpoint over it is the first that this signs, and it holds one that the old key
// signed after the introduction.
//
// A process that takes the log's lock and finds a checkpoint by another key reads the keys again,
// under the lock (logKeys), and signs with the one that signed the newest checkpoint. A process
// that died may have left that in keys/log-next.key.

// logKeys returns what tells the journal the log's keys: first those of ring, then those that the
// files have.
func (s *state) logKeys(ring *keyring.Ring) func() (journal.Keyset, error) {
	return func() (journal.Keyset, error) {
		r := ring
		if ring = nil; r == nil {
			var err error
			if r, err = s.reopen(); err != nil {
				return journal.Keyset{}, err
			}
		}
		set := journal.Keyset{Own: []*keyring.LogKey{r.Log()}, All: receipt.TrustIn(r).LogKeys()}
		if next := r.NextLog(); next != nil {
			set.Own = append(set.Own, next)
			if !slices.ContainsFunc(set.All, func(k journal.Key) bool { return k.VKey == next.VKey() }) {
				set.All = append(set.All, journal.Key{VKey: next.VKey()}) // not introduced yet
			}
		}
		return set, nil
	}
}

// LogKeys returns the history of the log's keys.
func (k *Kernel) LogKeys() *keyring.History { return logHistoryOf(k.state.held.Load().ring) }

// LogKeysNow is LogKeys, with what another process has done that the journal has seen.
func (k *Kernel) LogKeysNow(ctx context.Context) (*keyring.History, error) {
	s := k.state
	if held := s.held.Load(); s.journal.Key() != held.ring.Log().VKey() {
		if err := s.renew(ctx, held); err != nil {
			return nil, err
		}
	}
	return k.LogKeys(), nil
}

func logHistoryOf(r *keyring.Ring) *keyring.History {
	if h := r.LogHistory(); h != nil {
		return h
	}
	return keyring.NewLogHistory(r.Log().Public())
}

// RotateLogKey replaces the key that signs the journal's checkpoints in principal's name, or, with
// introduce, only introduces the next one, which a later RotateLogKey puts in force. It returns
// the history of the log's keys after it.
func (k *Kernel) RotateLogKey(ctx context.Context, principal string, introduce bool) (*keyring.History, error) {
	const op = "rotate log key"
	ctx, r, over, err := k.beginRotation(ctx)
	if err != nil {
		return nil, err
	}
	defer over()
	s := k.state
	h := logHistoryOf(r)
	if len(h.Keys) == 1 {
		if _, _, err := receipt.Rotations(ctx, s.journal, r); err != nil {
			return nil, fault.New(fault.BadState, "state_missing", op, fmt.Errorf("the journal doesn't begin with this key: %w", err)).
				WithHint("copy log-keys.json from a copy of trust/ to keys/log.json, mode 0600")
		}
	}
	if len(h.Keys) >= keyring.MaxTerms && h.Pending() == nil {
		return nil, fault.New(fault.Unavailable, "too_large", op, fmt.Errorf("the log has had %d keys", len(h.Keys)))
	}
	next := r.NextLog()
	if next == nil {
		if next, err = r.PrepareNextLog(s.dir, k.step); err != nil {
			return nil, err
		}
	}
	if !knows(h, next.Public().Hint()) {
		a := receipt.LogIntroduction(s.act(principal, time.Now()), next.Public())
		index, b, err := k.rotationStep(ctx, r.Attestation(), a, nil, receipt.TrustIn(r))
		if err != nil {
			return nil, err
		}
		k.step("key_introduced")
		h = h.IntroduceLog(next.Public(), index, a.Time, b)
	}
	if r, err = k.publishKeys(h); err != nil || introduce {
		return h, err
	}
	last, err := s.journal.Checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	pending := h.Pending()
	a := receipt.LogBeginning(s.act(principal, beginsAt(pending)), next.Public(), r.Log().Public(), pending.From-1, last)
	index, b, err := k.rotationStep(ctx, r.Attestation(), a, next, receipt.TrustIn(r))
	if err != nil {
		return nil, err
	}
	k.step("key_begun")
	h = h.Begin(index, a.Time, b)
	_, err = k.publishKeys(h)
	return h, err
}

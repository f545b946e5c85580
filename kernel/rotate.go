package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"palyra/crypt/ca"
	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	sealing "palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A rotation of the attestation key goes through these steps, each durable before the next. A
// process that dies at any of them leaves the old key or the new one in force, whichever signed
// the journal's newest entry; the next process to open the directory does the rest.
//
//	1. the next key is made: keys/att-next.key
//	2. the journal introduces it, in a statement of the key in force
//	3. trust/ has it, so that verifiers can know it before it signs
//	   (RotateKey may stop here, for as long as its caller likes)
//	4. the journal gets the next key's first statement: from that entry on it is in force
//	5. trust/ says so, and the next key takes the place of the old one, whose private half is
//	   overwritten
//
// Other processes, and other calls of this one, go on meanwhile. The journal refuses an entry
// that the key in force didn't sign (receipt.Follows); its writer reads the keys again and signs
// again. The log's key is replaced in the same steps (rotatelog.go).

// signers are the keys of the state directory, as they were read at one time. They are immutable.
type signers struct {
	ring  *keyring.Ring
	trust *receipt.Trust
}

func (s *state) hold(r *keyring.Ring) { s.held.Store(&signers{ring: r, trust: receipt.TrustIn(r)}) }

func (s *state) att() *keyring.AttestationKey { return s.held.Load().ring.Attestation() }

func (s *state) trust() *receipt.Trust { return s.held.Load().trust }

// maxRotations bounds how often a statement is signed again.
const maxRotations = 8

// rotating takes the lock for rotations.
func (s *state) rotating(ctx context.Context) (release func(), err error) {
	return keyring.HoldRotations(ctx, s.dir)
}

// knowing calls f with the trusted keys, and again if those were older than a rotation.
func (s *state) knowing(ctx context.Context, f func(*receipt.Trust) error) error {
	k := s.held.Load()
	err := f(k.trust)
	if !errors.Is(err, receipt.ErrKeyUnknown) {
		return err
	}
	if err := s.renew(ctx, k); err != nil {
		return err
	}
	if s.held.Load() == k {
		return err
	}
	return f(s.trust())
}

// renew reads the keys again, unless they are others than old by now, and ends what an
// interrupted rotation began.
func (s *state) renew(ctx context.Context, old *signers) error {
	if old != nil && s.held.Load() != old {
		return nil
	}
	release, err := s.rotating(ctx)
	if err != nil {
		return err
	}
	defer release()
	if old != nil && s.held.Load() != old {
		return nil
	}
	_, err = s.settle(ctx)
	return err
}

// settle is renew for the holder of the lock.
func (s *state) settle(ctx context.Context) (*keyring.Ring, error) {
	for _, dir := range []string{"keys", "trust"} { // of a process that was killed
		if err := durable.RemoveTemps(filepath.Join(s.dir, dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, durable.Fault("remove unfinished keys", err)
		}
	}
	r, err := s.reopen()
	if err != nil {
		return nil, err
	}
	if r.Next() == nil && r.NextLog() == nil {
		s.hold(r)
		return r, nil
	}
	if err := s.journal.Refresh(ctx); err != nil {
		return nil, err
	}
	att, log := r.History(), r.LogHistory()
	var begun, logBegun, behind bool
	if next := r.Next(); next != nil {
		if begun, err = s.signedLast(next); err != nil {
			return nil, err
		}
		behind = begun && !next.Is(currentOf(att)) || !begun && !knows(att, next.Hint())
	}
	if next := r.NextLog(); next != nil {
		logBegun = s.journal.Key() == next.VKey()
		behind = behind || logBegun && (log == nil || log.Current().VKey != next.VKey()) || !logBegun && !knows(log, next.Public().Hint())
	}
	if behind { // the files are behind the journal, or it was never told of the next key
		if att, log, err = receipt.Rotations(ctx, s.journal, r); err != nil {
			return nil, err
		}
	}
	if next := r.Next(); next != nil {
		if begun || knows(att, next.Hint()) {
			err = r.Publish(s.dir, att, func(string) {})
		} else {
			err = keyring.DropNext(s.dir)
		}
	}
	if next := r.NextLog(); next != nil && err == nil {
		if logBegun || knows(log, next.Public().Hint()) {
			err = r.Publish(s.dir, log, func(string) {})
		} else {
			err = keyring.DropNextLog(s.dir)
		}
	}
	if err != nil {
		return nil, err
	}
	if r, err = s.reopen(); err != nil {
		return nil, err
	}
	s.hold(r)
	return r, nil
}

func (s *state) reopen() (*keyring.Ring, error) {
	return keyring.OpenOptions(s.dir, s.keys)
}

func currentOf(h *keyring.History) []byte {
	if h == nil {
		return nil
	}
	return h.Current().SPKI
}

// knows reports whether the key of this hint is the introduced one in a history.
func knows(h *keyring.History, hint string) bool {
	return h != nil && h.Pending() != nil && h.Pending().Hint == hint
}

// signedLast reports whether k signed the journal's newest entry.
func (s *state) signedLast(k *keyring.AttestationKey) (bool, error) {
	size := s.journal.Size()
	if size == 0 {
		return false, nil
	}
	for rec, err := range s.journal.Entries(size-1, size) {
		if err != nil {
			return false, err
		}
		spki, err := receipt.SignedWith(rec.Leaf)
		return err == nil && k.Is(spki), nil
	}
	return false, fault.New(fault.Internal, "internal", "read journal", errors.New("its newest entry is gone"))
}

// Keys returns the history of the attestation keys.
func (k *Kernel) Keys() *keyring.History {
	r := k.state.held.Load().ring
	if h := r.History(); h != nil {
		return h
	}
	return keyring.NewHistory(r.Attestation().SPKI())
}

// beginRotation takes the lock for rotations, and returns the keys of now. Whoever asked may go
// away: with the context that it returns, a rotation that began goes on.
func (k *Kernel) beginRotation(ctx context.Context) (_ context.Context, r *keyring.Ring, over func(), err error) {
	if err := k.enter(); err != nil {
		return nil, nil, nil, err
	}
	ctx = context.WithoutCancel(ctx)
	release, err := k.state.rotating(ctx)
	if err != nil {
		k.calls.Done()
		return nil, nil, nil, err
	}
	over = func() {
		release()
		k.calls.Done()
	}
	if r, err = k.state.settle(ctx); err != nil {
		over()
		return nil, nil, nil, err
	}
	return ctx, r, over, nil
}

// RotateKey replaces the attestation key in principal's name, or, with introduce, only introduces
// the next one, which a later RotateKey puts in force. It returns the history of keys after it.
func (k *Kernel) RotateKey(ctx context.Context, principal string, introduce bool) (*keyring.History, error) {
	const op = "rotate attestation key"
	ctx, r, over, err := k.beginRotation(ctx)
	if err != nil {
		return nil, err
	}
	defer over()
	s := k.state
	h := r.History()
	if h == nil {
		if s.journal.Size() > 0 {
			first, err := s.firstKey()
			if err != nil {
				return nil, err
			}
			if !r.Attestation().Is(first) {
				return nil, fault.New(fault.BadState, "state_missing", op, errors.New("the journal began with another key, and keys/att.json, which says so, is gone")).
					WithHint("copy keys.json from a copy of trust/ to keys/att.json, mode 0600")
			}
		}
		h = keyring.NewHistory(r.Attestation().SPKI())
	}
	if len(h.Keys) >= keyring.MaxTerms && h.Pending() == nil {
		return nil, fault.New(fault.Unavailable, "too_large", op, fmt.Errorf("the log has had %d keys", len(h.Keys)))
	}
	next := r.Next()
	if next == nil {
		if next, err = r.PrepareNext(s.dir, k.step); err != nil {
			return nil, err
		}
	}
	if !knows(h, next.Hint()) {
		a := receipt.Introduction(s.act(principal, time.Now()), next.SPKI())
		index, b, err := k.rotationStep(ctx, r.Attestation(), a, nil, receipt.TrustIn(r))
		if err != nil {
			return nil, err
		}
		k.step("key_introduced")
		h = h.Introduce(next.SPKI(), index, a.Time, b)
	}
	if r, err = k.publishKeys(h); err != nil || introduce {
		return h, err
	}
	pending := h.Pending()
	a := receipt.Beginning(s.act(principal, beginsAt(pending)), next.SPKI(), r.Attestation().SPKI(), pending.From-1)
	index, b, err := k.rotationStep(ctx, next, a, nil, receipt.TrustIn(r))
	if err != nil {
		return nil, err
	}
	k.step("key_begun")
	h = h.Begin(index, a.Time, b)
	_, err = k.publishKeys(h)
	return h, err
}

// beginsAt is now, but not before the introduction of a key, even if the host's clock was set back.
func beginsAt(pending *keyring.Term) time.Time {
	now := time.Now()
	if t, err := time.Parse(time.RFC3339, pending.ValidFor.Start); err == nil && now.Before(t) {
		return t
	}
	return now
}

// act is the common part of a rotation's acts.
func (s *state) act(principal string, at time.Time) receipt.Act {
	return receipt.Act{Principal: principal, Seq: s.journal.Size(), Time: stamp(at), BootID: s.boot}
}

// rotationStep logs an act of a rotation, which puts a key of the log in force unless log is nil,
// and returns its receipt.
func (k *Kernel) rotationStep(ctx context.Context, key *keyring.AttestationKey, a receipt.Act, log *keyring.LogKey, t *receipt.Trust) (uint64, []byte, error) {
	s := k.state
	e, err := receipt.ActEntry(key, a)
	if err != nil {
		return 0, nil, err
	}
	pos, err := s.journal.Append(ctx, journal.Entry{Leaf: e.Leaf(), Content: e.Content(), Key: log})
	if err != nil {
		return 0, nil, err
	}
	k.logged(a.Principal, e)
	p, err := s.journal.Prove(ctx, pos.Index)
	if err != nil {
		return 0, nil, err
	}
	b, err := e.Bundle(p, t)
	return pos.Index, b, err
}

// publishKeys brings the files up to h and reads them. The caller holds the lock for rotations.
func (k *Kernel) publishKeys(h *keyring.History) (*keyring.Ring, error) {
	s := k.state
	r, err := s.reopen()
	if err != nil {
		return nil, err
	}
	if err := r.Publish(s.dir, h, k.step); err != nil {
		return nil, err
	}
	if r, err = s.reopen(); err != nil {
		return nil, err
	}
	s.hold(r)
	return r, nil
}

// firstKey returns the key of the journal's first entry.
func (s *state) firstKey() ([]byte, error) {
	for rec, err := range s.journal.Entries(0, 1) {
		if err != nil {
			return nil, err
		}
		return receipt.SignedWith(rec.Leaf)
	}
	return nil, fault.New(fault.Internal, "internal", "read journal", errors.New("it has no first entry"))
}

// SealKeys seals the private keys for recipients, in principal's name, or writes them plain if
// there are none: those that sign the journal, and then those of the certificate authority. An
// identity of Config.Unlock must be among the recipients.
func (k *Kernel) SealKeys(ctx context.Context, principal string, to []*sealing.PublicKey) error {
	const op = "seal signing keys"
	if err := k.enter(); err != nil {
		return err
	}
	defer k.calls.Done()
	ctx = context.WithoutCancel(ctx)
	s := k.state
	if len(to) > 0 && s.keys.Unlock == nil {
		return fault.New(fault.Usage, "invalid_input", op, errors.New("without an identity they couldn't be opened again"))
	}
	if err := k.sealRing(ctx, principal, to); err != nil {
		return err
	}
	// Behind the lock for rotations, which a change of the authority's needs to record itself.
	return ca.Reseal(ctx, s.dir, k.KeyFiles(), k.step)
}

// sealRing seals the signing keys, or writes them plain.
func (k *Kernel) sealRing(ctx context.Context, principal string, to []*sealing.PublicKey) error {
	s := k.state
	release, err := s.rotating(ctx)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.settle(ctx)
	if err != nil {
		return err
	}
	if len(to) > 0 {
		if err := opens(s.keys.Unlock, to); err != nil {
			return err
		}
	}
	// The journal first: what is sealed and not recorded is worse than the other way round.
	a := Act{Act: "keys.seal", Principal: principal, Detail: map[string]string{}}
	for _, p := range to {
		a.Detail["recipient."+p.Label()] = p.ID().String()
	}
	if len(to) == 0 {
		a.Act = "keys.unseal"
	}
	e, err := receipt.ActEntry(r.Attestation(), receipt.Act{Version: receipt.ActVersion, Act: a.Act, Principal: principal,
		Seq: s.journal.Size(), Time: stamp(time.Now()), BootID: s.boot, Detail: a.Detail})
	if err != nil {
		return err
	}
	if _, err := s.appendOnce(ctx, e, false, nil, nil); err != nil {
		return err
	}
	k.logged(principal, e)
	if len(to) == 0 {
		if err := keyring.Acknowledge(s.dir, principal); err != nil {
			return err
		}
	}
	if err := r.Seal(s.dir, to, k.step); err != nil {
		return err
	}
	if r, err = s.reopen(); err != nil {
		return err
	}
	s.hold(r)
	return nil
}

// opens checks that keys can be sealed for recipients, before the journal says that they are, and
// that an identity opens them.
func opens(unlock keyring.Unlock, to []*sealing.PublicKey) error {
	const op = "seal signing keys"
	id, err := unlock()
	if err != nil {
		return err
	}
	defer id.Wipe()
	try := sealing.NewKey()
	defer try.Wipe()
	opened := false
	for i, p := range to {
		if i >= keyring.MaxRecipients || slices.ContainsFunc(to[:i], func(o *sealing.PublicKey) bool { return o.Label() == p.Label() || o.ID() == p.ID() }) {
			return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("recipient %q is there twice, or one of more than %d", p.Label(), keyring.MaxRecipients))
		}
		c := sealing.Context{Purpose: "keys/try"}
		s, err := p.Wrap(try, c)
		if err != nil {
			return err
		}
		if got, err := id.Unwrap(s, c); err == nil {
			got.Wipe()
			opened = true
		}
	}
	if opened {
		return nil
	}
	return fault.New(fault.Denied, "keys_locked", op, errors.New("the identity is none of the recipients', and couldn't open them again")).
		WithHint("name the identity: palyra --key FILE, palyrad keys.identity")
}

package receipt

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// A rotation replaces the attestation key, and the journal is where it happens. The key in force
// signs an act that names its successor: from then on that is introduced, and may begin. Its
// first statement is an act that says so. From that entry on every statement is its own, and the
// entries before are the old key's. Follows keeps this order as entries are appended, Audit and
// LoadTrust demand it of what they read.

// The acts of a rotation. Their subject is SubjectAttestation.
const (
	// ActIntroduce has the details key (sha256:… of the next key's SubjectPublicKeyInfo), spki
	// (that, in base64) and not_before (RFC 3339, no later than the time of its ActBegin).
	ActIntroduce = "keys.introduce"
	// ActBegin has the details key, previous (the key that ends, likewise) and introduced (the
	// index of the ActIntroduce).
	ActBegin = "keys.begin"
	// SubjectAttestation says which key is replaced.
	SubjectAttestation = "attestation"
)

// ErrKeyOver says that an entry isn't signed by the key in force.
var ErrKeyOver = errors.New("another attestation key is in force")

// ErrKeyUnknown says that a key is none of the trusted ones.
var ErrKeyUnknown = errors.New("the key is none of those that are trusted")

// KeyDigest names a key in the details of acts.
func KeyDigest(spki []byte) canon.Digest { return canon.Sum(spki) }

// Introduction returns a as the act that introduces a key, which may begin at a's time.
func Introduction(a Act, spki []byte) Act {
	a.Version, a.Act, a.Subject = ActVersion, ActIntroduce, SubjectAttestation
	a.Detail = map[string]string{"key": KeyDigest(spki).String(), "spki": base64.StdEncoding.EncodeToString(spki), "not_before": a.Time}
	return a
}

// Beginning returns a as the first statement of a key, which the entry at introduced named.
func Beginning(a Act, spki, previous []byte, introduced uint64) Act {
	a.Version, a.Act, a.Subject = ActVersion, ActBegin, SubjectAttestation
	a.Detail = map[string]string{"key": KeyDigest(spki).String(), "previous": KeyDigest(previous).String(),
		"introduced": strconv.FormatUint(introduced, 10)}
	return a
}

// introduced reads an ActIntroduce.
func introduced(a *Act) (spki []byte, notBefore time.Time, err error) {
	if a == nil || a.Act != ActIntroduce || a.Subject != SubjectAttestation || len(a.Detail) != 3 {
		return nil, notBefore, errors.New("it introduces no key")
	}
	if spki, err = base64.StdEncoding.Strict().DecodeString(a.Detail["spki"]); err != nil {
		return nil, notBefore, errors.New("the introduced key is not base64")
	}
	if _, err := keyring.ParseAttestationPublic(spki); err != nil {
		return nil, notBefore, err
	}
	if a.Detail["key"] != KeyDigest(spki).String() {
		return nil, notBefore, errors.New("the introduced key has another digest")
	}
	if err := checkTime(a.Detail["not_before"]); err != nil {
		return nil, notBefore, err
	}
	notBefore, err = time.Parse(time.RFC3339Nano, a.Detail["not_before"])
	return spki, notBefore, err
}

// begins checks that a is the first statement of the key spki, in the place of previous, after
// its introduction at an index.
func begins(a *Act, spki, previous []byte, index uint64, notBefore time.Time) error {
	if a == nil || a.Act != ActBegin || a.Subject != SubjectAttestation || len(a.Detail) != 3 {
		return errors.New("it begins no key")
	}
	for name, want := range map[string]string{"key": KeyDigest(spki).String(), "previous": KeyDigest(previous).String(),
		"introduced": strconv.FormatUint(index, 10)} {
		if a.Detail[name] != want {
			return fmt.Errorf("it begins with %s %q, want %q", name, clip(a.Detail[name]), want)
		}
	}
	if t, err := time.Parse(time.RFC3339Nano, a.Time); err != nil || t.Before(notBefore) {
		return fmt.Errorf("it begins at %s, and the key was introduced for %s", a.Time, notBefore.Format(time.RFC3339Nano))
	}
	return nil
}

// The end of a leaf: the key that signed, in base64.
const (
	beforeKey = `"rawBytes":"`
	afterKey  = `"}}}}}}`
)

// keyIn returns the key of a leaf, in base64.
func keyIn(leaf []byte) ([]byte, bool) {
	rest, ok := bytes.CutSuffix(leaf, []byte(afterKey))
	i := bytes.LastIndex(rest, []byte(beforeKey))
	if !ok || i < 0 {
		return nil, false
	}
	return rest[i+len(beforeKey):], true
}

// SignedWith returns the SubjectPublicKeyInfo in a leaf. It verifies nothing.
func SignedWith(leaf []byte) ([]byte, error) {
	b, ok := keyIn(leaf)
	if !ok {
		return nil, errors.New("the leaf has no key")
	}
	return base64.StdEncoding.Strict().DecodeString(string(b))
}

// Follows is journal.Options.Follows: an entry is signed by the key that signed the last one, or
// is the first statement of that key's successor. ErrKeyOver is for any other.
func Follows(last []byte, next *journal.Entry) error {
	if last == nil {
		return nil
	}
	before, ok := keyIn(last)
	now, is := keyIn(next.Leaf)
	if ok && is && bytes.Equal(before, now) {
		return nil
	}
	over := fault.New(fault.Busy, "version_conflict", "append to journal", ErrKeyOver)
	previous, err := SignedWith(last)
	if err != nil {
		return over
	}
	spki, err := SignedWith(next.Leaf)
	if err != nil {
		return over
	}
	e, err := ParseEnvelope(next.Content)
	if err != nil {
		return over
	}
	_, a, err := ParsePayload(e.Payload)
	if err != nil || a == nil || a.Act != ActBegin || a.Detail["key"] != KeyDigest(spki).String() || a.Detail["previous"] != KeyDigest(previous).String() {
		return over
	}
	return nil
}

// Prover proves entries of a journal: *journal.Journal.
type Prover interface {
	Size() uint64
	Entries(from, to uint64) iter.Seq2[journal.Record, error]
	Prove(ctx context.Context, index uint64) (journal.Proof, error)
}

// Rotations reads the whole journal of a ring and returns the history of its attestation keys,
// with receipts under the newest checkpoint; nil if there was one key only and none is
// introduced.
func Rotations(ctx context.Context, j Prover, log *keyring.LogKey) (*keyring.History, error) {
	var h *keyring.History
	var t *Trust
	var pending []introduction
	for rec, err := range j.Entries(0, j.Size()) {
		if err != nil {
			return nil, err
		}
		if rec.Index == 0 {
			spki, err := SignedWith(rec.Leaf)
			if err == nil {
				t, err = NewTrust(spki, log.VKey())
			}
			if err != nil {
				return nil, broken("key", fmt.Errorf("entry 0: %w", err))
			}
			h = keyring.NewHistory(spki)
		}
		a, err := rotationIn(&rec)
		if err != nil || a == nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		e, err := entryOf(&rec)
		if err != nil {
			return nil, err
		}
		p, err := j.Prove(ctx, rec.Index)
		if err != nil {
			return nil, err
		}
		var in introduction
		if a.Act == ActIntroduce {
			in, err = t.introduce(a, rec.Index, e.spki)
			pending = append(pending, in)
		} else {
			in, err = t.begin(a, rec.Index, e.spki, pending)
			pending = nil
		}
		if err != nil {
			return nil, broken("key", fmt.Errorf("entry %d: %w", rec.Index, err))
		}
		b, err := e.Bundle(p, t)
		if err != nil {
			return nil, err
		}
		if a.Act == ActIntroduce {
			h = h.Introduce(in.spki, rec.Index, in.start, b)
		} else {
			if !bytes.Equal(h.Pending().SPKI, in.spki) { // a later introduction took its place
				h = h.Introduce(in.spki, in.index, in.start, in.receipt)
			}
			h = h.Begin(rec.Index, a.Time, b)
		}
		for i := range pending {
			if pending[i].index == rec.Index {
				pending[i].receipt = b
			}
		}
	}
	if h != nil && len(h.Keys) == 1 {
		return nil, nil
	}
	return h, nil
}

// introduction is a key that may begin.
type introduction struct {
	spki      []byte
	index     uint64
	start     string // not_before
	notBefore time.Time
	receipt   []byte
}

// introduce checks an ActIntroduce that the key signer signed at an index.
func (t *Trust) introduce(a *Act, index uint64, signer []byte) (introduction, error) {
	in := introduction{index: index, start: a.Detail["not_before"]}
	var err error
	if in.spki, in.notBefore, err = introduced(a); err != nil {
		return in, err
	}
	if _, err := t.at(signer, index); err != nil {
		return in, err
	}
	if t.find(in.spki) != nil {
		return in, errors.New("it introduces a key that was in force before")
	}
	return in, nil
}

// begin checks an ActBegin that the key signer signed at an index, and puts that key in force.
func (t *Trust) begin(a *Act, index uint64, signer []byte, pending []introduction) (introduction, error) {
	old := t.current()
	for _, in := range pending {
		if !bytes.Equal(in.spki, signer) || a.Detail["introduced"] != strconv.FormatUint(in.index, 10) {
			continue
		}
		if err := begins(a, in.spki, old.spki, in.index, in.notBefore); err != nil {
			return in, err
		}
		old.to = index
		t.keys = append(t.keys, term{spki: in.spki, hint: keyring.HintOf(in.spki), from: index, to: noEnd})
		return in, nil
	}
	return introduction{}, errors.New("it begins with a key that the journal doesn't introduce")
}

// spelledKeys is how the acts of rotations stand in a payload, which has one spelling.
var spelledKeys = []byte(`"act":"keys.`)

// rotationIn returns the act of a rotation in an entry, nil if it has none.
func rotationIn(rec *journal.Record) (*Act, error) {
	if rec.Erased {
		return nil, nil // acts are never erased
	}
	e, err := ParseEnvelope(rec.Content)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(e.Payload, spelledKeys) {
		return nil, nil
	}
	_, a, err := ParsePayload(e.Payload)
	if err != nil || a == nil || a.Act != ActIntroduce && a.Act != ActBegin {
		return nil, err
	}
	return a, nil
}

// entryOf returns an entry as it was signed, with the key in its leaf. It verifies that the
// content is the leaf's, and no signature.
func entryOf(rec *journal.Record) (*Entry, error) {
	env, err := ParseEnvelope(rec.Content)
	if err != nil {
		return nil, err
	}
	spki, err := SignedWith(rec.Leaf)
	if err != nil {
		return nil, broken("leaf", err)
	}
	leaf, err := leafOf(env, spki)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(leaf, rec.Leaf) {
		return nil, broken("leaf", errors.New("the envelope kept beside the leaf is not the one that was logged"))
	}
	return &Entry{leaf: leaf, envelope: env, content: env.Encode(), spki: spki}, nil
}

// Logged returns an entry of the journal, signed by the key that was in force at its place. An
// error that is ErrKeyUnknown may mean that t is older than a rotation.
func (t *Trust) Logged(rec *journal.Record) (*Entry, error) {
	e, err := entryOf(rec)
	if err != nil {
		return nil, err
	}
	if _, err := t.at(e.spki, rec.Index); err != nil {
		return nil, broken("key", err)
	}
	return e, nil
}

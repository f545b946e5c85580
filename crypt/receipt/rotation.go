package receipt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"slices"
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
//
// The key of the log, which signs its checkpoints, is replaced likewise. The attestation key in
// force signs both acts, and the second holds a checkpoint by the old key, of a log with the
// introduction in it: the holder of the attestation key alone can't replace the log's. From the
// second act on every checkpoint is the new key's.

// The acts of a rotation. Their subject is SubjectAttestation or SubjectLog.
const (
	// ActIntroduce has the details key (sha256:… of the next key's SubjectPublicKeyInfo, or the
	// log's identity under it), spki (that, in base64) or vkey, and not_before (RFC 3339, no later
	// than the time of its ActBegin).
	ActIntroduce = "keys.introduce"
	// ActBegin has the details key, previous (the key that ends, likewise) and introduced (the
	// index of the ActIntroduce); of a log's key also checkpoint.
	ActBegin = "keys.begin"
	// SubjectAttestation and SubjectLog say which key is replaced.
	SubjectAttestation = "attestation"
	SubjectLog         = "log"
)

// ErrKeyOver says that an entry isn't signed by the key in force.
var ErrKeyOver = errors.New("another attestation key is in force")

// ErrKeyUnknown says that a key is none of the trusted ones.
var ErrKeyUnknown = errors.New("the key is none of those that are trusted")

// KeyDigest names a key in the details of acts.
func KeyDigest(spki []byte) canon.Digest { return canon.Sum(spki) }

// LogKeyDigest names a log's key in the details of acts.
func LogKeyDigest(p *keyring.LogPublic) canon.Digest { return canon.Digest(p.ID) }

// Introduction returns a as the act that introduces a key, which may begin at a's time.
func Introduction(a Act, spki []byte) Act {
	a.Version, a.Act, a.Subject = ActVersion, ActIntroduce, SubjectAttestation
	a.Detail = map[string]string{"key": KeyDigest(spki).String(), "spki": base64.StdEncoding.EncodeToString(spki), "not_before": a.Time}
	return a
}

// LogIntroduction is Introduction for a key of the log.
func LogIntroduction(a Act, p *keyring.LogPublic) Act {
	a.Version, a.Act, a.Subject = ActVersion, ActIntroduce, SubjectLog
	a.Detail = map[string]string{"key": LogKeyDigest(p).String(), "vkey": p.VKey(), "not_before": a.Time}
	return a
}

// Beginning returns a as the first statement of a key, which the entry at introduced named.
func Beginning(a Act, spki, previous []byte, introduced uint64) Act {
	a.Version, a.Act, a.Subject = ActVersion, ActBegin, SubjectAttestation
	a.Detail = map[string]string{"key": KeyDigest(spki).String(), "previous": KeyDigest(previous).String(),
		"introduced": strconv.FormatUint(introduced, 10)}
	return a
}

// LogBeginning returns a as the act that puts a key of the log in force. checkpoint is by the key
// before it, of a log that has the entry at introduced.
func LogBeginning(a Act, p, previous *keyring.LogPublic, introduced uint64, checkpoint []byte) Act {
	a.Version, a.Act, a.Subject = ActVersion, ActBegin, SubjectLog
	a.Detail = map[string]string{"key": LogKeyDigest(p).String(), "previous": LogKeyDigest(previous).String(),
		"introduced": strconv.FormatUint(introduced, 10), "checkpoint": string(checkpoint)}
	return a
}

// introduced reads an ActIntroduce.
func introduced(a *Act) (in introduction, err error) {
	if a == nil || a.Act != ActIntroduce || len(a.Detail) != 3 {
		return in, errors.New("it introduces no key")
	}
	in.subject, in.start = a.Subject, a.Detail["not_before"]
	digest := ""
	switch a.Subject {
	case SubjectAttestation:
		if in.spki, err = base64.StdEncoding.Strict().DecodeString(a.Detail["spki"]); err != nil {
			return in, errors.New("the introduced key is not base64")
		}
		_, err = keyring.ParseAttestationPublic(in.spki)
		digest = KeyDigest(in.spki).String()
	case SubjectLog:
		if in.log, err = keyring.ParseVKey(a.Detail["vkey"]); err == nil {
			digest = LogKeyDigest(in.log).String()
		}
	default:
		return in, errors.New("it introduces no key")
	}
	if err != nil {
		return in, err
	}
	if a.Detail["key"] != digest {
		return in, errors.New("the introduced key has another digest")
	}
	if err := checkTime(in.start); err != nil {
		return in, err
	}
	in.notBefore, err = time.Parse(time.RFC3339Nano, in.start)
	return in, err
}

// begins checks that a puts a key in force, in the place of previous, after its introduction.
func (in *introduction) begins(a *Act, previous *term) error {
	details := 3
	if in.log != nil {
		details = 4
	}
	if a == nil || a.Act != ActBegin || a.Subject != in.subject || len(a.Detail) != details {
		return errors.New("it begins no key")
	}
	for name, want := range map[string]string{"key": in.term().digest(), "previous": previous.digest(),
		"introduced": strconv.FormatUint(in.index, 10)} {
		if a.Detail[name] != want {
			return fmt.Errorf("it begins with %s %q, want %q", name, clip(a.Detail[name]), want)
		}
	}
	if t, err := time.Parse(time.RFC3339Nano, a.Time); err != nil || t.Before(in.notBefore) {
		return fmt.Errorf("it begins at %s, and the key was introduced for %s", a.Time, in.notBefore.Format(time.RFC3339Nano))
	}
	return nil
}

// handover checks the checkpoint in the act at an index that puts a log's key in force.
func (in *introduction) handover(a *Act, index uint64, previous *term) (err error) {
	if in.last, err = journal.OpenCheckpoint([]byte(a.Detail["checkpoint"]), previous.log.VKey()); err != nil {
		return fmt.Errorf("its checkpoint by the key before: %w", err)
	}
	if in.last.Size <= in.index || in.last.Size > index {
		return fmt.Errorf("its checkpoint by the key before has size %d, want %d to %d", in.last.Size, in.index+1, index)
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
	if next.Key != nil {
		if err := putsInForce(next); err != nil {
			return err
		}
	}
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

// putsInForce refuses a key of the log for any entry but the act that says so.
func putsInForce(next *journal.Entry) error {
	e, err := ParseEnvelope(next.Content)
	if err != nil {
		return err
	}
	_, a, err := ParsePayload(e.Payload)
	if err != nil {
		return err
	}
	if a == nil || a.Act != ActBegin || a.Subject != SubjectLog || a.Detail["key"] != LogKeyDigest(next.Key.Public()).String() {
		return fault.New(fault.Usage, "invalid_input", "append to journal", errors.New("the entry doesn't put the log's key in force"))
	}
	return nil
}

// Prover proves entries of a journal: *journal.Journal.
type Prover interface {
	Size() uint64
	Entries(from, to uint64) iter.Seq2[journal.Record, error]
	Prove(ctx context.Context, index uint64) (journal.Proof, error)
}

// Rotations reads the whole journal of a ring and returns the histories of its attestation keys
// and of the log's, each nil if there was one key only and none is introduced. Receipts that the
// ring has are kept, since each is under the key of its time; the others are under the newest
// checkpoint.
func Rotations(ctx context.Context, j Prover, r *keyring.Ring) (att, log *keyring.History, err error) {
	kept, err := receiptsOf(r.History(), r.LogHistory())
	if err != nil {
		return nil, nil, err
	}
	first := r.Log().Public()
	if h := r.LogHistory(); h != nil {
		if first, err = keyring.ParseVKey(h.Keys[0].VKey); err != nil {
			return nil, nil, err
		}
	}
	var t *Trust
	var pending []introduction
	for rec, err := range j.Entries(0, j.Size()) {
		if err != nil {
			return nil, nil, err
		}
		if rec.Index == 0 {
			spki, err := SignedWith(rec.Leaf)
			if err == nil {
				t, err = NewTrust(spki, first.VKey())
			}
			if err != nil {
				return nil, nil, broken("key", fmt.Errorf("entry 0: %w", err))
			}
			att, log = keyring.NewHistory(spki), keyring.NewLogHistory(first)
		}
		a, err := rotationIn(&rec)
		if err != nil || a == nil {
			if err != nil {
				return nil, nil, err
			}
			continue
		}
		e, err := entryOf(&rec)
		if err != nil {
			return nil, nil, err
		}
		var in introduction
		if a.Act == ActIntroduce {
			in, err = t.introduce(a, rec.Index, e.spki)
		} else {
			in, err = t.begin(a, rec.Index, e.spki, pending)
		}
		if err != nil {
			return nil, nil, broken("key", fmt.Errorf("entry %d: %w", rec.Index, err))
		}
		b := kept[rec.Index]
		if b == nil {
			p, err := j.Prove(ctx, rec.Index)
			if err != nil {
				return nil, nil, err
			}
			if b, err = e.Bundle(p, t); err != nil {
				return nil, nil, err
			}
		}
		h := &att
		if in.log != nil {
			h = &log
		}
		if a.Act == ActIntroduce {
			in.receipt = b
			pending = append(pending, in)
			*h = in.into(*h)
			continue
		}
		pending = without(pending, in.subject)
		if p := (*h).Pending(); p == nil || p.Hint != in.term().hint { // a later introduction took its place
			*h = in.into(*h)
		}
		*h = (*h).Begin(rec.Index, a.Time, b)
	}
	for _, h := range []**keyring.History{&att, &log} {
		if *h != nil && len((*h).Keys) == 1 {
			*h = nil
		}
	}
	return att, log, nil
}

// into returns h with the introduced key.
func (in *introduction) into(h *keyring.History) *keyring.History {
	if in.log != nil {
		return h.IntroduceLog(in.log, in.index, in.start, in.receipt)
	}
	return h.Introduce(in.spki, in.index, in.start, in.receipt)
}

// receiptsOf returns the receipts in histories by their indexes.
func receiptsOf(hs ...*keyring.History) (map[uint64][]byte, error) {
	kept := make(map[uint64][]byte)
	for _, e := range stepsOf(hs...) {
		if e.err != nil {
			return nil, broken("key", e.err)
		}
		kept[e.index] = e.receipt
	}
	return kept, nil
}

// step is an introduction or a beginning in a history.
type step struct {
	index   uint64 // in the log, as its receipt says
	begins  bool
	receipt []byte
	h       *keyring.History
	key     int // in h
	err     error
}

// stepsOf returns the steps of histories in their order in the log.
func stepsOf(hs ...*keyring.History) (steps []step) {
	for _, h := range hs {
		for i := 1; h != nil && i < len(h.Keys); i++ {
			for n, b := range [][]byte{h.Keys[i].Introduced, h.Keys[i].Begun} {
				if b == nil {
					continue
				}
				index, err := indexIn(b)
				steps = append(steps, step{index: index, begins: n == 1, receipt: b, h: h, key: i, err: err})
			}
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.index, b.index) })
	return steps
}

// introduction is a key that may begin.
type introduction struct {
	subject   string
	spki      []byte             // of an attestation key
	log       *keyring.LogPublic // a log's key
	index     uint64
	start     string // not_before
	notBefore time.Time
	receipt   []byte
	last      journal.Checkpoint // of a log's key that has begun: by the one before it
}

// term returns the key as one that is trusted.
func (in *introduction) term() *term {
	if in.log != nil {
		return &term{log: in.log, hint: in.log.Hint(), to: noEnd}
	}
	return &term{spki: in.spki, hint: keyring.HintOf(in.spki), to: noEnd}
}

// without returns the introductions of other subjects.
func without(pending []introduction, subject string) (out []introduction) {
	for _, in := range pending {
		if in.subject != subject {
			out = append(out, in)
		}
	}
	return out
}

// of returns the trusted keys that an introduction is of, those of the log or the others.
func (t *Trust) of(in *introduction) *[]term {
	if in.log != nil {
		return &t.logs
	}
	return &t.keys
}

// introduce checks an ActIntroduce that the key signer signed at an index.
func (t *Trust) introduce(a *Act, index uint64, signer []byte) (introduction, error) {
	in, err := introduced(a)
	if err != nil {
		return in, err
	}
	in.index = index
	k, err := t.at(signer, index)
	if err != nil {
		return in, err
	}
	if k.pending {
		return in, errors.New("it is signed by a key that isn't in force")
	}
	if in.log != nil && in.log.Origin != t.Origin() {
		return in, errors.New("it introduces the key of another log")
	}
	if k := byHint(*t.of(&in), in.term().hint); k != nil && !k.pending {
		return in, errors.New("it introduces a key that was in force before")
	}
	return in, nil
}

// begin checks an ActBegin that the key signer signed at an index, and puts its key in force.
func (t *Trust) begin(a *Act, index uint64, signer []byte, pending []introduction) (introduction, error) {
	for _, in := range pending {
		if a.Subject != in.subject || a.Detail["introduced"] != strconv.FormatUint(in.index, 10) ||
			in.log == nil && !bytes.Equal(in.spki, signer) {
			continue
		}
		keys := t.of(&in)
		old := current(*keys)
		if err := in.begins(a, old); err != nil {
			return in, err
		}
		if in.log != nil {
			k, err := t.at(signer, index)
			if err == nil && k.pending {
				err = errors.New("it is signed by a key that isn't in force")
			}
			if err == nil {
				err = in.handover(a, index, old)
			}
			if err != nil {
				return in, err
			}
		}
		*keys = slices.DeleteFunc(slices.Clone(*keys), func(k term) bool { return k.pending })
		current(*keys).to = index
		k := in.term()
		k.from = index
		*keys = append(*keys, *k)
		return in, nil
	}
	return introduction{}, errors.New("it begins with a key that the journal doesn't introduce")
}

// spelledKeys is how the acts of rotations stand in a payload, which has one spelling.
var spelledKeys = []byte(`"act":"keys.`)

// rotationIn returns the act of a rotation in an entry, nil if it has none.
func rotationIn(rec *journal.Record) (*Act, error) {
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

package receipt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// bundle is a Sigstore bundle v0.3 in the JSON form of its protocol buffer:
// 64-bit numbers are strings, bytes are base64. Only what a receipt has is
// here; anything else in a file is refused.
type bundle struct {
	MediaType    string   `json:"mediaType"`
	Verification material `json:"verificationMaterial"`
	Envelope     Envelope `json:"dsseEnvelope"`
}

type material struct {
	PublicKey hint    `json:"publicKey"`
	TLog      []entry `json:"tlogEntries"`
}

type hint struct {
	Hint string `json:"hint"`
}

type entry struct {
	LogIndex       decimal `json:"logIndex"`
	LogID          logID   `json:"logId"`
	KindVersion    kind    `json:"kindVersion"`
	IntegratedTime string  `json:"integratedTime"` // "0": the log states no time
	Proof          proof   `json:"inclusionProof"`
	Body           []byte  `json:"canonicalizedBody"`
}

type logID struct {
	KeyID []byte `json:"keyId"`
}

type kind struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

type proof struct {
	LogIndex   decimal    `json:"logIndex"`
	RootHash   []byte     `json:"rootHash"`
	TreeSize   decimal    `json:"treeSize"`
	Hashes     [][]byte   `json:"hashes"`
	Checkpoint checkpoint `json:"checkpoint"`
}

type checkpoint struct {
	Envelope string `json:"envelope"`
}

// decimal is a 64-bit number that JSON carries as a string.
type decimal uint64

// MarshalJSON implements json.Marshaler.
func (d decimal) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%q", strconv.FormatUint(uint64(d), 10)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *decimal) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New("want a number in a string")
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return fmt.Errorf("%q is no canonical number", s)
	}
	*d = decimal(n)
	return nil
}

// Trust is whom a verifier believes: one log, and the attestation keys that signed its entries,
// each at its place.
type Trust struct {
	keys []term // oldest first; a pending one is the last
	log  *keyring.LogPublic
}

// term is a key and the entries that it may have signed: from, and before to.
type term struct {
	spki     []byte
	hint     string
	from, to uint64
	pending  bool // introduced, and not known to be in force
}

// noEnd is the to of a key that hasn't ended.
const noEnd = ^uint64(0)

// NewTrust returns the trust in a SubjectPublicKeyInfo, for every entry, and a verifier key.
func NewTrust(spki []byte, vkey string) (*Trust, error) {
	if _, err := keyring.ParseAttestationPublic(spki); err != nil {
		return nil, err
	}
	log, err := keyring.ParseVKey(vkey)
	if err != nil {
		return nil, err
	}
	return &Trust{keys: []term{{spki: bytes.Clone(spki), hint: keyring.HintOf(spki), to: noEnd}}, log: log}, nil
}

// TrustIn returns the trust in the keys of a ring, as far as its history goes. It believes that
// without its receipts: a writer of the ring's files has the keys.
func TrustIn(r *keyring.Ring) *Trust {
	t, err := NewTrust(r.Attestation().SPKI(), r.Log().VKey())
	if err != nil {
		panic("receipt: internal error: a key of our own does not parse: " + err.Error())
	}
	if h := r.History(); h != nil {
		t.keys = nil
		for i := range h.Keys {
			k := &h.Keys[i]
			x := term{spki: k.SPKI, hint: k.Hint, from: k.From, to: noEnd, pending: i > 0 && k.Begun == nil}
			if k.To != nil {
				x.to = *k.To
			}
			t.keys = append(t.keys, x)
		}
	}
	return t
}

// LoadTrust reads a trust directory: log.vkey, and att.pub or, after a rotation, keys.json, whose
// receipts it verifies: each key must be introduced by the one before. A trusted_root.json beside
// them, which is for other verifiers, must name the same log.
func LoadTrust(dir string) (*Trust, error) {
	t, _, err := load(dir)
	return t, err
}

// LoadHistory is LoadTrust for a reader of the list.
func LoadHistory(dir string) (*keyring.History, error) {
	_, h, err := load(dir)
	return h, err
}

func load(dir string) (*Trust, *keyring.History, error) {
	op := fmt.Sprintf("load trust directory %q", dir)
	bad := func(name string, err error) error {
		return fault.New(fault.Integrity, "trust_corrupt", op, fmt.Errorf("%s: %w", name, err))
	}
	pub, err := durable.ReadRegular(filepath.Join(dir, keyring.AttestationPublicFile), 4096)
	if err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	spki, err := keyring.ParsePublicPEM(pub)
	if err != nil {
		return nil, nil, bad(keyring.AttestationPublicFile, err)
	}
	vkey, err := durable.ReadRegular(filepath.Join(dir, keyring.LogVKeyFile), 4096)
	if err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	line, ok := strings.CutSuffix(string(vkey), "\n")
	if !ok {
		return nil, nil, bad(keyring.LogVKeyFile, errors.New("want one line"))
	}
	t, err := NewTrust(spki, line)
	if err != nil {
		return nil, nil, bad(keyring.LogVKeyFile, err)
	}
	h := keyring.NewHistory(spki)
	history, err := durable.ReadRegular(filepath.Join(dir, keyring.HistoryFile), 1<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the key was never replaced
	case err != nil:
		return nil, nil, durable.Fault(op, err)
	default:
		if t, h, err = t.follow(history); err != nil {
			return nil, nil, bad(keyring.HistoryFile, err)
		}
		if !bytes.Equal(t.current().spki, spki) {
			return nil, nil, bad(keyring.AttestationPublicFile, errors.New("is not the key that keys.json has in force"))
		}
	}
	want, err := t.log.TrustedRoot()
	if err != nil {
		return nil, nil, bad(keyring.TrustedRootFile, err)
	}
	got, err := durable.ReadRegular(filepath.Join(dir, keyring.TrustedRootFile), 1<<16)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it is for others
	case err != nil:
		return nil, nil, durable.Fault(op, err)
	case !bytes.Equal(got, want):
		return nil, nil, bad(keyring.TrustedRootFile, errors.New("is not that of log.vkey"))
	}
	return t, h, nil
}

// follow returns the trust that a history leads to from its first key, under t's log.
func (t *Trust) follow(history []byte) (*Trust, *keyring.History, error) {
	h, err := keyring.ParseHistory(history)
	if err != nil {
		return nil, nil, err
	}
	n := &Trust{keys: []term{{spki: h.Keys[0].SPKI, hint: h.Keys[0].Hint, to: noEnd}}, log: t.log}
	for i := range h.Keys[1:] {
		k := &h.Keys[i+1]
		bad := func(err error) error { return fmt.Errorf("key %d: %w", i+1, err) }
		v, err := Verify(k.Introduced, n)
		if err != nil {
			return nil, nil, bad(err)
		}
		in, err := n.introduce(v.Act, v.Index, n.byHint(v.KeyHint).spki)
		if err != nil {
			return nil, nil, bad(err)
		}
		if !bytes.Equal(in.spki, k.SPKI) {
			return nil, nil, bad(errors.New("its receipt introduces another key"))
		}
		want := keyring.Term{From: in.index + 1, ValidFor: keyring.Period{Start: in.start}}
		both := &Trust{keys: append(n.keys[:len(n.keys):len(n.keys)],
			term{spki: in.spki, hint: k.Hint, from: in.index + 1, to: noEnd, pending: true}), log: t.log}
		if k.Begun == nil {
			n = both
		} else {
			if v, err = Verify(k.Begun, both); err == nil && v.Act == nil {
				err = errors.New("its first statement is no act")
			}
			if err == nil {
				_, err = n.begin(v.Act, v.Index, both.byHint(v.KeyHint).spki, []introduction{in})
			}
			if err != nil {
				return nil, nil, bad(err)
			}
			want.From, want.ValidFor.Start = v.Index, v.Act.Time
		}
		if k.From != want.From || k.ValidFor.Start != want.ValidFor.Start {
			return nil, nil, bad(fmt.Errorf("in force from entry %d at %s, and its receipts say %d at %s", k.From, k.ValidFor.Start, want.From, want.ValidFor.Start))
		}
	}
	return n, h, nil
}

// current returns the key in force.
func (t *Trust) current() *term {
	last := len(t.keys) - 1
	if last > 0 && t.keys[last].pending {
		last--
	}
	return &t.keys[last]
}

// find returns the term of a key, nil if it isn't trusted.
func (t *Trust) find(spki []byte) *term {
	for i := range t.keys {
		if bytes.Equal(t.keys[i].spki, spki) {
			return &t.keys[i]
		}
	}
	return nil
}

func (t *Trust) byHint(hint string) *term {
	for i := range t.keys {
		if t.keys[i].hint == hint {
			return &t.keys[i]
		}
	}
	return nil
}

// at returns the term of a key that may have signed the entry at an index.
func (t *Trust) at(spki []byte, index uint64) (*term, error) {
	k := t.find(spki)
	if k == nil {
		return nil, fmt.Errorf("%w: %s", ErrKeyUnknown, keyring.HintOf(spki))
	}
	return k, k.covers(index)
}

func (k *term) covers(index uint64) error {
	switch {
	case index < k.from:
		return fmt.Errorf("key %s is in force from entry %d on, and this is entry %d", k.hint, k.from, index)
	case index >= k.to:
		return fmt.Errorf("key %s ended at entry %d, and this is entry %d", k.hint, k.to, index)
	}
	return nil
}

// Origin returns the name of the trusted log.
func (t *Trust) Origin() string { return t.log.Origin }

// VKey returns the verifier key of the trusted log.
func (t *Trust) VKey() string { return t.log.VKey() }

// KeyHint returns the hint of the attestation key in force.
func (t *Trust) KeyHint() string { return t.current().hint }

func encodeBundle(e *Envelope, p journal.Proof, leaf []byte, keyHint string, log *keyring.LogPublic) ([]byte, error) {
	hashes := make([][]byte, len(p.Hashes))
	for i := range p.Hashes {
		hashes[i] = p.Hashes[i][:]
	}
	return canon.Marshal(bundle{
		MediaType: mediaType,
		Verification: material{
			PublicKey: hint{Hint: keyHint},
			TLog: []entry{{
				LogIndex:       decimal(p.Index),
				LogID:          logID{KeyID: log.ID[:]},
				KindVersion:    kind{Kind: leafKind, Version: leafVersion},
				IntegratedTime: "0",
				Proof: proof{LogIndex: decimal(p.Index), RootHash: p.Root[:], TreeSize: decimal(p.Size), Hashes: hashes,
					Checkpoint: checkpoint{Envelope: string(p.Checkpoint)}},
				Body: leaf,
			}},
		},
		Envelope: *e,
	})
}

// Verified is what a receipt says, once it is known to be genuine. That it is
// genuine does not make it good news: look at Outcome.
type Verified struct {
	Statement Statement // zero for an act
	Act       *Act      // nil for a statement about a call
	Outcome   string    // "" for an intent and for an act
	Index     uint64    // in the log
	Size      uint64    // of the log when the receipt was made
	Root      [32]byte
	Origin    string // of the log
	KeyHint   string // of the attestation key
	Payload   []byte // canonical JSON of the statement
}

// Verify checks a receipt: its form, the signature by a trusted attestation
// key that was in force at the entry's place in the log, the leaf that the log must hold for it, the proof that it does, the
// checkpoint's signature and origin, and the statement. Every error is
// fault.Integrity. The bundle is a container: any JSON spelling of it passes, what
// jq makes of it too, if it holds exactly the members and values that we write. The
// payload, and all else that is signed or hashed, is held to its bytes.
func Verify(b []byte, t *Trust) (*Verified, error) {
	var d bundle
	if err := canon.Decode(b, &d, canon.Limits{Bytes: MaxBundle}); err != nil {
		return nil, broken("syntax", err)
	}
	if len(d.Verification.TLog) != 1 {
		return nil, broken("entries", fmt.Errorf("%d log entries, want 1", len(d.Verification.TLog)))
	}
	e := &d.Verification.TLog[0]
	key := t.byHint(d.Verification.PublicKey.Hint)
	if key == nil {
		return nil, broken("key", fmt.Errorf("%w: %q, in force is %q", ErrKeyUnknown, d.Verification.PublicKey.Hint, t.KeyHint()))
	}
	if !bytes.Equal(e.LogID.KeyID, t.log.ID[:]) {
		return nil, broken("log", errors.New("from another log than the trusted one"))
	}
	if err := d.Envelope.check(); err != nil {
		return nil, broken("envelope", err)
	}
	if !keyring.VerifyStatement(key.spki, d.Envelope.Payload, d.Envelope.Signatures[0].Sig) {
		return nil, broken("signature", errors.New("the statement's signature does not verify"))
	}
	p, err := proofOf(e, t)
	if err != nil {
		return nil, err
	}
	leaf, err := leafOf(&d.Envelope, key.spki)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(e.Body, leaf) {
		return nil, broken("leaf", errors.New("the log entry is not the one of this statement"))
	}
	if err := p.Verify(leaf); err != nil {
		return nil, broken("inclusion", err)
	}
	if err := key.covers(p.Index); err != nil {
		return nil, broken("key", err)
	}
	s, act, err := ParsePayload(d.Envelope.Payload)
	if err != nil {
		return nil, broken("statement", err)
	}
	if s == nil {
		s = new(Statement)
	}
	// Whatever is left (media type, kind, time "0", spelling of base64 and numbers,
	// members that are missing) is held to the values that we write.
	again, err := encodeBundle(&d.Envelope, *p, leaf, key.hint, t.log)
	if err != nil {
		return nil, broken("form", err)
	}
	plain, err := canon.Canonical(b) // Decode has bounded it
	if err != nil {
		return nil, broken("form", err)
	}
	if !bytes.Equal(again, plain) {
		return nil, broken("form", errors.New("a member has not the value that a receipt has there, or is missing"))
	}
	return &Verified{Statement: *s, Act: act, Outcome: s.Predicate.Outcome, Index: p.Index, Size: p.Size, Root: p.Root,
		Origin: t.log.Origin, KeyHint: key.hint, Payload: d.Envelope.Payload}, nil
}

// proofOf reads the proof of a log entry and checks the checkpoint that it
// leads to.
func proofOf(e *entry, t *Trust) (*journal.Proof, error) {
	c, err := journal.OpenCheckpoint([]byte(e.Proof.Checkpoint.Envelope), t.log.VKey())
	if err != nil {
		return nil, broken("checkpoint", err)
	}
	if uint64(e.Proof.TreeSize) != c.Size || !bytes.Equal(e.Proof.RootHash, c.Root[:]) {
		return nil, broken("checkpoint", errors.New("the proof's size or root is not the checkpoint's"))
	}
	p := &journal.Proof{Index: uint64(e.Proof.LogIndex), Size: c.Size, Root: c.Root, Checkpoint: []byte(e.Proof.Checkpoint.Envelope)}
	for _, h := range e.Proof.Hashes {
		if len(h) != len(c.Root) {
			return nil, broken("inclusion", fmt.Errorf("hash of %d bytes", len(h)))
		}
		p.Hashes = append(p.Hashes, [32]byte(h))
	}
	return p, nil
}

package receipt

import (
	"bytes"
	"encoding/base64"
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

// Trust is whom a verifier believes: one log, by the keys that signed its checkpoints, and the
// attestation keys that signed its entries, each at its place.
type Trust struct {
	keys []term // oldest first; a pending one is the last
	logs []term // likewise, all of one name
}

// term is a key and the entries that it may have signed: from, and before to. A log's key signs
// checkpoints of at most the size to. It may sign smaller ones than from, too: the tree that it
// vouches for has those in it.
type term struct {
	spki     []byte             // of an attestation key
	log      *keyring.LogPublic // a log's key
	hint     string
	from, to uint64
	pending  bool // introduced, and not known to be in force
}

// digest names the key in the details of acts.
func (k *term) digest() string {
	if k.log != nil {
		return LogKeyDigest(k.log).String()
	}
	return KeyDigest(k.spki).String()
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
	return &Trust{keys: []term{{spki: bytes.Clone(spki), hint: keyring.HintOf(spki), to: noEnd}},
		logs: []term{{log: log, hint: log.Hint(), to: noEnd}}}, nil
}

// TrustIn returns the trust in the keys of a ring, as far as its history goes. It believes that
// without its receipts: a writer of the ring's files has the keys.
func TrustIn(r *keyring.Ring) *Trust {
	t, err := NewTrust(r.Attestation().SPKI(), r.Log().VKey())
	if err != nil {
		panic("receipt: internal error: a key of our own does not parse: " + err.Error())
	}
	if h := r.History(); h != nil {
		t.keys = termsOf(h)
	}
	if h := r.LogHistory(); h != nil {
		t.logs = termsOf(h)
	}
	return t
}

// termsOf believes a history, which was parsed.
func termsOf(h *keyring.History) (ts []term) {
	for i := range h.Keys {
		k := &h.Keys[i]
		x := term{spki: k.SPKI, hint: k.Hint, from: k.From, to: noEnd, pending: i > 0 && k.Begun == nil}
		if k.To != nil {
			x.to = *k.To
		}
		if h.OfLog() {
			p, err := keyring.ParseVKey(k.VKey)
			if err != nil {
				panic("receipt: internal error: a key of a history that was parsed doesn't parse: " + err.Error())
			}
			x.log = p
		}
		ts = append(ts, x)
	}
	return ts
}

// LoadTrust reads a trust directory: log.vkey, and att.pub or, after a rotation, keys.json and
// log-keys.json, whose receipts it verifies: each key must be introduced by the one before. A
// trusted_root.json beside them, which is for other verifiers, must name the same log.
func LoadTrust(dir string) (*Trust, error) {
	t, _, _, err := load(dir)
	return t, err
}

// LoadHistory is LoadTrust for a reader of the lists: of attestation keys, and of the log's.
func LoadHistory(dir string) (att, log *keyring.History, err error) {
	_, att, log, err = load(dir)
	return att, log, err
}

func load(dir string) (_ *Trust, att, log *keyring.History, err error) {
	op := fmt.Sprintf("load trust directory %q", dir)
	bad := func(name string, err error) error {
		return fault.New(fault.Integrity, "trust_corrupt", op, fmt.Errorf("%s: %w", name, err))
	}
	read := func(name string, most int64) ([]byte, error) {
		b, err := durable.ReadRegular(filepath.Join(dir, name), most)
		return b, durable.Fault(op, err)
	}
	fail := func(err error) (*Trust, *keyring.History, *keyring.History, error) { return nil, nil, nil, err }
	pub, err := read(keyring.AttestationPublicFile, 4096)
	if err != nil {
		return fail(err)
	}
	spki, err := keyring.ParsePublicPEM(pub)
	if err != nil {
		return fail(bad(keyring.AttestationPublicFile, err))
	}
	vkey, err := read(keyring.LogVKeyFile, 4096)
	if err != nil {
		return fail(err)
	}
	line, ok := strings.CutSuffix(string(vkey), "\n")
	if !ok {
		return fail(bad(keyring.LogVKeyFile, errors.New("want one line")))
	}
	t, err := NewTrust(spki, line)
	if err != nil {
		return fail(bad(keyring.LogVKeyFile, err))
	}
	att, log = keyring.NewHistory(spki), keyring.NewLogHistory(t.logs[0].log)
	name := ""
	for _, f := range []struct {
		name string
		to   **keyring.History
	}{{keyring.HistoryFile, &att}, {keyring.LogHistoryFile, &log}} {
		b, err := read(f.name, 1<<20)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the key was never replaced
			continue
		case err != nil:
			return fail(err)
		}
		ofLog := (*f.to).OfLog()
		if *f.to, err = keyring.ParseHistory(b); err == nil && (*f.to).OfLog() != ofLog {
			err = errors.New("it is of the other kind of keys")
		}
		if err != nil {
			return fail(bad(f.name, err))
		}
		name = f.name
	}
	if name != "" {
		if t, name, err = follow(att, log); err != nil {
			return fail(bad(name, err))
		}
		if !bytes.Equal(current(t.keys).spki, spki) {
			return fail(bad(keyring.AttestationPublicFile, errors.New("is not the key that keys.json has in force")))
		}
		if t.VKey() != line {
			return fail(bad(keyring.LogVKeyFile, errors.New("is not the key that log-keys.json has in force")))
		}
	}
	want, err := log.TrustedRoot()
	if err != nil {
		return fail(bad(keyring.TrustedRootFile, err))
	}
	got, err := read(keyring.TrustedRootFile, 1<<17)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it is for others
	case err != nil:
		return fail(err)
	case !bytes.Equal(got, want):
		return fail(bad(keyring.TrustedRootFile, errors.New("is not that of log.vkey")))
	}
	return t, att, log, nil
}

// follow returns the trust that histories lead to from the first key of each. It takes their steps
// in the order of the log, so that each receipt is verified under the keys of its time. An error
// comes with the file whose it is.
func follow(att, log *keyring.History) (*Trust, string, error) {
	fileOf := func(h *keyring.History) string {
		if h.OfLog() {
			return keyring.LogHistoryFile
		}
		return keyring.HistoryFile
	}
	t, err := NewTrust(att.Keys[0].SPKI, log.Keys[0].VKey)
	if err != nil {
		return nil, fileOf(log), err
	}
	var pending []introduction
	for _, s := range stepsOf(att, log) {
		if pending, err = t.take(&s, pending); err != nil {
			return nil, fileOf(s.h), fmt.Errorf("key %d: %w", s.key, err)
		}
	}
	for _, h := range []*keyring.History{att, log} {
		ts := t.keys
		if h.OfLog() {
			ts = t.logs
		}
		if len(ts) != len(h.Keys) {
			return nil, fileOf(h), errors.New("its steps are out of order")
		}
	}
	return t, "", nil
}

// take verifies a step of a history and goes it.
func (t *Trust) take(s *step, pending []introduction) ([]introduction, error) {
	if s.err != nil {
		return nil, s.err
	}
	v, err := Verify(s.receipt, t)
	if err != nil {
		return nil, err
	}
	if v.Act == nil {
		return nil, errors.New("its receipt is of no act")
	}
	k := &s.h.Keys[s.key]
	signer := byHint(t.keys, v.KeyHint).spki
	from, start := uint64(0), ""
	var in introduction
	if !s.begins {
		if in, err = t.introduce(v.Act, v.Index, signer); err != nil {
			return nil, err
		}
		x := in.term()
		x.from, x.pending = v.Index+1, true
		keys := t.of(&in)
		if n := len(*keys); (*keys)[n-1].pending {
			return nil, errors.New("the key before it isn't in force")
		}
		*keys = append((*keys)[:len(*keys):len(*keys)], *x)
		pending = append(pending, in)
		from, start = x.from, in.start
	} else {
		if in, err = t.begin(v.Act, v.Index, signer, pending); err != nil {
			return nil, err
		}
		pending = without(pending, in.subject)
		from, start = v.Index, v.Act.Time
	}
	if in.term().hint != k.Hint {
		return nil, errors.New("its receipt introduces another key")
	}
	if s.begins == (k.Begun != nil) && (k.From != from || k.ValidFor.Start != start) {
		return nil, fmt.Errorf("in force from entry %d at %s, and its receipts say %d at %s", k.From, k.ValidFor.Start, from, start)
	}
	return pending, nil
}

// current returns the key in force.
func current(ts []term) *term {
	last := len(ts) - 1
	if last > 0 && ts[last].pending {
		last--
	}
	return &ts[last]
}

// find returns the term of an attestation key, nil if it isn't trusted.
func (t *Trust) find(spki []byte) *term {
	for i := range t.keys {
		if bytes.Equal(t.keys[i].spki, spki) {
			return &t.keys[i]
		}
	}
	return nil
}

func byHint(ts []term, hint string) *term {
	for i := range ts {
		if ts[i].hint == hint {
			return &ts[i]
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

// LogKeys returns the keys of the trusted log, for package journal.
func (t *Trust) LogKeys() journal.Keys {
	var ks journal.Keys
	for _, k := range t.logs {
		x := journal.Key{VKey: k.log.VKey()}
		if k.to != noEnd {
			x.To = k.to
		}
		ks = append(ks, x)
	}
	return ks
}

// checkpoint opens a checkpoint of the trusted log, and returns the key that signed it. An error
// that is ErrKeyUnknown may mean that t is older than a rotation.
func (t *Trust) checkpoint(note []byte) (journal.Checkpoint, *keyring.LogPublic, error) {
	c, k, err := t.LogKeys().Open(note)
	if errors.Is(err, journal.ErrSigner) {
		err = fmt.Errorf("%w: %w", ErrKeyUnknown, err)
	}
	if err != nil {
		return c, nil, err
	}
	p, err := keyring.ParseVKey(k.VKey)
	return c, p, err
}

// signer returns the key of the trusted log by which a checkpoint says that it's signed. An error
// that is ErrKeyUnknown may mean that t is older than a rotation.
func (t *Trust) signer(note []byte) (*keyring.LogPublic, error) {
	id := t.signerID(note)
	for i := range t.logs {
		if log := t.logs[i].log; bytes.HasPrefix(log.ID[:], id) {
			return log, nil
		}
	}
	return nil, fmt.Errorf("%w: that of the log", ErrKeyUnknown)
}

// signerID returns how the identity begins of the key by which a checkpoint of the trusted log
// says that it's signed. It verifies nothing.
func (t *Trust) signerID(note []byte) []byte {
	_, sig, _ := bytes.Cut(note, []byte("\n\n\u2014 "+t.Origin()+" "))
	id := make([]byte, 6)
	if len(sig) >= 8 {
		_, _ = base64.StdEncoding.Decode(id, sig[:8]) // what it isn't finds no key
	}
	return id[:4]
}

// Origin returns the name of the trusted log.
func (t *Trust) Origin() string { return t.logs[0].log.Origin }

// VKey returns the verifier key that the trusted log has in force.
func (t *Trust) VKey() string { return current(t.logs).log.VKey() }

// KeyHint returns the hint of the attestation key in force.
func (t *Trust) KeyHint() string { return current(t.keys).hint }

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

// indexIn returns the log index that a receipt claims.
func indexIn(b []byte) (uint64, error) {
	var d bundle
	if err := canon.Decode(b, &d, canon.Limits{Bytes: MaxBundle}); err != nil {
		return 0, err
	}
	if len(d.Verification.TLog) != 1 {
		return 0, fmt.Errorf("%d log entries, want 1", len(d.Verification.TLog))
	}
	return uint64(d.Verification.TLog[0].LogIndex), nil
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
// key that was in force at the entry's place in the log, the leaf that the log must hold for it,
// the proof that it does, the checkpoint's signature and origin, and the statement. Every error is
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
	key := byHint(t.keys, d.Verification.PublicKey.Hint)
	if key == nil {
		return nil, broken("key", fmt.Errorf("%w: %q, in force is %q", ErrKeyUnknown, d.Verification.PublicKey.Hint, t.KeyHint()))
	}
	if byHint(t.logs, base64.StdEncoding.EncodeToString(e.LogID.KeyID)) == nil {
		if id := t.signerID([]byte(e.Proof.Checkpoint.Envelope)); bytes.HasPrefix(e.LogID.KeyID, id) {
			return nil, broken("key", fmt.Errorf("%w: that of the log", ErrKeyUnknown))
		}
		return nil, broken("log", errors.New("from another log than the trusted one"))
	}
	if err := d.Envelope.check(); err != nil {
		return nil, broken("envelope", err)
	}
	if !keyring.VerifyStatement(key.spki, d.Envelope.Payload, d.Envelope.Signatures[0].Sig) {
		return nil, broken("signature", errors.New("the statement's signature does not verify"))
	}
	p, log, err := proofOf(e, t)
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
	again, err := encodeBundle(&d.Envelope, *p, leaf, key.hint, log)
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
		Origin: log.Origin, KeyHint: key.hint, Payload: d.Envelope.Payload}, nil
}

// proofOf reads the proof of a log entry and checks the checkpoint that it
// leads to. It returns the key that signed that.
func proofOf(e *entry, t *Trust) (*journal.Proof, *keyring.LogPublic, error) {
	c, log, err := t.checkpoint([]byte(e.Proof.Checkpoint.Envelope))
	if err != nil {
		return nil, nil, broken("checkpoint", err)
	}
	if uint64(e.Proof.TreeSize) != c.Size || !bytes.Equal(e.Proof.RootHash, c.Root[:]) {
		return nil, nil, broken("checkpoint", errors.New("the proof's size or root is not the checkpoint's"))
	}
	p := &journal.Proof{Index: uint64(e.Proof.LogIndex), Size: c.Size, Root: c.Root, Checkpoint: []byte(e.Proof.Checkpoint.Envelope)}
	for _, h := range e.Proof.Hashes {
		if len(h) != len(c.Root) {
			return nil, nil, broken("inclusion", fmt.Errorf("hash of %d bytes", len(h)))
		}
		p.Hashes = append(p.Hashes, [32]byte(h))
	}
	return p, log, nil
}

// Package vault keeps secrets in a folder of the state directory: encrypted, with versions, in
// one state that the journal knows. docs/formats/vault.md specifies the files.
//
//	v, err := vault.Create(ctx, dir, ledger, recipients)   // once
//	v, err := vault.Open(ctx, dir, ledger, identity)
//	d, err := v.Draft(ctx, ref, value, time.Time{}) // sealed, and nothing written
//	err = v.Store(ctx, d, digest)                   // if that is d.Digest()
//	secret, info, err := v.Get(ctx, ref, 0)
//	defer secret.Wipe()
//
// A [Ref] (vault://SCOPE/KEY) names a secret. Each version is sealed under a random key of its
// own, that key under the vault's key, and the vault's key for each recipient (package seal).
//
// # Contract
//
// A change is one new head: a file that holds the recipients and the sealed index, written beside
// the old one, flushed and renamed. Values are written before it, in files that it names. After
// the rename the head's digest and epoch go to the [Ledger], and only then the change is
// acknowledged. A crash leaves the old state or the new one; the next operation of any process
// tells the ledger what the crash kept from it.
//
// Every operation reads the head again under the vault's lock, and refuses it unless it's the one
// that the ledger knows last, or its successor. So a file that was put back, or a vault in the
// place of another, is fault.Integrity "rolled_back".
//
// # What it does not protect against
//
// It decides nothing about who may read a secret: the kernel's gate does. A holder of an identity
// who can read the folder reads all of it. The number of files, and the file system's times of
// their creation and change, show how many versions there are and when they were made. An owner of
// both folders can put vault and journal back together.
package vault

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"palyra/crypt/scrub"
	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Bounds.
const (
	MaxValue    = 64 << 10 // bytes of a value
	MaxSecrets  = 1000
	MaxVersions = 8 // kept of one secret: a new one drops the oldest
	// MinScrubbed is the length from which on a value can be told from other text.
	MinScrubbed = scrub.Min

	maxHead       = 16 << 20
	unread        = 256 // entries of the ledger that each process reads again
	maxRecipients = 16
	patience      = 10 * time.Second
)

// The files below the vault's folder.
const (
	headFile   = "head"
	lockFile   = "lock"
	seenFile   = "seen"
	recordsDir = "records"
)

// Root names one state of a vault.
type Root struct {
	Vault  string       // its id
	Epoch  uint64       // counts states
	Digest canon.Digest // of the head
}

// Ledger is the log that knows the vault's states: the journal.
type Ledger interface {
	// Newest returns the last root among the entries from index from on, nil if there is none,
	// and the size of the log.
	Newest(ctx context.Context, from uint64) (root *Root, size uint64, err error)
	// Commit appends a root. It returns when that is durable.
	Commit(ctx context.Context, r Root) error
}

// Vault is an open vault. It's for one goroutine at a time; several processes may open it.
type Vault struct {
	dir    string
	ledger Ledger
	gate   *durable.Gate
	step   func(string)
	id     seal.Identity // the caller's

	kek  *seal.Key // of head.Generation
	by   string    // label of the recipient that id opened it as, "" if it made the key itself
	head *head
	raw  canon.Digest // of the head's bytes
	idx  *index
	seen seen

	saved uint64 // the size in the file of seen
}

// The versions of a head. In the first an index has neither makers of secrets nor a floor; it's
// read, and the next change writes the second.
const (
	headVersion = 2
	oldVersion  = 1
)

func (h *head) known() bool { return h.Version == headVersion || h.Version == oldVersion }

// head is the vault's state. Its canonical JSON is the file.
type head struct {
	Version    int            `json:"version"` // headVersion
	Vault      string         `json:"vault"`
	Epoch      uint64         `json:"epoch"`
	Generation uint64         `json:"generation"` // of the vault's key
	Previous   canon.Digest   `json:"previous"`   // of the head before; zero for the first
	Recipients []*seal.Stanza `json:"recipients"`
	Index      []byte         `json:"index"` // sealed
}

// index is what the head hides.
type index struct {
	Recipients []line   `json:"recipients"` // the public keys, so that a new key can be wrapped for them
	Secrets    []secret `json:"secrets"`    // sorted
	// Renew has records of an older generation sealed under new keys; absent when all are.
	Renew uint64 `json:"renew,omitzero"`
	// Floor is at least the last number of each secret that is forgotten; absent if none is.
	Floor uint64 `json:"floor,omitzero"`
	// Own has the keys that the program itself uses, by name; absent if there are none.
	Own map[string][]byte `json:"own,omitzero"`
}

type line struct {
	Label string `json:"label"`
	Line  string `json:"line"`
}

type secret struct {
	Ref      Ref       `json:"ref"`
	By       string    `json:"by,omitzero"` // who made it; absent: it isn't recorded
	Last     uint64    `json:"last"`        // the newest version that there ever was
	Versions []version `json:"versions"`    // oldest first; none: it was removed
}

type version struct {
	Version    uint64       `json:"version"`
	Generation uint64       `json:"generation"` // of the vault's key when it was made
	Record     string       `json:"record"`     // file
	Digest     canon.Digest `json:"digest"`     // of the file
	Key        []byte       `json:"key"`        // of the record, sealed under the vault's key
	Size       int          `json:"size"`
	Created    time.Time    `json:"created"`
	Expires    *time.Time   `json:"expires"` // null: never
}

// seen says how far the ledger was read. It is sealed, so that it can't be made up; an older one
// only means more reading.
type seen struct {
	Size uint64 `json:"size"`
	Root *Root  `json:"root"`
}

// Info describes a version of a secret.
type Info struct {
	Ref     Ref
	Version uint64
	Size    int
	Created time.Time
	Expires *time.Time // nil: never
	By      string     // of List and History: who made the secret; "": it isn't recorded
}

// Expired reports whether the version isn't given out any more.
func (i *Info) Expired() bool { return i.Expires != nil && !time.Now().Before(*i.Expires) }

// Create makes the vault at dir for recipients, under labels that differ, and opens it.
func Create(ctx context.Context, dir string, l Ledger, id seal.Identity, to ...seal.Recipient) (*Vault, error) {
	return create(ctx, dir, l, id, to, func(string) {})
}

func create(ctx context.Context, dir string, l Ledger, id seal.Identity, to []seal.Recipient, step func(string)) (_ *Vault, err error) {
	op := fmt.Sprintf("create vault %q", dir)
	if len(to) == 0 || len(to) > maxRecipients {
		return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("%d recipients, want 1 to %d", len(to), maxRecipients))
	}
	for _, d := range []string{dir, filepath.Join(dir, recordsDir)} {
		if err := durable.MkdirAll0700(d); err != nil {
			return nil, durable.Fault(op, err)
		}
	}
	v, err := lock(ctx, dir, l, id, step)
	if err != nil {
		return nil, err
	}
	defer func() {
		v.unlock()
		if err != nil {
			v.Close()
		}
	}()
	if _, err := os.Lstat(filepath.Join(dir, headFile)); err == nil {
		return nil, fault.New(fault.BadState, "exists", op, errors.New("there is one already"))
	}
	last, size, err := l.Newest(ctx, 0)
	if err != nil {
		return nil, err
	}
	if last != nil {
		return nil, fault.New(fault.Integrity, "rolled_back", op, fmt.Errorf("the journal knows vault %s at epoch %d, and it isn't there", last.Vault, last.Epoch)).
			WithHint("restore the folder from a backup made since; a new vault wants a new state directory")
	}
	v.seen = seen{Size: size}
	v.kek = seal.NewKey()
	v.head = &head{Version: headVersion, Vault: rand.Text(), Generation: 1}
	v.idx = &index{Recipients: []line{}, Secrets: []secret{}}
	if err := v.wrap(v.head, v.idx, v.kek, to); err != nil {
		return nil, err
	}
	return v, v.commit(ctx, v.head, v.idx, v.kek)
}

// Open opens the vault at dir with an identity that one of its recipients has. The identity stays
// the caller's, and is used until Close.
func Open(ctx context.Context, dir string, l Ledger, id seal.Identity) (*Vault, error) {
	return open(ctx, dir, l, id, func(string) {})
}

func open(ctx context.Context, dir string, l Ledger, id seal.Identity, step func(string)) (*Vault, error) {
	if _, err := os.Lstat(filepath.Join(dir, headFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("open vault %q", dir), errors.New("there is none")).
			WithHint("palyra vault init makes one")
	}
	v, err := lock(ctx, dir, l, id, step)
	if err != nil {
		return nil, err
	}
	defer v.unlock()
	if err := v.load(ctx); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// lock opens the folder and takes its lock.
func lock(ctx context.Context, dir string, l Ledger, id seal.Identity, step func(string)) (*Vault, error) {
	for _, d := range []string{dir, filepath.Join(dir, recordsDir)} {
		if err := durable.CheckPrivate(d); err != nil {
			return nil, err
		}
	}
	g, err := durable.OpenGate(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	v := &Vault{dir: dir, ledger: l, gate: g, step: step, id: id}
	if err := g.Take(ctx, durable.Exclusive, patience); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return v, nil
}

func (v *Vault) unlock() { v.gate.Release() }

// Close wipes the vault's key.
func (v *Vault) Close() error {
	v.kek.Wipe()
	v.kek = nil
	return v.gate.Close()
}

// ID returns the vault's id.
func (v *Vault) ID() string { return v.head.Vault }

// Epoch returns the number of the state that the last operation saw.
func (v *Vault) Epoch() uint64 { return v.head.Epoch }

// OpenedBy returns the label of the recipient whose identity or passphrase opened the vault, "" if
// this Vault made its key. The index vouches for the label.
func (v *Vault) OpenedBy() string { return v.by }

// Labels returns the recipients by their labels.
func (v *Vault) Labels() []string {
	var out []string
	for _, s := range v.head.Recipients {
		out = append(out, s.Label+" ("+s.Type+")")
	}
	return out
}

// Recipient describes one that the vault's key is wrapped for.
type Recipient struct {
	Label string
	Type  string       // seal.TypeHPKE or seal.TypePassphrase
	ID    canon.Digest // of an HPKE recipient's public key, zero for others
}

// Recipients returns those that the last operation saw.
func (v *Vault) Recipients() (out []Recipient) {
	for _, s := range v.head.Recipients {
		out = append(out, Recipient{s.Label, s.Type, s.ID})
	}
	return out
}

// with does f under the lock, on the state that the ledger knows.
func (v *Vault) with(ctx context.Context, f func() error) error {
	if err := v.gate.Take(ctx, durable.Exclusive, patience); err != nil {
		return err
	}
	defer v.unlock()
	if err := v.load(ctx); err != nil {
		return err
	}
	return f()
}

// load reads the head, unless it is the one that was read before, and compares it with the ledger.
// Called with the lock.
func (v *Vault) load(ctx context.Context) error {
	op := fmt.Sprintf("open vault %q", v.dir)
	b, err := durable.ReadPrivate(filepath.Join(v.dir, headFile), maxHead)
	if err != nil {
		return err
	}
	raw := canon.Sum(b)
	if v.head == nil || raw != v.raw {
		if err := v.parse(op, b); err != nil {
			return err
		}
		v.raw = raw
	}
	last, size, err := v.ledger.Newest(ctx, v.seen.Size)
	if err != nil {
		return err
	}
	if size < v.seen.Size {
		return fault.New(fault.Integrity, "rolled_back", op, fmt.Errorf("the journal has %d entries, and had %d when the vault was last used", size, v.seen.Size))
	}
	if last == nil {
		last = v.seen.Root
	}
	now := Root{v.head.Vault, v.head.Epoch, raw}
	switch {
	case last != nil && *last == now:
		v.seen = seen{size, last}
		if size-v.saved > unread {
			return v.remember()
		}
		return nil
	case last == nil && now.Epoch == 1 && v.head.Previous.IsZero(),
		last != nil && last.Vault == now.Vault && now.Epoch == last.Epoch+1 && v.head.Previous == last.Digest:
		// A crash came between the rename and the entry.
		return v.tell(ctx, now)
	case last == nil:
		return fault.New(fault.Integrity, "rolled_back", op, fmt.Errorf("the journal doesn't know it at epoch %d", now.Epoch)).
			WithHint("it belongs to another state directory, or the journal was put back")
	}
	return fault.New(fault.Integrity, "rolled_back", op, fmt.Errorf("its head is %s at epoch %d; the journal knows %s at epoch %d", now.Vault, now.Epoch, last.Vault, last.Epoch)).
		WithHint("restore the folder as it was at the newest epoch; palyra journal show lists them")
}

// tell commits a root to the ledger.
func (v *Vault) tell(ctx context.Context, r Root) error {
	if err := v.ledger.Commit(ctx, r); err != nil {
		return err
	}
	v.step("told")
	v.seen.Root = &r // the next Newest finds it behind seen.Size
	return v.remember()
}

// remember keeps seen for the next process.
func (v *Vault) remember() error {
	b, err := canon.Marshal(v.seen)
	if err == nil {
		b, err = seal.Seal(v.kek, seal.Context{Purpose: "vault/seen", Scope: v.head.Vault, Generation: v.head.Generation}, b)
	}
	if err == nil {
		v.saved = v.seen.Size
		_ = durable.Replace(filepath.Join(v.dir, seenFile), b, 0o600) // without it more is read
	}
	return err
}

// parse opens the bytes of a head: its key, index and seen.
func (v *Vault) parse(op string, b []byte) error {
	corrupt := func(err error) error { return fault.New(fault.Integrity, "store_corrupt", op, err) }
	var h head
	if err := canon.Decode(b, &h, canon.Limits{Bytes: maxHead}); err != nil {
		return corrupt(err)
	}
	if again, err := canon.Marshal(h); err != nil || !bytes.Equal(again, b) || !h.known() || h.Epoch == 0 || h.Generation == 0 || len(h.Recipients) > maxRecipients {
		return corrupt(errors.New("no head of version 1 or 2"))
	}
	kek, by := v.kek, v.by
	if v.head == nil || h.Vault != v.head.Vault || h.Generation != v.head.Generation {
		var err error
		if kek, by, err = unwrap(op, &h, v.id); err != nil {
			return err
		}
	}
	c, err := h.context()
	if err != nil {
		return corrupt(err)
	}
	s, err := seal.Open(kek, c, h.Index)
	if err != nil {
		if kek != v.kek {
			kek.Wipe()
		}
		return err
	}
	defer s.Wipe()
	idx := new(index)
	if err := canon.Decode(s.Bytes(), idx, canon.Limits{Bytes: seal.MaxValue}); err != nil {
		return corrupt(err)
	}
	if kek != v.kek {
		v.kek.Wipe()
	}
	v.kek, v.by, v.head, v.idx = kek, by, &h, idx
	v.readSeen()
	return nil
}

// readSeen takes what an earlier process read of the ledger, if that is ours.
func (v *Vault) readSeen() {
	b, err := durable.ReadPrivate(filepath.Join(v.dir, seenFile), 4096)
	if err != nil {
		return
	}
	s, err := seal.Open(v.kek, seal.Context{Purpose: "vault/seen", Scope: v.head.Vault, Generation: v.head.Generation}, b)
	if err != nil {
		return
	}
	defer s.Wipe()
	var was seen
	if canon.Decode(s.Bytes(), &was, canon.Limits{}) == nil && was.Size >= v.seen.Size {
		v.seen, v.saved = was, was.Size
	}
}

// unwrap returns the vault's key and the label of the recipient that id is.
func unwrap(op string, h *head, id seal.Identity) (*seal.Key, string, error) {
	for _, s := range h.Recipients {
		k, err := id.Unwrap(s, h.key())
		if err == nil {
			return k, s.Label, nil
		}
		if !errors.Is(err, seal.ErrOther) {
			return nil, "", err
		}
	}
	return nil, "", fault.New(fault.Denied, "keys_locked", op, errors.New("the identity or passphrase is none of its recipients'")).
		WithHint("name another: palyra vault verify --key FILE, or --passphrase FILE")
}

// key is the context of the vault's key.
func (h *head) key() seal.Context {
	return seal.Context{Purpose: "vault/key", Scope: h.Vault, Generation: h.Generation}
}

// context is that of the index: it holds all else of the head.
func (h *head) context() (seal.Context, error) {
	open := *h
	open.Index = []byte{}
	b, err := canon.Marshal(open)
	return seal.Context{Purpose: "vault/index", Scope: h.Vault, Name: canon.Sum(b).Hex(), Version: h.Epoch, Generation: h.Generation}, err
}

// wrap makes the stanzas of a head.
func (v *Vault) wrap(h *head, idx *index, k *seal.Key, to []seal.Recipient) error {
	h.Recipients, idx.Recipients = nil, []line{}
	for _, r := range to {
		s, err := r.Wrap(k, h.key())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(h.Recipients, func(o *seal.Stanza) bool { return o.Label == s.Label }) {
			return fault.New(fault.Usage, "invalid_input", "add recipient", fmt.Errorf("two are called %q", s.Label))
		}
		h.Recipients = append(h.Recipients, s)
		if p, ok := r.(*seal.PublicKey); ok {
			idx.Recipients = append(idx.Recipients, line{s.Label, string(p.Encode())})
		}
	}
	return nil
}

// commit makes h, idx and k the vault's state: h has the epoch before. Called with the lock.
func (v *Vault) commit(ctx context.Context, was *head, idx *index, k *seal.Key) error {
	op := fmt.Sprintf("write vault %q", v.dir)
	h := *was
	h.Version = headVersion
	h.Epoch++
	h.Previous = v.raw
	if idx.Renew > 0 {
		if err := v.renew(h.Generation, idx, k); err != nil {
			return err
		}
	}
	text, err := canon.Marshal(idx)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	defer clear(text)
	c, err := h.context()
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if h.Index, err = seal.Seal(k, c, text); err != nil {
		return err
	}
	b, err := canon.Marshal(h)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if err := durable.WriteFileSteps(filepath.Join(v.dir, headFile), b, 0o600, v.step); err != nil {
		return durable.Fault(op, err)
	}
	v.head, v.idx, v.raw = &h, idx, canon.Sum(b)
	if k != v.kek {
		v.kek.Wipe()
		v.kek = k
	}
	if err := v.tell(ctx, Root{h.Vault, h.Epoch, v.raw}); err != nil {
		return err
	}
	v.sweep()
	v.step("swept")
	return nil
}

// sweep removes the files that the index doesn't name. It's the last step: a crash before it
// leaves them to the next change.
func (v *Vault) sweep() {
	_ = durable.RemoveTemps(v.dir)
	named := v.records()
	es, _ := os.ReadDir(filepath.Join(v.dir, recordsDir))
	for _, e := range es {
		if !named[e.Name()] {
			_ = os.Remove(filepath.Join(v.dir, recordsDir, e.Name()))
		}
	}
}

// records returns the files that the index names.
func (v *Vault) records() map[string]bool {
	out := make(map[string]bool)
	for _, s := range v.idx.Secrets {
		for _, x := range s.Versions {
			out[x.Record] = true
		}
	}
	return out
}

// clone copies an index as deep as changes go.
func (i *index) clone() *index {
	n := &index{slices.Clone(i.Recipients), slices.Clone(i.Secrets), i.Renew, i.Floor, maps.Clone(i.Own)}
	for j := range n.Secrets {
		n.Secrets[j].Versions = slices.Clone(n.Secrets[j].Versions)
	}
	return n
}

// find returns the secret's place in the index.
func (i *index) find(r Ref) (int, bool) {
	return slices.BinarySearchFunc(i.Secrets, r, func(s secret, r Ref) int { return s.Ref.compare(r) })
}

func errNone(r Ref, n uint64) error {
	what := errors.New("there is none")
	if n != 0 {
		what = fmt.Errorf("there is no version %d", n)
	}
	return fault.New(fault.NotFound, "not_found", fmt.Sprintf("find secret %q", r), what)
}

func (v *Vault) record(x *version) string { return filepath.Join(v.dir, recordsDir, x.Record) }

func (x *version) context(purpose string, r Ref, generation uint64) seal.Context {
	return seal.Context{Purpose: purpose, Scope: r.scope, Name: r.key, Version: x.Version, Generation: generation}
}

func (x *version) info(r Ref) Info {
	return Info{Ref: r, Version: x.Version, Size: x.Size, Created: x.Created, Expires: x.Expires}
}

// listed is info with who made the secret.
func (s *secret) listed(x *version) Info {
	i := x.info(s.Ref)
	i.By = s.By
	return i
}

// Get opens a version of a secret, 0 for the newest. The caller wipes it.
func (v *Vault) Get(ctx context.Context, r Ref, n uint64) (s *seal.Secret, i Info, err error) {
	err = v.with(ctx, func() error {
		s, i, err = v.get(r, n)
		return err
	})
	return s, i, err
}

func (v *Vault) get(r Ref, n uint64) (*seal.Secret, Info, error) {
	x, err := v.version(r, n)
	if err != nil {
		return nil, Info{}, err
	}
	i := x.info(r)
	if i.Expired() {
		return nil, Info{}, fault.New(fault.Refused, "secret_expired", fmt.Sprintf("open secret %q", r), fmt.Errorf("version %d expired on %s", x.Version, x.Expires.Format(time.RFC3339))).
			WithHint("palyra vault set gives the secret a new version")
	}
	s, err := v.open(r, x)
	return s, i, err
}

// version finds a version, 0 for the newest.
func (v *Vault) version(r Ref, n uint64) (*version, error) {
	at, ok := v.idx.find(r)
	if !ok || len(v.idx.Secrets[at].Versions) == 0 {
		return nil, errNone(r, 0)
	}
	vs := v.idx.Secrets[at].Versions
	if n == 0 {
		return &vs[len(vs)-1], nil
	}
	for i := range vs {
		if vs[i].Version == n {
			return &vs[i], nil
		}
	}
	return nil, errNone(r, n)
}

// open opens the record of a version.
func (v *Vault) open(r Ref, x *version) (*seal.Secret, error) {
	b, err := durable.ReadPrivate(v.record(x), 2*MaxValue+4096)
	if errors.Is(err, fs.ErrNotExist) { // the secret is there: its file was taken away
		return nil, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("open secret %q", r), err)
	}
	if err != nil {
		return nil, err
	}
	if canon.Sum(b) != x.Digest {
		return nil, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("open secret %q", r), errors.New("its file is another one"))
	}
	k, err := v.recordKey(r, x)
	if err != nil {
		return nil, err
	}
	defer k.Wipe()
	return seal.Open(k, x.context("vault/record", r, x.Generation), b)
}

func (v *Vault) recordKey(r Ref, x *version) (*seal.Key, error) {
	s, err := seal.Open(v.kek, x.context("vault/record-key", r, v.head.Generation), x.Key)
	if err != nil {
		return nil, err
	}
	defer s.Wipe()
	return seal.ParseKey(s.Bytes())
}

// Remove drops all versions of a secret, and with them the keys of their files. The name's count
// of versions goes on where it was.
func (v *Vault) Remove(ctx context.Context, r Ref) error {
	return v.with(ctx, func() error {
		if _, err := v.version(r, 0); err != nil {
			return err
		}
		idx := v.idx.clone()
		at, _ := idx.find(r)
		idx.Secrets[at].Versions = []version{}
		return v.commit(ctx, v.head, idx, v.kek)
	})
}

// Expire ends a version of a secret now, if it has this record: it's kept, and isn't given out any
// more. One that has expired stays as it is.
func (v *Vault) Expire(ctx context.Context, r Ref, n uint64, record canon.Digest) error {
	return v.with(ctx, func() error {
		x, err := v.version(r, n)
		if err != nil {
			return err
		}
		if i := x.info(r); n == 0 || x.Digest != record {
			return fault.New(fault.Refused, "changed", fmt.Sprintf("expire secret %q", r), errors.New("its record is another one than was used"))
		} else if i.Expired() {
			return nil
		}
		idx := v.idx.clone()
		at, _ := idx.find(r)
		now := time.Now().UTC().Truncate(time.Second)
		for j := range idx.Secrets[at].Versions {
			if y := &idx.Secrets[at].Versions[j]; y.Version == n {
				y.Expires = &now
			}
		}
		return v.commit(ctx, v.head, idx, v.kek)
	})
}

// List returns the newest version of each secret, by scope and key.
func (v *Vault) List(ctx context.Context) (out []Info, err error) {
	err = v.with(ctx, func() error {
		for _, s := range v.idx.Secrets {
			if n := len(s.Versions); n > 0 {
				out = append(out, s.listed(&s.Versions[n-1]))
			}
		}
		return nil
	})
	return out, err
}

// History returns the versions of a secret that are kept, oldest first.
func (v *Vault) History(ctx context.Context, r Ref) (out []Info, err error) {
	err = v.with(ctx, func() error {
		if _, err := v.version(r, 0); err != nil {
			return err
		}
		at, _ := v.idx.find(r)
		s := &v.idx.Secrets[at]
		for i := range s.Versions {
			out = append(out, s.listed(&s.Versions[i]))
		}
		return nil
	})
	return out, err
}

// Check opens every version of every secret, and compares files with the index. It is the oracle
// of the folder.
func (v *Vault) Check(ctx context.Context) (versions int, err error) {
	err = v.with(ctx, func() error {
		for _, s := range v.idx.Secrets {
			for i := range s.Versions {
				x := &s.Versions[i]
				got, err := v.open(s.Ref, x)
				if err != nil {
					return err
				}
				n := len(got.Bytes())
				got.Wipe()
				if n != x.Size || x.Version > s.Last || i > 0 && x.Version <= s.Versions[i-1].Version {
					return fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("check secret %q", s.Ref), errors.New("its versions or sizes are wrong"))
				}
				versions++
			}
		}
		if !slices.IsSortedFunc(v.idx.Secrets, func(a, b secret) int { return a.Ref.compare(b.Ref) }) {
			return fault.New(fault.Integrity, "store_corrupt", "check vault", errors.New("its index isn't sorted"))
		}
		return nil
	})
	return versions, err
}

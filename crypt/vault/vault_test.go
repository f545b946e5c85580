package vault

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// log is a Ledger over a real journal.
type log struct {
	ring *keyring.Ring
	j    *journal.Journal
	err  error // of the next Commit
}

func openLog(state string, step func(string)) (*log, error) {
	ring, err := keyring.Open(state)
	if err != nil {
		return nil, err
	}
	j, err := journal.Open(filepath.Join(state, "journal"), ring.Log(), journal.Options{TestOnlyStep: step})
	return &log{ring: ring, j: j}, err
}

func (l *log) Newest(ctx context.Context, from uint64) (*Root, uint64, error) {
	if err := l.j.Refresh(ctx); err != nil {
		return nil, 0, err
	}
	size := l.j.Size()
	r, _, err := Newest(l.j.Entries(from, size), receipt.TrustIn(l.ring))
	return r, size, err
}

func (l *log) Commit(ctx context.Context, r Root) error {
	if l.err != nil {
		return l.err
	}
	return l.act(ctx, ActCommit, r.Vault, r.Detail())
}

func (l *log) act(ctx context.Context, name, subject string, detail map[string]string) error {
	env, err := receipt.SignAct(l.ring.Attestation(), receipt.Act{Version: receipt.ActVersion, Act: name, Principal: "test", Subject: subject,
		Detail: detail, Seq: l.j.Size(), Time: "2026-01-02T03:04:05Z"})
	if err != nil {
		return err
	}
	e, err := env.Entry(l.ring.Attestation())
	if err != nil {
		return err
	}
	_, err = l.j.Append(ctx, journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
	return err
}

// house is a state directory with a vault.
type house struct {
	*log
	state, dir string
	id         *seal.IdentityKey
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{state: filepath.Join(t.TempDir(), "state")}
	h.dir = filepath.Join(h.state, "vault")
	var err error
	if h.log, err = openLog(h.state, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.j.Close() })
	if h.id, err = seal.NewIdentity(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *house) recipient(t testing.TB, label string) *seal.PublicKey {
	t.Helper()
	p, err := h.id.Recipient(label)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h *house) create(t testing.TB) *Vault {
	t.Helper()
	v, err := Create(t.Context(), h.dir, h.log, h.id, h.recipient(t, "owner"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func (h *house) open(t testing.TB) *Vault {
	t.Helper()
	v, err := Open(t.Context(), h.dir, h.log, h.id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// Set drafts a version and stores it.
func (v *Vault) Set(ctx context.Context, r Ref, value []byte, expires time.Time) (uint64, error) {
	d, err := v.Draft(ctx, r, value, expires)
	if err != nil {
		return 0, err
	}
	return d.Version(), v.Store(ctx, d, d.Digest())
}

func ref(t testing.TB, s string) Ref {
	t.Helper()
	r, err := ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func set(t testing.TB, v *Vault, r, value string) uint64 {
	t.Helper()
	n, err := v.Set(t.Context(), ref(t, r), []byte(value), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func wants(t testing.TB, v *Vault, r string, n uint64, value string) {
	t.Helper()
	s, i, err := v.Get(t.Context(), ref(t, r), n)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Wipe()
	if string(s.Bytes()) != value || i.Size != len(value) || n != 0 && i.Version != n {
		t.Fatalf("%s version %d: %q, want %q", r, i.Version, s.Bytes(), value)
	}
}

func refused(t testing.TB, err error, kind fault.Kind, reason string) {
	t.Helper()
	if fault.KindOf(err) != kind || fault.ReasonOf(err) != reason {
		t.Fatalf("got %v (%s), want %v %s", err, fault.ReasonOf(err), kind, reason)
	}
}

func TestParseRef(t *testing.T) {
	for _, s := range []string{"vault://global/api_key", "vault://principal:uid:1000/a.B-c_1", "vault://channel:slack:T1:x/token", "vault://skill:acme.mail/k"} {
		if got := ref(t, s).String(); got != s {
			t.Errorf("%s became %s", s, got)
		}
	}
	for _, s := range []string{"", "global/k", "vault://global", "vault://global/", "vault:///k", "vault://GLOBAL/k", "vault://global:x/k", "vault://global/a/b", "vault://global/ k", "vault://global/k ",
		"vault://principal:/k", "vault://principal/k", "vault://channel:slack/k", "vault://channel::a/k", "vault://channel:a:/k", "vault://skill:a b/k", "vault://skill:../k", "vault://team:x/k",
		"vault://global/..", "vault://global/k%41", "vault://global/ké", "vault://global/k\x00", "vault://global/" + strings.Repeat("k", 129), "vault://skill:" + strings.Repeat("s", 257) + "/k"} {
		if s == "vault://skill:../k" {
			continue // an id, never a path
		}
		if r, err := ParseRef(s); err == nil {
			t.Errorf("%q was taken as %v", s, r)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	f.Add("vault://global/k")
	f.Add("vault://channel:slack:T1:x/token")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseRef(s); err == nil && r.String() != s {
			t.Fatalf("%q has two spellings", s)
		}
	})
}

func TestAddRecipient(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	set(t, v, "vault://global/token", "value one")
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := id.Recipient("safe")
	if err != nil {
		t.Fatal(err)
	}
	want := Recipient{"safe", seal.TypeHPKE, pub.ID()}
	other := want
	other.ID = h.recipient(t, "x").ID()
	refused(t, v.AddRecipient(t.Context(), pub, other), fault.Refused, "invalid_input") // the key was exchanged after the decision
	if o, err := Open(t.Context(), h.dir, h.log, id); err == nil {
		o.Close()
		t.Fatal("a refused recipient opens the vault")
	}
	if err := v.AddRecipient(t.Context(), pub, want); err != nil {
		t.Fatal(err)
	}
	refused(t, v.AddRecipient(t.Context(), pub, want), fault.Usage, "invalid_input") // the label is taken
	again, _ := id.Recipient("again")
	refused(t, v.AddRecipient(t.Context(), again, Recipient{"again", seal.TypeHPKE, pub.ID()}), fault.Usage, "invalid_input")
	words, err := seal.NewPassphrase("words", []byte("correct horse battery"))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.AddRecipient(t.Context(), words, Recipient{Label: "words", Type: seal.TypePassphrase}); err != nil {
		t.Fatal(err)
	}
	if r := v.Recipients(); len(r) != 3 || r[1] != want || r[2].Label != "words" {
		t.Errorf("recipients %v", r)
	}
	for _, i := range []seal.Identity{id, words, h.id} {
		o, err := Open(t.Context(), h.dir, h.log, i)
		if err != nil {
			t.Fatal(err)
		}
		wants(t, o, "vault://global/token", 0, "value one")
		if _, err := o.Check(t.Context()); err != nil {
			t.Error(err)
		}
		o.Close()
	}
	// A new key is wrapped for whoever was added, too, and not for whoever is dropped.
	if err := v.RotateKey(t.Context(), "words"); err != nil {
		t.Fatal(err)
	}
	o, err := Open(t.Context(), h.dir, h.log, id)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for i := len(o.Recipients()); i < maxRecipients; i++ {
		k, err := seal.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		label := "more-" + string(rune('a'+i))
		p, _ := k.Recipient(label)
		if err := o.AddRecipient(t.Context(), p, Recipient{label, seal.TypeHPKE, p.ID()}); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, o.AddRecipient(t.Context(), again, Recipient{"again", seal.TypeHPKE, pub.ID()}), fault.Refused, "too_large")
	_, err = Open(t.Context(), h.dir, h.log, words)
	refused(t, err, fault.Denied, "keys_locked")
}

// TestRollBackExpires: a version that is the newest again expires as it did, or as said, and one that
// has expired comes back only with a new time.
func TestRollBackExpires(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	r := ref(t, "vault://global/token")
	past, later, other := time.Now().Add(-time.Hour), time.Now().Add(time.Hour).UTC().Truncate(time.Second), time.Now().Add(2*time.Hour).UTC().Truncate(time.Second)
	for _, at := range []time.Time{past, later} {
		if _, err := v.Set(t.Context(), r, []byte("value"), at); err != nil {
			t.Fatal(err)
		}
	}
	_, err := v.DraftAgain(t.Context(), r, 1, time.Time{})
	refused(t, err, fault.Refused, "secret_expired")
	for _, c := range []struct {
		from       uint64
		said, want time.Time
	}{{2, time.Time{}, later}, {2, other, other}, {1, later, later}} {
		d, err := v.DraftAgain(t.Context(), r, c.from, c.said)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Store(t.Context(), d, d.Digest()); err != nil {
			t.Fatal(err)
		}
		_, i, err := v.Get(t.Context(), r, 0)
		if err != nil || i.Expires == nil || !i.Expires.Equal(c.want) {
			t.Errorf("from %d: %+v, %v", c.from, i, err)
		}
	}
}

func TestVersions(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	const key = "vault://global/token"
	if n := set(t, v, key, "value one") + set(t, v, key, "value two"); n != 3 {
		t.Errorf("versions sum to %d, want 1+2", n)
	}
	set(t, v, "vault://principal:uid:1000/token", "another")
	v = h.open(t)
	wants(t, v, key, 0, "value two")
	wants(t, v, key, 1, "value one")
	wants(t, v, "vault://principal:uid:1000/token", 0, "another")
	if d, err := v.DraftAgain(t.Context(), ref(t, key), 1, time.Time{}); err != nil || d.Version() != 3 || v.Store(t.Context(), d, d.Digest()) != nil {
		t.Fatalf("rollback: %v", err)
	}
	wants(t, v, key, 0, "value one")
	if l, err := v.List(t.Context()); err != nil || len(l) != 2 || l[0].Version != 3 || l[1].Ref.Scope() != "principal:uid:1000" {
		t.Errorf("list %v, %v", l, err)
	}
	for range MaxVersions {
		set(t, v, key, "more")
	}
	if l, err := v.History(t.Context(), ref(t, key)); err != nil || len(l) != MaxVersions || l[0].Version != 4 {
		t.Errorf("history %v, %v", l, err)
	}
	_, _, err := v.Get(t.Context(), ref(t, key), 1)
	refused(t, err, fault.NotFound, "not_found")

	if err := v.Remove(t.Context(), ref(t, key)); err != nil {
		t.Fatal(err)
	}
	_, _, err = v.Get(t.Context(), ref(t, key), 0)
	refused(t, err, fault.NotFound, "not_found")
	refused(t, v.Remove(t.Context(), ref(t, key)), fault.NotFound, "not_found")
	if n := set(t, v, key, "again"); n != 4+MaxVersions {
		t.Errorf("after removal version %d, want %d", n, 4+MaxVersions)
	}
	if es, err := os.ReadDir(filepath.Join(h.dir, "records")); err != nil || len(es) != 2 {
		t.Errorf("%d files, want 2: %v", len(es), err)
	}
	if n, err := v.Check(t.Context()); n != 2 || err != nil {
		t.Errorf("check: %d, %v", n, err)
	}
}

func TestBounds(t *testing.T) {
	v := newHouse(t).create(t)
	r := ref(t, "vault://global/k")
	if _, err := v.Set(t.Context(), r, make([]byte, MaxValue), time.Time{}); err != nil {
		t.Error(err)
	}
	_, err := v.Set(t.Context(), r, make([]byte, MaxValue+1), time.Time{})
	refused(t, err, fault.Usage, "too_large")
	_, err = v.Set(t.Context(), r, nil, time.Time{})
	refused(t, err, fault.Usage, "invalid_input")
	_, err = v.Set(t.Context(), Ref{}, []byte("x"), time.Time{})
	refused(t, err, fault.Usage, "invalid_input")
	if _, err := v.Set(t.Context(), r, []byte("old"), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	_, _, err = v.Get(t.Context(), r, 0)
	refused(t, err, fault.Refused, "secret_expired")
}

// TestNothingReadable looks for names, values and sizes in every file of the vault and the journal.
func TestNothingReadable(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	set(t, v, "vault://skill:hushhush/quietname", "the-plain-value")
	set(t, v, "vault://skill:hushhush/quietname", "tiny")
	sizes := map[int64]bool{}
	err := filepath.WalkDir(h.state, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		for _, s := range []string{"hushhush", "quietname", "the-plain-value"} {
			if bytes.Contains(b, []byte(s)) {
				t.Errorf("%s holds %q", p, s)
			}
		}
		if fi, err := d.Info(); filepath.Base(filepath.Dir(p)) == "records" && err == nil {
			sizes[fi.Size()] = true
		}
		return err
	})
	if err != nil || len(sizes) != 1 {
		t.Errorf("%d sizes of records, want 1: %v", len(sizes), err)
	}
}

// save copies the vault's files, and restore puts them back.
func (h *house) save(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(h.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out[p], err = os.ReadFile(p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (h *house) restore(t *testing.T, files map[string][]byte) {
	t.Helper()
	for p, b := range files {
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRollback puts older files back: all of them, and the head alone. The control is that the
// same files opened before.
func TestRollback(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	const key = "vault://global/token"
	set(t, v, key, "revoked one")
	old := h.save(t)
	wants(t, h.open(t), key, 0, "revoked one")
	set(t, v, key, "new one")
	now := h.save(t)
	wants(t, h.open(t), key, 0, "new one")

	h.restore(t, old)
	_, err := Open(t.Context(), h.dir, h.log, h.id)
	refused(t, err, fault.Integrity, "rolled_back")
	_, _, err = v.Get(t.Context(), ref(t, key), 0) // an open one sees it, too
	refused(t, err, fault.Integrity, "rolled_back")
	_, err = v.Set(t.Context(), ref(t, key), []byte("x"), time.Time{})
	refused(t, err, fault.Integrity, "rolled_back")

	h.restore(t, now)
	wants(t, h.open(t), key, 0, "new one")
	h.restore(t, map[string][]byte{filepath.Join(h.dir, "seen"): old[filepath.Join(h.dir, "seen")]})
	wants(t, h.open(t), key, 0, "new one") // less was read of the journal: more is read again
}

// TestOtherVault puts another vault for the same identity in the place of ours.
func TestOtherVault(t *testing.T) {
	h, o := newHouse(t), newHouse(t)
	h.create(t)
	o.id = h.id
	o.create(t)
	for _, n := range []string{"head", "seen"} {
		b, err := os.ReadFile(filepath.Join(o.dir, n))
		if err != nil {
			t.Fatal(err)
		}
		h.restore(t, map[string][]byte{filepath.Join(h.dir, n): b})
	}
	_, err := Open(t.Context(), h.dir, h.log, h.id)
	refused(t, err, fault.Integrity, "rolled_back")

	if err := os.RemoveAll(h.dir); err != nil {
		t.Fatal(err)
	}
	_, err = Create(t.Context(), h.dir, h.log, h.id, h.recipient(t, "owner"))
	refused(t, err, fault.Integrity, "rolled_back")
}

// TestTampered changes a byte of each file, swaps two records and removes one.
func TestTampered(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	set(t, v, "vault://global/a", "value of a")
	set(t, v, "vault://global/b", "value of b")
	whole := h.save(t)
	var records []string
	for p, b := range whole {
		if filepath.Base(filepath.Dir(p)) == "records" {
			records = append(records, p)
		}
		if len(b) == 0 || filepath.Base(p) == "seen" { // a changed seen is no seen
			continue
		}
		for _, at := range []int{0, len(b) / 2, len(b) - 2} {
			c := bytes.Clone(b)
			c[at] ^= 1
			h.restore(t, map[string][]byte{p: c})
			o, err := Open(t.Context(), h.dir, h.log, h.id)
			if err == nil {
				_, err = o.Check(t.Context())
				o.Close()
			}
			if fault.KindOf(err) != fault.Integrity && fault.KindOf(err) != fault.BadState {
				t.Errorf("%s changed at %d: %v", filepath.Base(p), at, err)
			}
		}
		h.restore(t, whole)
	}
	h.restore(t, map[string][]byte{records[0]: whole[records[1]], records[1]: whole[records[0]]})
	_, err := h.open(t).Check(t.Context())
	refused(t, err, fault.Integrity, "store_corrupt")
	h.restore(t, whole)
	if _, err := h.open(t).Check(t.Context()); err != nil {
		t.Errorf("control: %v", err)
	}
	os.Remove(records[0])
	if _, err := h.open(t).Check(t.Context()); err == nil {
		t.Error("a record is gone, and Check passes")
	}
}

// TestLedgerFails wants no acknowledgement without the journal, and that the next operation
// settles what is on disk.
func TestLedgerFails(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	h.err = errors.New("disk full")
	if _, err := v.Set(t.Context(), ref(t, "vault://global/a"), []byte("value"), time.Time{}); !errors.Is(err, h.err) {
		t.Fatalf("acknowledged without the journal: %v", err)
	}
	if _, _, err := v.Get(t.Context(), ref(t, "vault://global/a"), 0); !errors.Is(err, h.err) {
		t.Fatalf("read what the journal doesn't know: %v", err)
	}
	h.err = nil
	wants(t, h.open(t), "vault://global/a", 0, "value")
	wants(t, v, "vault://global/a", 0, "value")
}

func TestRotate(t *testing.T) {
	h := newHouse(t)
	away, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	recovery, _ := away.Recipient("recovery")
	pass, _ := seal.NewPassphrase("words", []byte("correct horse battery"))
	v, err := Create(t.Context(), h.dir, h.log, pass, h.recipient(t, "owner"), recovery, pass)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	set(t, v, "vault://global/a", "value of a")
	if err := v.RotateKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(t, v, "vault://global/a", "value since")
	again, _ := seal.NewPassphrase("any", []byte("correct horse battery"))
	for _, id := range []seal.Identity{h.id, away, again} {
		o, err := Open(t.Context(), h.dir, h.log, id)
		if err != nil {
			t.Fatal(err)
		}
		wants(t, o, "vault://global/a", 1, "value of a")
		wants(t, o, "vault://global/a", 2, "value since")
		o.Close()
	}
	o := h.open(t)
	refused(t, o.RotateKey(t.Context()), fault.Usage, "invalid_input") // the passphrase isn't at hand
	refused(t, o.RotateKey(t.Context(), "nobody"), fault.NotFound, "not_found")
	if by := o.OpenedBy(); by != "owner" {
		t.Errorf("opened by %q", by)
	}
	if err := o.RotateKey(t.Context(), "words", "recovery"); err != nil {
		t.Fatal(err)
	}
	_, _, err = v.Get(t.Context(), ref(t, "vault://global/a"), 0)
	refused(t, err, fault.Denied, "keys_locked")
	_, err = Open(t.Context(), h.dir, h.log, away)
	refused(t, err, fault.Denied, "keys_locked")
	wants(t, h.open(t), "vault://global/a", 1, "value of a")
}

// TestPassphrases: of several passphrases each is its own recipient. The vault says which one opened
// it, a refused rotation which one is missing, and none is there twice.
func TestPassphrases(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	set(t, v, "vault://global/a", "value of a")
	phrase := func(label, words string) *seal.Passphrase {
		t.Helper()
		p, err := seal.NewPassphrase(label, []byte(words))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ann, bob := phrase("ann", "correct horse battery"), phrase("bob", "staple battery horse")
	add := func(p *seal.Passphrase, label string) error {
		return v.AddRecipient(t.Context(), p, Recipient{Label: label, Type: seal.TypePassphrase})
	}
	for _, err := range []error{add(ann, "ann"), add(bob, "bob")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := add(phrase("cid", "staple battery horse"), "cid"); fault.ReasonOf(err) != "invalid_input" || !strings.Contains(err.Error(), `that of "bob" already`) {
		t.Errorf("bob's words again: %v", err)
	}
	for label, id := range map[string]seal.Identity{"owner": h.id, "ann": phrase("any", "correct horse battery"), "bob": phrase("any", "staple battery horse")} {
		o, err := Open(t.Context(), h.dir, h.log, id)
		if err != nil {
			t.Fatal(err)
		}
		if by := o.OpenedBy(); by != label {
			t.Errorf("opened by %q, want %q", by, label)
		}
		o.Close()
	}
	o, err := Open(t.Context(), h.dir, h.log, bob)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.RotateKey(t.Context()); fault.ReasonOf(err) != "invalid_input" || !strings.Contains(err.Error(), `of "ann"`) {
		t.Errorf("rotated without ann's words: %v", err)
	}
	if err := o.RotateKey(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), h.dir, h.log, ann)
	refused(t, err, fault.Denied, "keys_locked")
	again, err := Open(t.Context(), h.dir, h.log, bob)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if wants(t, again, "vault://global/a", 1, "value of a"); again.OpenedBy() != "bob" {
		t.Errorf("opened by %q", again.OpenedBy())
	}
}

// TestTwoProcesses works on one vault from two handles.
func TestTwoProcesses(t *testing.T) {
	h := newHouse(t)
	a := h.create(t)
	b := h.open(t)
	for range 3 {
		set(t, a, "vault://global/a", "from a")
		set(t, b, "vault://global/a", "from b")
		wants(t, a, "vault://global/a", 0, "from b")
	}
	if n, err := a.Check(t.Context()); n != 6 || err != nil {
		t.Errorf("check: %d, %v", n, err)
	}
}

// TestSeen wants that a long journal isn't read again and again.
func TestSeen(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	set(t, v, "vault://global/a", "value")
	for range unread + 10 {
		if err := h.act(t.Context(), "test.noise", "", nil); err != nil {
			t.Fatal(err)
		}
	}
	h.open(t)
	if o := h.open(t); o.seen.Size < unread {
		t.Errorf("the next process begins at entry %d", o.seen.Size)
	}
	wants(t, h.open(t), "vault://global/a", 0, "value")
}

func BenchmarkVault(b *testing.B) {
	h := newHouse(b)
	v := h.create(b)
	value := bytes.Repeat([]byte("v"), 1024)
	r := ref(b, "vault://global/a")
	b.Run("set", func(b *testing.B) {
		for b.Loop() {
			if _, err := v.Set(b.Context(), r, value, time.Time{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			s, _, err := v.Get(b.Context(), r, 0)
			if err != nil {
				b.Fatal(err)
			}
			s.Wipe()
		}
	})
}

// TestExpire: a version ends at once, and no other; a version of another record doesn't.
func TestExpire(t *testing.T) {
	const name = "vault://global/token"
	h := newHouse(t)
	v := h.create(t)
	set(t, v, name, "the first")
	set(t, v, name, "the second")
	first, err := func() (canon.Digest, error) {
		_, d, err := v.Find(t.Context(), ref(t, name), 1)
		return d, err
	}()
	if err != nil {
		t.Fatal(err)
	}
	refused(t, v.Expire(t.Context(), ref(t, name), 2, first), fault.Refused, "changed")
	refused(t, v.Expire(t.Context(), ref(t, name), 0, first), fault.Refused, "changed")
	refused(t, v.Expire(t.Context(), ref(t, name), 3, first), fault.NotFound, "not_found")
	for range 2 { // the second changes nothing
		epoch := v.Epoch()
		if err := v.Expire(t.Context(), ref(t, name), 1, first); err != nil {
			t.Fatal(err)
		}
		wants(t, v, name, 0, "the second")
		_, err = v.GetRecord(t.Context(), ref(t, name), 1, first)
		refused(t, err, fault.Refused, "secret_expired")
		if epoch > 3 && v.Epoch() != epoch {
			t.Errorf("epoch %d after %d", v.Epoch(), epoch)
		}
	}
	if _, err := v.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

package store

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/fault"
)

// house is a state directory with a store, a journal and keys.
type house struct {
	dir     string
	store   *Store
	journal *journal.Journal
	id      *age.X25519Identity
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{dir: filepath.Join(t.TempDir(), "state")}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	if h.journal, err = journal.Open(filepath.Join(h.dir, "journal"), ring.Log(), journal.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.journal.Close(); err != nil {
			t.Error(err)
		}
	})
	h.store = openStore(t, filepath.Join(h.dir, "store"), Options{})
	if h.id, err = age.GenerateX25519Identity(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *house) add(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		if _, err := h.journal.Append(context.Background(), journal.Entry{Leaf: []byte(fmt.Sprint("leaf ", i)), Content: []byte("content")}); err != nil {
			t.Error(err)
		}
	}
}

func (h *house) options() BackupOptions {
	return BackupOptions{StateDir: h.dir, Recipients: []string{h.id.Recipient().String()}}
}

func (h *house) unlock() Unlock { return Unlock{Identities: "# a comment\n" + h.id.String() + "\n"} }

func (h *house) backup(t testing.TB, o BackupOptions) ([]byte, *Manifest) {
	t.Helper()
	var b bytes.Buffer
	m, err := h.store.Backup(context.Background(), &b, o)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

func (h *house) verify(b []byte) (*Manifest, error) {
	return VerifyBackup(context.Background(), bytes.NewReader(b), h.unlock())
}

func TestBackup(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.add(t, 300) // a complete tile, and some in the write-ahead file
	r := fillStore(t, h.store)
	b, m := h.backup(t, h.options())
	if bytes.Contains(b, []byte(r.ID)) || bytes.Contains(b, []byte("SQLite")) {
		t.Error("the backup is not encrypted")
	}
	if m.JournalSize != 300 || m.Schema != len(migrations()) || m.PrivateKeys {
		t.Errorf("manifest: %+v", m)
	}
	for _, f := range m.Files {
		if strings.HasPrefix(f.Path, "keys/") || strings.HasSuffix(f.Path, "lock") {
			t.Errorf("%s is in the backup", f.Path)
		}
	}
	got, err := h.verify(b)
	if err != nil {
		t.Fatal(err)
	}
	d1, err1 := m.Digest()
	d2, err2 := got.Digest()
	if d1 != d2 || err1 != nil || err2 != nil || d1.IsZero() {
		t.Errorf("made %v, verified %v", d1, d2)
	}

	dir := filepath.Join(t.TempDir(), "restored")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(context.Background(), bytes.NewReader(b), h.unlock(), dir); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the restored directory: %v, %v", fi.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "keys")); !os.IsNotExist(err) {
		t.Errorf("keys were restored: %v", err)
	}
	s := openStore(t, filepath.Join(dir, "store"), Options{})
	check(t, s)
	step := see(t, s, func(tx *Tx) (*Step, error) { return tx.Step(r.ID, 0) })
	f, _, err := s.OpenArtifact(context.Background(), step.OutputDigest)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close() // only read from
	vkey, err := os.ReadFile(filepath.Join(dir, "trust", "log.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	if rep, err := journal.Check(filepath.Join(dir, "journal"), journal.OneKey(strings.TrimSpace(string(vkey)))); err != nil || rep.Size != 300 {
		t.Errorf("the restored journal: %+v, %v", rep, err)
	}
	// Not over something that is there.
	_, err = Restore(context.Background(), bytes.NewReader(b), h.unlock(), dir)
	wants(t, err, fault.Usage, "bad_file")
	_, err = Restore(context.Background(), bytes.NewReader(b), h.unlock(), "relative")
	wants(t, err, fault.Usage, "invalid_input", "the path is not absolute")
	if es, err := os.ReadDir(h.store.dir); err != nil || slices.ContainsFunc(es, func(e os.DirEntry) bool { return e.Name() == stagingDir }) {
		t.Errorf("something is left behind: %v, %v", es, err)
	}
}

// TestBackupWithKeys goes on where the backup was made.
func TestBackupWithKeys(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.add(t, 3)
	o := h.options()
	o.IncludePrivateKeys = true
	b, _ := h.backup(t, o)
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(context.Background(), bytes.NewReader(b), h.unlock(), dir); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(filepath.Join(dir, "journal"), ring.Log(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(context.Background(), journal.Entry{Leaf: []byte("next")}); err != nil || j.Size() != 4 {
		t.Errorf("size %d, %v", j.Size(), err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestBackupPassphrase(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	b, m := h.backup(t, BackupOptions{Passphrase: "correct horse", testOnlyWork: 4})
	if m.JournalSize != -1 {
		t.Errorf("without a state directory there is a journal of %d", m.JournalSize)
	}
	ctx := context.Background()
	if _, err := VerifyBackup(ctx, bytes.NewReader(b), Unlock{Passphrase: "correct horse"}); err != nil {
		t.Error(err)
	}
	_, err := VerifyBackup(ctx, bytes.NewReader(b), Unlock{Passphrase: "wrong horse"})
	wants(t, err, fault.Denied, "keys_locked")
	_, err = h.verify(b)
	wants(t, err, fault.Denied, "keys_locked")
	if _, err := Restore(ctx, bytes.NewReader(b), Unlock{Passphrase: "correct horse"}, filepath.Join(t.TempDir(), "r")); err != nil {
		t.Error(err)
	}
	for _, u := range []Unlock{{}, {Identities: "x"}, {Identities: h.id.String(), Passphrase: "y"}} {
		_, err := VerifyBackup(ctx, bytes.NewReader(b), u)
		wants(t, err, fault.Usage, "bad_file")
		if strings.Contains(err.Error(), "AGE-SECRET") {
			t.Errorf("the error holds a key: %v", err)
		}
	}
	for _, o := range []struct {
		BackupOptions
		says string
	}{
		{BackupOptions{}, "no key could open it"},
		{BackupOptions{Recipients: []string{"age1"}}, "no age public key"},
		{BackupOptions{Recipients: []string{""}}, "no age public key"},
		{BackupOptions{Recipients: []string{h.id.String()}}, "no age public key"}, // the private half
		{BackupOptions{Recipients: []string{h.id.Recipient().String()}, Passphrase: "p"}, "cannot be mixed"},
	} {
		_, err := h.store.Backup(ctx, &bytes.Buffer{}, o.BackupOptions)
		wants(t, err, fault.Usage, "invalid_input", o.says)
		if err != nil && strings.Contains(err.Error(), "AGE-SECRET") {
			t.Errorf("the error holds a key: %v", err)
		}
	}
}

// TestBackupDamage cuts and flips a backup everywhere: nothing of it verifies,
// and nothing is restored.
func TestBackupDamage(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.add(t, 2)
	fillStore(t, h.store)
	b, _ := h.backup(t, h.options())
	bad := func(what string, b []byte) {
		t.Helper()
		_, err := h.verify(b)
		if k := fault.KindOf(err); k != fault.Integrity && k != fault.Denied {
			t.Errorf("%s: %v (%v)", what, err, k)
		}
	}
	cuts := []int{0, 1, 20, 100, 200, len(b) - 1, len(b) - 16, len(b) - 17}
	for i := 0; i < len(b); i += 64 << 10 { // age's chunks: a cut between two is the hardest to see
		cuts = append(cuts, i, i+16)
	}
	for _, n := range cuts {
		if n < len(b) {
			bad(fmt.Sprint("cut to ", n), b[:n])
		}
	}
	for i := 0; i < len(b); i += 1 + len(b)/60 {
		c := bytes.Clone(b)
		c[i] ^= 1
		bad(fmt.Sprint("flipped at ", i), c)
	}
	bad("something follows", append(bytes.Clone(b), 0))
	bad("nothing of ours", []byte("hello"))

	dir := filepath.Join(t.TempDir(), "restored")
	c := bytes.Clone(b)
	c[len(c)/2] ^= 1
	_, err := Restore(context.Background(), bytes.NewReader(c), h.unlock(), dir)
	wants(t, err, fault.Integrity, "store_corrupt")
	if es, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(es) != 0 {
		t.Errorf("something is left behind: %v, %v", es, err)
	}
}

// TestBackupSparse reads an archive whose second file is a hole of a terabyte.
func TestBackupSparse(t *testing.T) {
	t.Parallel()
	record := func(key, value string) string {
		return fmt.Sprintf("%d %s=%s\n", len(key)+len(value)+5, key, value) // two digits of length
	}
	const size = "1099511627776"
	none := "0\n" + strings.Repeat("\x00", 510) // a map without a part that has data
	for name, c := range map[string]struct{ records, content string }{
		"1.0":              {record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.realsize", size), none},
		"0.1":              {record("GNU.sparse.size", size) + record("GNU.sparse.numblocks", "1") + record("GNU.sparse.map", "0,0"), ""},
		"a map, no length": {record("size", size) + record("GNU.sparse.numblocks", "1") + record("GNU.sparse.map", "0,0"), ""},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		put := func(name, content string) {
			if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), Format: tar.FormatUSTAR}), second(w.Write([]byte(content))), w.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		put(backupMark, backupForm)
		at := b.Len()
		put("pax", c.records)
		put("store/artifacts/hole", c.content)
		h := b.Bytes()[at : at+512]
		h[156] = tar.TypeXHeader
		copy(h[148:156], "        ") // the checksum counts itself as blanks
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
		var read int64
		_, err := entries(tar.NewReader(&b), &Manifest{}, func(_ string, r io.Reader) (err error) {
			if read, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20)); err == nil {
				err = errors.New("it was read")
			}
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "sparse") || read != 0 {
			t.Errorf("%s: %d bytes of a hole: %v", name, read, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestBackupUnderLoad makes backups while others write: each is consistent.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.add(t, 250) // soon a tile is complete and the write-ahead file begins anew
	r := fillStore(t, h.store)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if i < 40 {
				h.add(t, 1)
			}
			if _, err := h.store.PutArtifact(context.Background(), r.ID, "text/plain", strings.NewReader(fmt.Sprint(i))); err != nil {
				t.Error(err)
				return
			}
			do(t, h.store, func(tx *Tx) error { _, err := tx.AppendEvent(r.ID, "k", []byte("1")); return err })
		}
	})
	for i := range 2 {
		b, _ := h.backup(t, h.options())
		if _, err := Restore(context.Background(), bytes.NewReader(b), h.unlock(), filepath.Join(t.TempDir(), fmt.Sprint(i))); err != nil {
			t.Error(err)
		}
	}
	cancel()
	wg.Wait()
	check(t, h.store)
}

// TestBackupHolds: nothing is swept under a backup, and one is made at a time.
func TestBackupHolds(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	r := fillStore(t, h.store)
	do(t, h.store, func(tx *Tx) error { return tx.ReleaseArtifacts(r.ID) })
	ctx := context.Background()
	during := false
	w := writerFunc(func(p []byte) (int, error) {
		if !during {
			during = true
			_, _, err := h.store.SweepArtifacts(ctx)
			wants(t, err, fault.Busy, "locked")
			_, err = h.store.Backup(ctx, &bytes.Buffer{}, h.options())
			wants(t, err, fault.Busy, "locked")
		}
		return len(p), nil
	})
	if _, err := h.store.Backup(ctx, w, h.options()); err != nil || !during {
		t.Fatal(err)
	}
	if n, _, err := h.store.SweepArtifacts(ctx); n != 1 || err != nil {
		t.Errorf("after the backup: swept %d, %v", n, err)
	}
	full := writerFunc(func(p []byte) (int, error) { return 0, fmt.Errorf("no room") })
	if _, err := h.store.Backup(ctx, full, h.options()); err == nil {
		t.Error("nothing could be written, and there is no error")
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_, err := h.store.Backup(ctx, &bytes.Buffer{}, h.options())
	wants(t, err, fault.Canceled, "canceled")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestBackupCorrupt: a backup of what is damaged is refused now, not found out
// when it is needed.
func TestBackupCorrupt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	r := fillStore(t, h.store)
	h.add(t, 3)
	d := see(t, h.store, func(tx *Tx) (*Step, error) { return tx.Step(r.ID, 0) }).OutputDigest
	path := filepath.Join(h.store.artifacts.dir, artifactPath(d))
	if err := os.WriteFile(path, []byte("0utput"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := h.store.Backup(context.Background(), &bytes.Buffer{}, h.options())
	wants(t, err, fault.Integrity, "store_corrupt")
	if err := os.WriteFile(path, []byte("output"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.backup(t, h.options())
	vkey := filepath.Join(h.dir, "trust", "log.vkey")
	good, err := os.ReadFile(vkey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(vkey, bytes.Replace(good, []byte("+"), []byte("+0"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = h.store.Backup(context.Background(), &bytes.Buffer{}, h.options()); err == nil {
		t.Error("a journal that does not check was backed up")
	}
}

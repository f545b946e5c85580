package store

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/crypt/vault"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// BackupOptions say what goes into a backup and who can read it.
type BackupOptions struct {
	// StateDir is the state directory whose journal/, trust/ and vault/ go in besides the
	// store. "": the store alone.
	StateDir string
	// Recipients are age public keys, "age1…". One of them or a passphrase is needed.
	Recipients []string
	// Passphrase encrypts instead, with scrypt; it is not mixed with recipients.
	Passphrase string
	// IncludePrivateKeys puts keys/ in too. Whoever can read the backup can then
	// sign as this installation. Without them the restored journal can be read
	// and verified and not continued.
	IncludePrivateKeys bool

	testOnlyWork int // scrypt's work factor; 0: age's default
}

// NewBackupKey makes a key pair for backups: the text of an age identity file, as
// age-keygen writes it, and the public key in it.
func NewBackupKey() (identity, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fault.New(fault.Internal, "internal", "make backup key", err)
	}
	recipient = id.Recipient().String()
	return fmt.Sprintf("# created: %s\n# public key: %s\n%s\n", time.Now().UTC().Format(time.RFC3339), recipient, id), recipient, nil
}

// ManifestFile is one file of a backup.
type ManifestFile struct {
	Path   string       `json:"path"`
	Size   int64        `json:"size"`
	Digest canon.Digest `json:"digest"`
}

// Manifest lists what is in a backup. Its canonical JSON is the last file in it,
// and its digest names the content; the journal names the encrypted file.
type Manifest struct {
	Version     int            `json:"version"` // 1
	Created     string         `json:"created"` // RFC 3339, UTC
	Schema      int            `json:"schema"`
	JournalSize int64          `json:"journal_size"` // entries; -1: the journal is not in it
	PrivateKeys bool           `json:"private_keys"`
	Files       []ManifestFile `json:"files"` // in the order of the archive
}

// Digest names the content of the backup with this manifest.
func (m *Manifest) Digest() (canon.Digest, error) {
	b, err := canon.Marshal(m)
	return canon.Sum(b), err
}

// The names in a backup's archive.
const (
	backupMark   = "palyra-backup" // the first file; its content is the version
	backupForm   = "1\n"
	manifestFile = "manifest.json"
	stagingDir   = "backup.staging"
)

// backupRoots are the folders of a state directory that a backup may hold, and
// the mode of a restored folder and file.
var backupRoots = [...]struct {
	name      string
	dir, file fs.FileMode
}{
	{"store", 0o700, 0o600},
	{"journal", 0o700, 0o600},
	{"trust", 0o755, 0o644},
	{"vault", 0o700, 0o600},
	{"keys", 0o700, 0o600},
}

// Backup writes an encrypted copy of the store, and of journal and public keys
// if a state directory is given, to w. The database is one consistent snapshot,
// the artifacts are those it knows, and the journal is at least as new: what it
// has more is found by CheckJournal after a restore, as after a crash. The copy
// of the journal is checked against its key before it is written, and that of
// the vault, sealed as it is, against the journal. The keys are those that were there
// while the journal was copied. Others go on
// working meanwhile; nothing is swept. It needs room for a second database and
// journal. What was written to w before an error is no backup.
func (s *Store) Backup(ctx context.Context, w io.Writer, o BackupOptions) (_ *Manifest, err error) {
	const op = "back up store"
	to, err := o.recipients()
	if err != nil {
		return nil, err
	}
	a := &s.artifacts
	a.mu.Lock()
	if a.backups > 0 {
		a.mu.Unlock()
		return nil, fault.New(fault.Busy, "locked", op, ErrBackup)
	}
	a.backups++
	a.mu.Unlock()
	staging := filepath.Join(s.dir, stagingDir)
	defer func() {
		_ = os.RemoveAll(staging) // Open does it otherwise
		a.mu.Lock()
		a.backups--
		a.mu.Unlock()
	}()
	if err := os.RemoveAll(staging); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return nil, durable.Fault(op, err)
	}
	m := &Manifest{Version: 1, Created: time.Now().UTC().Format(time.RFC3339), JournalSize: -1, PrivateKeys: o.IncludePrivateKeys}
	digests, err := s.stage(ctx, staging, m)
	if err != nil {
		return nil, classify(op, err)
	}
	var keys keyFiles
	if o.StateDir != "" {
		if keys, m.JournalSize, err = stageState(ctx, o.StateDir, staging, s.step); err != nil {
			return nil, classify(op, err)
		}
		defer keys.wipe()
	}
	s.step("backup_staged")

	enc, err := age.Encrypt(w, to...)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", op, err)
	}
	p := &packer{ctx: ctx, tar: tar.NewWriter(enc), m: m}
	if err := p.all(s, staging, digests, keys, o); err != nil {
		return nil, classify(op, err)
	}
	if err := enc.Close(); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", op, err)
	}
	return m, nil
}

func (o *BackupOptions) recipients() ([]age.Recipient, error) {
	const op = "read backup recipients"
	switch {
	case o.Passphrase != "" && len(o.Recipients) > 0:
		return nil, usage("invalid_input", op, "a passphrase and recipients cannot be mixed")
	case o.Passphrase != "":
		r, err := age.NewScryptRecipient(o.Passphrase)
		if err != nil {
			return nil, usage("invalid_input", op, "the passphrase cannot be used")
		}
		if o.testOnlyWork != 0 {
			r.SetWorkFactor(o.testOnlyWork)
		}
		return []age.Recipient{r}, nil
	case len(o.Recipients) == 0:
		return nil, usage("invalid_input", op, "no key could open it: name a recipient (age1…) or a passphrase")
	}
	rs, err := age.ParseRecipients(strings.NewReader(strings.Join(o.Recipients, "\n") + "\n"))
	if err != nil || len(rs) != len(o.Recipients) {
		return nil, usage("invalid_input", op, "one of %d is no age public key", len(o.Recipients))
	}
	return rs, nil
}

// stage takes the snapshot of the database and returns the artifacts it knows.
func (s *Store) stage(ctx context.Context, dir string, m *Manifest) (map[canon.Digest]int64, error) {
	var c *conn
	var open bool
	select {
	case c, open = <-s.readers:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !open {
		return nil, errClosed
	}
	defer func() { s.readers <- c }()
	// VACUUM INTO reads only; the setting would refuse it all the same.
	if _, err := c.exec("PRAGMA query_only = off"); err != nil {
		return nil, err
	}
	err := s.snapshot(c, filepath.Join(dir, dbFile))
	if _, qerr := c.exec("PRAGMA query_only = on"); err == nil {
		err = qerr
	}
	if err != nil {
		return nil, err
	}
	// From the snapshot itself: rows that came later are not in it.
	if _, err := c.c.ExecContext(context.Background(), "ATTACH ? AS snapshot", filepath.Join(dir, dbFile)); err != nil {
		return nil, err
	}
	defer func() { _, _ = c.c.ExecContext(context.Background(), "DETACH snapshot") }()
	if err := c.c.QueryRowContext(context.Background(), "PRAGMA snapshot.user_version").Scan(&m.Schema); err != nil {
		return nil, err
	}
	rows, err := c.c.QueryContext(context.Background(), "SELECT digest, size FROM snapshot.artifacts")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	digests := make(map[canon.Digest]int64)
	for rows.Next() {
		var b []byte
		var size int64
		if err := rows.Scan(&b, &size); err != nil {
			return nil, err
		}
		digests[digestOf(b)] = size
	}
	return digests, rows.Err()
}

// stageJournal copies the journal of a state directory that somebody may be
// writing, and returns how many entries the copy has. The order makes a copy
// taken meanwhile whole in the usual case: the published checkpoint is not newer
// than the write-ahead file, and that not newer than the tiles. The log may be
// moved on under us all the same; then the copy does not check, and is taken again.
func stageJournal(ctx context.Context, state, dir string) (size int64, err error) {
	trust, err := receipt.LoadTrust(filepath.Join(state, "trust"))
	if err != nil {
		return 0, err
	}
	from, to := filepath.Join(state, "journal"), filepath.Join(dir, "journal")
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := os.RemoveAll(to); err != nil {
			return 0, err
		}
		if err := os.Mkdir(to, 0o700); err != nil {
			return 0, err
		}
		err := copyJournal(ctx, from, to)
		if err == nil {
			var rep *journal.Report
			if rep, err = receipt.CheckLog(to, trust); err == nil {
				return int64(rep.Size), nil
			}
		}
		if try == 4 {
			return 0, err
		}
	}
}

func copyJournal(ctx context.Context, from, to string) error {
	first := []string{"checkpoint", "wal"}
	for _, name := range first {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a partial tile that was replaced meanwhile
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil || rel == "." || slices.Contains(first, rel) || journal.IsLock(rel) || durable.IsTemp(d.Name()) {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o700)
		}
		if err := copyFile(p, filepath.Join(to, rel)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func copyFile(from, to string) (err error) {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	if fi, err := r.Stat(); err != nil || !fi.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%.200q is no regular file", from))
	}
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// packer writes the archive.
type packer struct {
	ctx context.Context
	tar *tar.Writer
	m   *Manifest
}

func (p *packer) all(s *Store, staging string, digests map[canon.Digest]int64, keys keyFiles, o BackupOptions) error {
	if err := p.text(backupMark, []byte(backupForm)); err != nil {
		return err
	}
	if err := p.file("store/"+dbFile, filepath.Join(staging, dbFile)); err != nil {
		return err
	}
	sorted := make([]canon.Digest, 0, len(digests))
	for d := range digests {
		sorted = append(sorted, d)
	}
	slices.SortFunc(sorted, func(a, b canon.Digest) int { return slices.Compare(a[:], b[:]) })
	for _, d := range sorted {
		rel := artifactPath(d)
		if err := p.file(path.Join("store", artifactDir, filepath.ToSlash(rel)), filepath.Join(s.artifacts.dir, rel)); err != nil {
			return err
		}
		// What is bad already must not be found out when it is needed.
		if got := p.m.Files[len(p.m.Files)-1]; got.Digest != d || got.Size != digests[d] {
			return fault.New(fault.Integrity, "store_corrupt", "read artifact "+d.String(), errors.New("its file has other content"))
		}
	}
	if o.StateDir != "" {
		if err := p.tree("journal", filepath.Join(staging, "journal")); err != nil {
			return err
		}
		if sealed := filepath.Join(staging, "vault"); vault.Exists(sealed) {
			if err := p.tree("vault", sealed); err != nil {
				return err
			}
		}
		if err := p.keys("trust/", keys); err != nil {
			return err
		}
		if o.IncludePrivateKeys {
			if err := p.keys("keys/", keys); err != nil {
				return err
			}
		}
	}
	b, err := canon.Marshal(p.m)
	if err != nil {
		return err
	}
	if err := p.text(manifestFile, b); err != nil {
		return err
	}
	return p.tar.Close()
}

func (p *packer) text(name string, b []byte) error {
	if err := p.tar.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(b)), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := p.tar.Write(b)
	return err
}

// tree adds the regular files below dir, in order.
func (p *packer) tree(name, dir string) error {
	return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || durable.IsTemp(d.Name()) {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		return p.file(path.Join(name, filepath.ToSlash(rel)), file)
	})
}

// keys adds the files whose names begin with prefix, in order.
func (p *packer) keys(prefix string, keys keyFiles) error {
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := p.content(name, bytes.NewReader(keys[name]), int64(len(keys[name]))); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) file(name, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return errForeign(name)
	}
	return p.content(name, f, fi.Size())
}

func errForeign(name string) error {
	return fault.New(fault.BadState, "bad_file", "back up store", fmt.Errorf("%.200q is not a file that belongs there", name))
}

func (p *packer) content(name string, r io.Reader, size int64) error {
	if backupPath(name) != nil {
		return errForeign(name)
	}
	if err := p.tar.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(p.tar, h), &ctxReader{ctx: p.ctx, r: io.LimitReader(r, size)}); err != nil {
		return err
	}
	p.m.Files = append(p.m.Files, ManifestFile{Path: name, Size: size, Digest: canon.Digest(h.Sum(nil))})
	return nil
}

// backupPath refuses a name that has no business in a backup: it lies below one
// of the roots, is clean, and no part of it is hidden.
func backupPath(name string) error {
	root, rest, _ := strings.Cut(name, "/")
	ok := fs.ValidPath(name) && rest != "" && len(name) <= 300
	known := false
	for _, r := range backupRoots {
		known = known || r.name == root
	}
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-/", c) >= 0)
	}
	for part := range strings.SplitSeq(name, "/") {
		ok = ok && !strings.HasPrefix(part, ".")
	}
	if !ok || !known {
		return fmt.Errorf("%.200q does not belong into a backup", name)
	}
	return nil
}

package store

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"

	"palyra/crypt/receipt"
	"palyra/crypt/vault"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// maxManifest bounds a manifest in bytes: some hundred thousand files.
const maxManifest = 64 << 20

// Unlock is what reads a backup: the content of an age identity file
// ("AGE-SECRET-KEY-1…"), or the passphrase.
type Unlock struct {
	Identities string
	Passphrase string
}

func (u *Unlock) identities() ([]age.Identity, error) {
	const op = "read backup identity"
	switch {
	case (u.Passphrase == "") == (u.Identities == ""):
		return nil, usage("bad_file", op, "an identity or a passphrase is needed, and not both")
	case u.Passphrase != "":
		id, err := age.NewScryptIdentity(u.Passphrase)
		if err != nil {
			return nil, usage("bad_file", op, "the passphrase cannot be used")
		}
		return []age.Identity{id}, nil
	}
	ids, err := age.ParseIdentities(strings.NewReader(u.Identities))
	if err != nil { // the cause may hold a part of the key
		return nil, usage("bad_file", op, "it is no age identity file")
	}
	return ids, nil
}

// VerifyBackup reads a whole backup and every digest in it, and writes nothing.
// A backup that is cut, changed or not what its manifest says is
// fault.Integrity "store_corrupt"; a wrong key is fault.Denied
// "keys_locked". That the content makes sense is found out by Restore.
func VerifyBackup(ctx context.Context, r io.Reader, u Unlock) (*Manifest, error) {
	return unpack(ctx, r, u, func(string, io.Reader) error { return nil })
}

// Restore makes the state directory dir from a backup. dir is an absolute path
// of nothing or of an empty directory, fault.Usage "bad_file" otherwise. It is
// written beside its place, checked (every digest, the database, its schema, the
// artifacts, the journal against its key, the vault against the journal), flushed and renamed: dir
// is complete, or empty or missing as before.
func Restore(ctx context.Context, r io.Reader, u Unlock, dir string) (_ *Manifest, err error) {
	op := fmt.Sprintf("restore backup to %q", dir)
	if !filepath.IsAbs(dir) {
		return nil, usage("invalid_input", op, "the path is not absolute")
	}
	dir = filepath.Clean(dir)
	if es, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, durable.Fault(op, err)
	} else if len(es) > 0 {
		return nil, fault.New(fault.Usage, "bad_file", op, fmt.Errorf("it holds %d files", len(es))).
			WithHint("restore into a new directory, look at it, then put it in place")
	}
	if err := removeAbandoned(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	tmp := restoring(dir) + rand.Text()
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, durable.Fault(op, err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp) // the error that brought us here is the one to report
		}
	}()
	inUse, err := durable.Lock(filepath.Join(tmp, restoreLock))
	if err != nil {
		return nil, err
	}
	defer inUse.Unlock() // it has another name by then, or none
	m, err := unpack(ctx, r, u, func(name string, r io.Reader) error { return place(tmp, name, r) })
	if err != nil {
		return nil, err
	}
	if err := inspect(ctx, tmp, m); err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(tmp, restoreLock)); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := syncTree(tmp); err != nil {
		return nil, durable.Fault(op, err)
	}
	// os.Rename replaces no directory, and os.Remove removes only an empty one.
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, durable.Fault(op, err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	return m, durable.Fault(op, durable.SyncDir(filepath.Dir(dir)))
}

// restoring is how the folders begin that a restore to dir is made in.
func restoring(dir string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".restoring-")
}

// restoreLock is held in such a folder while somebody works there, and
// abandonedAfter is how old one without it is at least that nobody works in: a
// restore makes the folder, then the lock, and removes that just before the end.
const (
	restoreLock    = "restore.lock"
	abandonedAfter = time.Hour
)

// removeAbandoned removes what restores to dir have left that were killed.
func removeAbandoned(dir string) error {
	es, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return err
	}
	for _, e := range es {
		tmp := filepath.Join(filepath.Dir(dir), e.Name())
		if !strings.HasPrefix(tmp, restoring(dir)) || !e.IsDir() || durable.CheckPrivate(tmp) != nil {
			continue
		}
		if _, err := os.Lstat(filepath.Join(tmp, restoreLock)); errors.Is(err, fs.ErrNotExist) {
			if fi, err := e.Info(); err != nil || time.Since(fi.ModTime()) < abandonedAfter {
				continue
			}
		} else {
			l, err := durable.Lock(filepath.Join(tmp, restoreLock))
			if err != nil { // somebody is at it
				continue
			}
			defer l.Unlock()
		}
		if err := os.RemoveAll(tmp); err != nil {
			return err
		}
	}
	return nil
}

// unpack reads a backup to its very end and calls each with every file but mark
// and manifest. each need not read.
func unpack(ctx context.Context, r io.Reader, u Unlock, each func(name string, r io.Reader) error) (*Manifest, error) {
	const op = "read backup"
	ids, err := u.identities()
	if err != nil {
		return nil, err
	}
	corrupt := func(err error) error {
		if cerr := ctx.Err(); cerr != nil {
			return classify(op, cerr)
		}
		if _, ok := errors.AsType[*fault.Error](err); ok {
			return err
		}
		return fault.New(fault.Integrity, "store_corrupt", op, err).WithHint("use another copy or an earlier backup")
	}
	plain, err := age.Decrypt(&ctxReader{ctx: ctx, r: r}, ids...)
	if err != nil {
		if _, ok := errors.AsType[*age.NoIdentityMatchError](err); ok {
			return nil, fault.New(fault.Denied, "keys_locked", op, errors.New("it is not encrypted for this identity or passphrase")).
				WithHint("name the identity whose public key the backup was made for: --identity FILE")
		}
		return nil, corrupt(err)
	}
	m, err := archive(plain, each)
	if err != nil {
		return nil, corrupt(err)
	}
	return m, nil
}

// archive reads the plain text of a backup.
func archive(plain io.Reader, each func(name string, r io.Reader) error) (*Manifest, error) {
	b := bufio.NewReaderSize(plain, 1<<16)
	got := &Manifest{}
	m, err := entries(tar.NewReader(b), got, each)
	if err == nil {
		err = ended(b)
	}
	if err == nil {
		err = m.agrees(got)
	}
	return m, err
}

// entries reads mark, files and manifest, and notes in got what the files are.
func entries(t *tar.Reader, got *Manifest, each func(string, io.Reader) error) (*Manifest, error) {
	seen := make(map[string]bool)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err != nil {
			if err == io.EOF {
				err = errors.New("there is no manifest")
			}
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || h.Size < 0 || seen[h.Name] {
			return nil, fmt.Errorf("%.200q is twice there or no plain file", h.Name)
		}
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return nil, fmt.Errorf("%.200q is a sparse file: its holes could fill the disk", h.Name)
			}
		}
		seen[h.Name] = true
		switch {
		case n == 0:
			mark, err := io.ReadAll(io.LimitReader(t, 64))
			if err != nil || h.Name != backupMark || string(mark) != backupForm {
				return nil, errors.Join(err, errors.New("it is no Palyra backup of a version that this program knows"))
			}
			continue
		case h.Name == manifestFile:
			return manifest(t, h.Size)
		}
		if err := backupPath(h.Name); err != nil {
			return nil, err
		}
		sum := sha256.New()
		r := io.TeeReader(t, sum)
		if err := each(h.Name, r); err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return nil, err
		}
		got.Files = append(got.Files, ManifestFile{Path: h.Name, Size: h.Size, Digest: canon.Digest(sum.Sum(nil))})
	}
}

// manifest reads the last file.
func manifest(t *tar.Reader, size int64) (*Manifest, error) {
	if size > maxManifest {
		return nil, errors.New("the manifest is too large")
	}
	b, err := io.ReadAll(t)
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	if err := canon.Check(b); err != nil {
		return nil, fmt.Errorf("manifest: %v", err)
	}
	if err := canon.Decode(b, m, canon.Limits{Bytes: maxManifest}); err != nil {
		return nil, fmt.Errorf("manifest: %v", err)
	}
	if m.Version != 1 {
		return nil, fmt.Errorf("manifest: version %d is not known", m.Version)
	}
	if _, err := t.Next(); err != io.EOF {
		return nil, errors.Join(err, errors.New("something follows the manifest"))
	}
	return m, nil
}

// ended reads to the end of the plain text: only there it is known that the
// file was not cut. A tar archive ends in zeros.
func ended(r *bufio.Reader) error {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		for _, c := range buf[:n] {
			if c != 0 {
				return errors.New("something follows the archive")
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// agrees holds the files that are there to the manifest.
func (m *Manifest) agrees(got *Manifest) error {
	if len(m.Files) != len(got.Files) {
		return fmt.Errorf("the manifest lists %d files and %d are there", len(m.Files), len(got.Files))
	}
	keys := false
	for i, f := range m.Files {
		if f != got.Files[i] {
			return fmt.Errorf("%.200q is not what the manifest says", got.Files[i].Path)
		}
		keys = keys || strings.HasPrefix(f.Path, "keys/")
	}
	if keys && !m.PrivateKeys {
		return errors.New("there are private keys and the manifest says there are none")
	}
	return nil
}

// place writes one file of a backup below dir.
func place(dir, name string, r io.Reader) (err error) {
	root, _, _ := strings.Cut(name, "/")
	for _, b := range backupRoots {
		if b.name != root {
			continue
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), b.dir); err != nil {
			return durable.Fault("restore backup", err)
		}
		w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, b.file)
		if err != nil {
			return durable.Fault("restore backup", err)
		}
		_, err = io.Copy(writerFault{w}, r) // an error of r is the backup's, one of w the disk's
		if err == nil {
			err = durable.Fault("restore backup", w.Sync())
		}
		if cerr := w.Close(); err == nil {
			err = durable.Fault("restore backup", cerr)
		}
		return err
	}
	return fmt.Errorf("%.200q does not belong into a backup", name)
}

// writerFault gives errors of a file their kind, so that a full disk is not
// taken for a damaged backup.
type writerFault struct{ w io.Writer }

func (w writerFault) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	return n, durable.Fault("restore backup", err)
}

// inspect says whether what was unpacked is a state that can be worked with.
func inspect(ctx context.Context, dir string, m *Manifest) (err error) {
	const op = "inspect restored backup"
	if _, err := os.Lstat(filepath.Join(dir, "store", dbFile)); err != nil { // Open would make an empty one
		return fault.New(fault.Integrity, "store_corrupt", op, errors.New("there is no database in it"))
	}
	s, err := Open(filepath.Join(dir, "store"), Options{})
	if err != nil {
		return err
	}
	err = s.Check(ctx)
	if err == nil {
		err = s.CheckArtifacts(ctx)
	}
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	if err != nil || m.JournalSize < 0 {
		return err
	}
	trust, err := receipt.LoadTrust(filepath.Join(dir, "trust"))
	if err != nil {
		return err
	}
	rep, err := receipt.CheckLog(filepath.Join(dir, "journal"), trust)
	if err != nil {
		return err
	}
	if rep.Size != uint64(m.JournalSize) {
		return fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf("the journal has %d entries, the manifest says %d", rep.Size, m.JournalSize))
	}
	if !vault.Exists(filepath.Join(dir, "vault")) {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "vault", "records"), 0o700); err != nil { // a vault without secrets
		return durable.Fault(op, err)
	}
	return checkVault(dir, filepath.Join(dir, "trust"))
}

// syncTree makes the names in all folders below dir durable.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return durable.SyncDir(p)
	})
}

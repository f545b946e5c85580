package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"mime"
	"os"
	"path/filepath"
	"sync"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

const (
	defaultQuota       = 10 << 30
	defaultMaxArtifact = 256 << 20
	octets             = "application/octet-stream"
)

// shelf is the folder of artifacts. A file stands there before its row does and
// goes after it: a crash leaves a file without a row, which Open removes, and
// never a row without its file.
type shelf struct {
	dir   string
	quota int64
	max   int64

	// mu is held while files get or lose their final names, so that a sweep, a
	// check and a backup see files and rows agree.
	mu      sync.Mutex
	bytes   int64            // of all artifacts; guarded by mu
	held    map[string]int64 // of them, by the principals whose runs hold them; guarded by mu
	drafts  int64            // taken by those that are being written; guarded by mu
	drafted map[string]int64 // of them, by those principals; guarded by mu
	backups int              // under way; nothing is swept meanwhile; guarded by mu
}

// artifactPath is where the artifact of a digest stands, below the shelf.
func artifactPath(d canon.Digest) string {
	h := d.Hex()
	return filepath.Join(h[:2], h[2:])
}

func (s *Store) openShelf() error {
	const op = "open artifacts"
	a := &s.artifacts
	a.dir, a.quota, a.max = filepath.Join(s.dir, artifactDir), s.opt.ArtifactQuota, s.opt.MaxArtifact
	fill(&a.quota, defaultQuota)
	fill(&a.max, defaultMaxArtifact)
	if err := durable.MkdirAll0700(a.dir); err != nil {
		return durable.Fault(op, err)
	}
	if err := durable.CheckPrivate(a.dir); err != nil {
		return err
	}
	if err := durable.RemoveTemps(a.dir); err != nil {
		return durable.Fault(op, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drafted = make(map[string]int64)
	if err := s.countLocked(); err != nil {
		return err
	}
	_, _, err := s.removeOrphansLocked(context.Background())
	return err
}

func (s *Store) countLocked() (err error) {
	s.artifacts.bytes, err = View(context.Background(), s, func(tx *Tx) (n int64, err error) {
		const op = "count artifacts"
		if _, err = tx.row(op, `SELECT coalesce(sum(size), 0) FROM artifacts`, nil, &n); err != nil {
			return 0, err
		}
		s.artifacts.held = make(map[string]int64)
		err = tx.query(op, `SELECT x.principal, sum(a.size) FROM (SELECT DISTINCT r.principal AS principal, h.digest AS digest
			FROM artifact_holds h JOIN runs r ON r.id = h.holder) x JOIN artifacts a ON a.digest = x.digest GROUP BY x.principal`, nil,
			func(r *sql.Rows) error {
				var who string
				var bytes int64
				err := r.Scan(&who, &bytes)
				s.artifacts.held[who] = bytes
				return err
			})
		return n, err
	})
	return err
}

// share returns whose run holder is, "" if it is none, and how many bytes more
// that principal's runs may hold.
func (s *Store) share(ctx context.Context, holder string) (principal string, left int64, err error) {
	principal, err = View(ctx, s, func(tx *Tx) (who string, err error) {
		_, err = tx.row("look up holder", `SELECT principal FROM runs WHERE id = ?`, []any{holder}, &who)
		return who, err
	})
	if err != nil || principal == "" || s.opt.ArtifactShare == nil {
		return principal, math.MaxInt64, err
	}
	s.artifacts.mu.Lock()
	defer s.artifacts.mu.Unlock()
	return principal, max(0, s.opt.ArtifactShare(principal)-s.artifacts.held[principal]-s.artifacts.drafted[principal]), nil
}

// hold counts what a principal holds more. mu is held.
func (a *shelf) hold(principal string, bytes int64) {
	if principal != "" {
		a.held[principal] += bytes
	}
}

func (a *shelf) overQuotaLocked(size int64) error {
	return fault.New(fault.Unavailable, "disk_full", opPut, fmt.Errorf("%d bytes, with %d of %d in use", size, a.bytes+a.drafts, a.quota)).
		WithHint("end sessions that hold artifacts, or raise the quota")
}

// draftRoom is how much room a draft takes at a time, at most.
const draftRoom = 1 << 20

// grow takes room for n more bytes, of the shelf and of the principal's share.
func (d *Draft) grow(n int64) error {
	a := &d.s.artifacts
	a.mu.Lock()
	defer a.mu.Unlock()
	free, share := a.quota-a.bytes-a.drafts, int64(math.MaxInt64)
	if d.principal != "" && d.s.opt.ArtifactShare != nil {
		share = d.s.opt.ArtifactShare(d.principal) - a.held[d.principal] - a.drafted[d.principal]
	}
	switch {
	case n > share:
		return overShare(opPut, d.principal)
	case n > free:
		return a.overQuotaLocked(d.size + n)
	}
	n = max(n, min(draftRoom, share/64, free/64)) // a little of what is left: others need some, too
	d.room += n
	a.drafts += n
	a.drafted[d.principal] += n
	return nil
}

// giveBackLocked gives a draft's room back. The shelf's mu is held.
func (d *Draft) giveBackLocked() {
	a := &d.s.artifacts
	a.drafts -= d.room
	if a.drafted[d.principal] -= d.room; a.drafted[d.principal] == 0 {
		delete(a.drafted, d.principal)
	}
	d.room = 0
}

func overShare(op, principal string) error {
	return fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80q holds its share of the space for artifacts", principal)).
		WithHint("wait until older runs lose theirs (retention.*), or raise state.artifact_quota_per_principal")
}

const opPut = "store artifact"

// Draft is an artifact that is being written. Its end is Commit or Close, and after both of
// them Close. One goroutine writes and ends it; meanwhile others may read what was written.
type Draft struct {
	s                 *Store
	holder, mediaType string
	principal         string // whose run holder is; "": it is none
	limit, left       int64  // of bytes: of this artifact, and of the principal's share

	f         *os.File
	tmp       string // its name, one that durable.RemoveTemps sweeps after a crash
	hash      hash.Hash
	size      int64
	room      int64 // that it has taken; size at least
	published bool
}

// Draft begins an artifact that holder will hold. It counts towards quotas as it grows. A media
// type that is not known is "application/octet-stream".
func (s *Store) Draft(ctx context.Context, holder, mediaType string) (*Draft, error) {
	if holder == "" {
		return nil, usage("invalid_input", opPut, "no holder is named")
	}
	if t, _, err := mime.ParseMediaType(mediaType); err != nil || len(mediaType) > 100 || t == "" {
		mediaType = octets
	}
	a := &s.artifacts
	principal, left, err := s.share(ctx, holder)
	if err != nil {
		return nil, err
	}
	d := &Draft{s: s, holder: holder, mediaType: mediaType, principal: principal, limit: min(a.max, a.quota, left), left: left,
		tmp: filepath.Join(a.dir, ".artifact.palyra-tmp-"+rand.Text()), hash: sha256.New()}
	if d.f, err = os.OpenFile(d.tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, durable.Fault(opPut, err)
	}
	s.step("artifact_created")
	return d, nil
}

// Write implements io.Writer.
func (d *Draft) Write(b []byte) (int, error) {
	if int64(len(b)) > d.limit-d.size {
		if d.limit == d.left {
			return 0, overShare(opPut, d.principal)
		}
		return 0, usage("too_large", opPut, "more than %d bytes", d.limit)
	}
	if more := d.size + int64(len(b)) - d.room; more > 0 {
		if err := d.grow(more); err != nil {
			return 0, err
		}
	}
	n, err := d.f.Write(b)
	d.hash.Write(b[:n])
	d.size += int64(n)
	return n, classify(opPut, err)
}

// ReadAt implements io.ReaderAt, until Close.
func (d *Draft) ReadAt(b []byte, off int64) (int, error) {
	n, err := d.f.ReadAt(b, off)
	if err != nil && err != io.EOF {
		err = durable.Fault("read artifact", err)
	}
	return n, err
}

// Close gives the draft's descriptor back, and without a Commit also its space.
func (d *Draft) Close() error {
	_ = d.f.Close() // synced, or of no use
	if !d.published {
		d.published = true
		_ = os.Remove(d.tmp) // or the next Open does it
	}
	d.s.artifacts.mu.Lock()
	defer d.s.artifacts.mu.Unlock()
	d.giveBackLocked()
	return nil
}

// Commit makes the artifact durable, and holds it for its holder. Then it can't be written
// any more.
func (d *Draft) Commit(ctx context.Context) (*Artifact, error) {
	s, a, holder, principal, size := d.s, &d.s.artifacts, d.holder, d.principal, d.size
	s.step("artifact_written")
	if err := d.f.Sync(); err != nil {
		return nil, durable.Fault(opPut, err)
	}
	s.step("artifact_synced")
	digest := canon.Digest(d.hash.Sum(nil))

	a.mu.Lock()
	defer a.mu.Unlock()
	d.giveBackLocked() // it counts as an artifact, or goes
	more := size       // that the principal holds with it
	row, err := View(ctx, s, func(tx *Tx) (*Artifact, error) {
		row, err := tx.artifact(digest)
		if err == nil {
			var owns bool
			if owns, err = tx.ownsArtifact(digest, principal); owns {
				more = 0
			}
		}
		return row, err
	})
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return nil, err
	}
	if s.opt.ArtifactShare != nil && principal != "" && a.held[principal]+more > s.opt.ArtifactShare(principal) { // others came meanwhile
		return nil, overShare(opPut, principal)
	}
	if err == nil { // we have it
		if err = s.Update(ctx, func(tx *Tx) error { return tx.holdArtifact(digest, holder) }); err == nil {
			a.hold(principal, more)
		}
		row.Refs++
		return row, err
	}
	if a.bytes+a.drafts+size > a.quota {
		return nil, a.overQuotaLocked(size)
	}
	if err := s.publishLocked(d.tmp, digest); err != nil {
		return nil, err
	}
	d.published = true
	row = &Artifact{Digest: digest, Size: size, MediaType: d.mediaType, Refs: 1}
	err = s.Update(ctx, func(tx *Tx) error {
		row.Created = tx.now
		if _, err := tx.insert(opPut, principal, `INSERT INTO artifacts (digest, size, type, created) VALUES (?, ?, ?, ?)`, digest[:], size, d.mediaType, ns(tx.now)); err != nil {
			return err
		}
		return tx.holdArtifact(digest, holder)
	})
	if err != nil {
		_ = os.Remove(filepath.Join(a.dir, artifactPath(digest))) // Open does it otherwise
		return nil, err
	}
	a.bytes += size
	a.hold(principal, size)
	s.step("artifact_recorded")
	return row, nil
}

// publishLocked gives a synced temporary file its final name, durably.
func (s *Store) publishLocked(tmp string, d canon.Digest) error {
	path := filepath.Join(s.artifacts.dir, artifactPath(d))
	if err := durable.MkdirAll0700(filepath.Dir(path)); err != nil {
		return durable.Fault(opPut, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return durable.Fault(opPut, err)
	}
	s.step("artifact_renamed")
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		_ = os.Remove(path) // nothing knows it yet
		return durable.Fault(opPut, err)
	}
	s.step("artifact_durable")
	return nil
}

// ctxReader ends reading when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (s *Store) openArtifact(ctx context.Context, d canon.Digest) (io.ReadSeekCloser, *Artifact, error) {
	row, err := View(ctx, s, func(tx *Tx) (*Artifact, error) { return tx.artifact(d) })
	if err != nil {
		return nil, nil, err
	}
	f, err := s.verified(ctx, d, row.Size)
	if err != nil {
		return nil, nil, err
	}
	return f, row, nil
}

// verified opens an artifact's file and reads it against its digest.
func (s *Store) verified(ctx context.Context, d canon.Digest, size int64) (_ *os.File, err error) {
	op := "read artifact " + d.String()
	bad := func(format string, args ...any) error {
		return fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf(format, args...)).WithHint("restore it from a backup")
	}
	path := filepath.Join(s.artifacts.dir, artifactPath(d))
	if err := durable.CheckPrivate(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, bad("its file is missing")
		}
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	h := sha256.New()
	n, err := io.Copy(h, &ctxReader{ctx: ctx, r: io.LimitReader(f, size+1)})
	if err != nil {
		return nil, classify(op, err)
	}
	if n != size || canon.Digest(h.Sum(nil)) != d {
		return nil, bad("its file has other content")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, durable.Fault(op, err)
	}
	return f, nil
}

func (s *Store) sweepArtifacts(ctx context.Context) (removed int, bytes int64, err error) {
	a := &s.artifacts
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backups > 0 {
		return 0, 0, fault.New(fault.Busy, "locked", "sweep artifacts", ErrBackup)
	}
	// Rows first: what is left after a crash is a file that nobody knows.
	err = s.Update(ctx, func(tx *Tx) error {
		_, err := tx.exec("sweep artifacts", `DELETE FROM artifacts WHERE NOT EXISTS (SELECT 1 FROM artifact_holds h WHERE h.digest = artifacts.digest)`)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	s.step("artifacts_forgotten")
	removed, bytes, err = s.removeOrphansLocked(ctx)
	if cerr := s.countLocked(); err == nil {
		err = cerr
	}
	return removed, bytes, err
}

// files calls f with the digest and size of each file on the shelf. What has
// another name or type is an error: nobody but us writes there.
func (a *shelf) files(f func(d canon.Digest, size int64) error) error {
	const op = "list artifacts"
	dirs, err := os.ReadDir(a.dir)
	if err != nil {
		return durable.Fault(op, err)
	}
	for _, dir := range dirs {
		if durable.IsTemp(dir.Name()) {
			continue // being written; its name becomes final under mu
		}
		files, err := os.ReadDir(filepath.Join(a.dir, dir.Name()))
		if err != nil {
			return fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf("%.80q is no directory of ours: %w", dir.Name(), err))
		}
		for _, file := range files {
			d, err := canon.ParseDigest("sha256:" + dir.Name() + file.Name())
			if err != nil || len(dir.Name()) != 2 {
				return fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf("%.200q is not named after a digest", filepath.Join(dir.Name(), file.Name())))
			}
			fi, err := file.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return durable.Fault(op, err)
			}
			if err := f(d, fi.Size()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) removeOrphansLocked(ctx context.Context) (removed int, bytes int64, err error) {
	known, err := s.knownLocked(ctx)
	if err != nil {
		return 0, 0, err
	}
	err = s.artifacts.files(func(d canon.Digest, size int64) error {
		if _, ok := known[d]; ok {
			return nil
		}
		if err := os.Remove(filepath.Join(s.artifacts.dir, artifactPath(d))); err != nil {
			return durable.Fault("remove artifact", err)
		}
		removed++
		bytes += size
		s.step("artifact_removed")
		return nil
	})
	return removed, bytes, err
}

// knownLocked returns the sizes of the artifacts that have rows.
func (s *Store) knownLocked(ctx context.Context) (map[canon.Digest]int64, error) {
	return View(ctx, s, func(tx *Tx) (map[canon.Digest]int64, error) {
		known := make(map[canon.Digest]int64)
		err := tx.query("list artifacts", `SELECT digest, size FROM artifacts`, nil, func(r *sql.Rows) error {
			var b []byte
			var size int64
			err := r.Scan(&b, &size)
			known[digestOf(b)] = size
			return err
		})
		return known, err
	})
}

func (tx *Tx) artifact(d canon.Digest) (*Artifact, error) {
	return one(tx, "artifact", d.String(), `SELECT size, type, created, (SELECT count(*) FROM artifact_holds h WHERE h.digest = a.digest)
		FROM artifacts a WHERE digest = ?`, []any{digestBlob(d)}, func(r scanner, a *Artifact) error {
		var created int64
		err := r.Scan(&a.Size, &a.MediaType, &created, &a.Refs)
		a.Digest, a.Created = d, at(created)
		return err
	})
}

func (tx *Tx) holdArtifact(d canon.Digest, holder string) error {
	who, err := tx.payer(holder)
	if err != nil {
		return err
	}
	_, err = tx.insert("hold artifact", who, `INSERT INTO artifact_holds (digest, holder) VALUES (?, ?) ON CONFLICT DO NOTHING`, digestBlob(d), holder)
	if codeOf(err) == codeForeignKey {
		return NoSuch("artifact", d.String())
	}
	return err
}

func (tx *Tx) holdsArtifact(d canon.Digest, holder string) (bool, error) {
	var one int
	return tx.row("look up artifact", `SELECT 1 FROM artifact_holds WHERE digest = ? AND holder = ?`, []any{digestBlob(d), holder}, &one)
}

func (tx *Tx) ownsArtifact(d canon.Digest, principal string) (bool, error) {
	var one int
	return tx.row("look up artifact", `SELECT 1 FROM artifact_holds h JOIN runs r ON r.id = h.holder WHERE h.digest = ? AND r.principal = ? LIMIT 1`,
		[]any{digestBlob(d), principal}, &one)
}

func (tx *Tx) releaseArtifacts(holder string) error {
	_, err := tx.exec("release artifacts", `DELETE FROM artifact_holds WHERE holder = ?`, holder)
	return err
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// What stands in a store's directory.
const (
	dbFile      = "palyra.db" // and -wal and -shm beside it
	lockFile    = "lock"
	artifactDir = "artifacts"
)

// Store is an open store. Its methods may be called concurrently.
type Store struct {
	dir    string
	opt    Options
	step   func(string)
	lock   *durable.FileLock
	db     *sql.DB
	writer *writer
	clock  *clock.Clock

	readers chan *conn    // those that are free; closed by Close
	pool    int           // how many readers there are
	scans   chan struct{} // has an element for each Scan that may begin

	shrinking chan struct{} // has an element while no goroutine is in shrink
	walMost   int64         // bytes of the write-ahead log from which on shrink is at work
	tried     time.Time     // when shrink last was, in vain; owned by the holder of shrinking

	artifacts shelf

	closeOnce sync.Once
	closeErr  error
}

// Clock returns the clock by which the store forgets.
func (s *Store) Clock() *clock.Clock { return s.clock }

// Open opens the store in dir, an absolute path, and makes it on first use with
// mode 0700. It brings an older schema forward and keeps a copy of the database
// from before; a newer one is fault.BadState "schema_too_new". A second process
// is fault.Busy "locked". On platforms other than Linux it is fault.Unsupported.
func Open(dir string, o Options) (*Store, error) {
	s, err := open(dir, o, migrations())
	if err != nil {
		return nil, err
	}
	if err := s.checkSchema(); err != nil {
		_ = s.Close() // nothing was written
		return nil, err
	}
	return s, nil
}

func open(dir string, o Options, steps []string) (_ *Store, err error) {
	op := fmt.Sprintf("open store %q", dir)
	if !filepath.IsAbs(dir) {
		return nil, fault.New(fault.BadState, "state_io", op, errors.New("the path is not absolute")).
			WithHint("give the absolute path of the state directory")
	}
	s := &Store{dir: dir, opt: o, step: o.TestOnlyStep}
	if o.Clock == nil {
		o.Clock = clock.New()
	}
	if s.step == nil {
		s.step = func(string) {}
	}
	path := filepath.Join(dir, dbFile)
	c, err := connector(path)
	if err != nil {
		return nil, err
	}
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := durable.CheckPrivate(dir); err != nil {
		return nil, err
	}
	if s.lock, err = durable.Lock(filepath.Join(dir, lockFile)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.Close() // the error that brought us here is the one to report
		}
	}()
	// SQLite would make the file with mode 0644; -wal and -shm take its mode.
	for _, suffix := range []string{"", "-wal", "-shm"} {
		err := durable.CheckPrivate(path + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			if suffix != "" {
				continue
			}
			err = durable.WriteFile(path, nil, 0o600)
		}
		if err != nil {
			return nil, durable.Fault(op, err)
		}
	}
	s.db = sql.OpenDB(c)
	w, err := s.connect()
	if err != nil {
		return nil, classify(op, err)
	}
	s.writer = &writer{conn: w, turn: make(chan struct{}, 1), step: s.step, clock: o.Clock}
	s.writer.turn <- struct{}{}
	if err := s.migrate(steps); err != nil {
		return nil, classify(op, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, stagingDir)); err != nil { // of a backup that a crash ended
		return nil, durable.Fault(op, err)
	}
	s.clock = o.Clock
	if err := s.rememberClock(); err != nil {
		return nil, classify(op, err)
	}
	n := o.Readers
	if n <= 0 {
		n = 4
	}
	s.shrinking, s.walMost = make(chan struct{}, 1), walMost
	s.shrinking <- struct{}{}
	s.scans = make(chan struct{}, max(1, n/2))
	for range cap(s.scans) {
		s.scans <- struct{}{}
	}
	s.readers = make(chan *conn, n)
	for range n {
		r, err := s.connect()
		if err == nil {
			_, err = r.exec("PRAGMA query_only = on")
		}
		if err != nil {
			return nil, classify(op, err)
		}
		s.readers <- r
		s.pool++
	}
	return s, s.openShelf()
}

// checkSchema refuses a database whose tables, indexes and triggers are not
// ours: a trigger more would run with every change, one less would not refuse.
func (s *Store) checkSchema() error {
	const op = "check schema"
	text, err := View(context.Background(), s, func(tx *Tx) (string, error) {
		var text string
		_, err := tx.row(op, `SELECT coalesce(group_concat(type || ' ' || name || ' ' || tbl_name || ' ' || coalesce(sql, ''), char(10)
			ORDER BY type, name), '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'`, nil, &text)
		return text, err
	})
	if err != nil {
		return err
	}
	if got := canon.Sum([]byte(text)).Hex(); got != schemaDigest {
		return fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf("its digest is %s, this program knows %s", got, schemaDigest)).
			WithHint("restore the last good backup: palyra backup restore")
	}
	return nil
}

func (s *Store) connect() (*conn, error) {
	c, err := s.db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: make(map[string]*sql.Stmt)}, nil
}

// Close ends the store after the Updates and Views that have begun.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		var errs []error
		for range s.pool {
			errs = append(errs, (<-s.readers).close())
		}
		if s.readers != nil {
			close(s.readers)
		}
		if s.writer != nil {
			errs = append(errs, s.writer.close())
		}
		if s.db != nil {
			errs = append(errs, s.db.Close())
		}
		if s.lock != nil {
			errs = append(errs, s.lock.Unlock())
		}
		s.closeErr = classify("close store", errors.Join(errs...))
	})
	return s.closeErr
}

// migrate brings the schema forward. Each step is one transaction; before the
// first, a copy of what there was is made durable.
func (s *Store) migrate(steps []string) error {
	c := s.writer.conn
	var have int
	if err := c.c.QueryRowContext(context.Background(), "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	switch {
	case have > len(steps):
		return fault.New(fault.BadState, "schema_too_new", "migrate store",
			fmt.Errorf("the database has schema %d and this program knows %d", have, len(steps))).
			WithHint("run the newer Palyra that wrote it, or restore a backup from before")
	case have == len(steps):
		return nil
	case have > 0:
		if err := s.copyBefore(have, len(steps)); err != nil {
			return err
		}
	}
	for v := have; v < len(steps); v++ {
		if err := s.migrateTo(v+1, steps[v]); err != nil {
			return fmt.Errorf("schema %d: %w", v+1, err)
		}
		s.step("migrated")
	}
	return nil
}

func (s *Store) migrateTo(version int, text string) (err error) {
	ctx, c := context.Background(), s.writer.conn.c
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, _ = c.ExecContext(ctx, "ROLLBACK")
		}
	}()
	if version == 1 {
		text = "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, applied INTEGER NOT NULL) STRICT;" + text
	}
	if _, err := c.ExecContext(ctx, text); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, "INSERT INTO schema_migrations VALUES (?, unixepoch())", version); err != nil {
		return err
	}
	// user_version takes no parameters; it is in the file's header, and part of
	// the transaction.
	if _, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
		return err
	}
	s.step("migrating")
	_, err = c.ExecContext(ctx, "COMMIT")
	return err
}

// copyBefore keeps the database as it is, durably, under a name that says what
// it is. A copy that is there already was complete: it was renamed.
func (s *Store) copyBefore(from, to int) error {
	path := filepath.Join(s.dir, fmt.Sprintf("before-schema-%d-from-%d.db", to, from))
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := s.snapshot(s.writer.conn, path); err != nil {
		return err
	}
	s.step("copied")
	return nil
}

// snapshot writes a consistent copy of the database to path, durably, through c.
func (s *Store) snapshot(c *conn, path string) (err error) {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // SQLite would not make it private
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	_, err = c.c.ExecContext(context.Background(), "VACUUM INTO ?", tmp)
	if err == nil {
		err = f.Sync() // the same file: SQLite took an empty one as its target
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(path))
	}
	return err
}

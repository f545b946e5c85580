package store

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// Scan is View for an f that may look at many rows: a page of a list may hold the few that fit
// among a million. No more than half of the readers are at that, so that no View waits for it.
func Scan[T any](ctx context.Context, s *Store, f func(*Tx) (T, error)) (T, error) {
	var zero T
	err := s.shrink(ctx)
	if err == nil {
		err = take(ctx, s.scans)
	}
	if err != nil {
		return zero, classify("read store", err)
	}
	defer func() { s.scans <- struct{}{} }()
	return View(ctx, s, f)
}

func take(ctx context.Context, c chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SQLite begins its write-ahead log anew only if no reader is at work just then. Scans that overlap
// without end would let it grow without end: 2 MB/s at 250 updates a second, on nobody's account.
// So where it is larger than walMost, which is more than journal_size_limit leaves, the next Scan
// waits for the others and empties it.
const walMost = 128 << 20

// shrinkPause is how long no Scan tries again where a reader, a backup, didn't let it.
const shrinkPause = time.Minute

// shrink empties the write-ahead log if it's large.
func (s *Store) shrink(ctx context.Context) error {
	if !s.walLarge() {
		return nil
	}
	if err := take(ctx, s.shrinking); err != nil {
		return err
	}
	defer func() { s.shrinking <- struct{}{} }()
	if !s.walLarge() || time.Since(s.tried) < shrinkPause {
		return nil
	}
	for n := range cap(s.scans) {
		if err := take(ctx, s.scans); err != nil {
			for range n {
				s.scans <- struct{}{}
			}
			return err
		}
	}
	defer func() {
		for range cap(s.scans) {
			s.scans <- struct{}{}
		}
	}()
	if err := take(ctx, s.writer.turn); err != nil {
		return err
	}
	defer func() { s.writer.turn <- struct{}{} }()
	if !s.writer.checkpoint() { // it's tried again; to read is possible all the same
		s.tried = time.Now()
	}
	return nil
}

// checkpoint empties the write-ahead log, and waits a little for readers. The caller holds the
// turn.
func (w *writer) checkpoint() bool {
	defer func() { _, _ = w.conn.exec("PRAGMA busy_timeout = 5000") }() // as connector has it
	if _, err := w.conn.exec("PRAGMA busy_timeout = 500"); err != nil {
		return false
	}
	var busy, pages, done int
	err := w.conn.c.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &done)
	return err == nil && busy == 0
}

func (s *Store) walLarge() bool {
	fi, err := os.Stat(filepath.Join(s.dir, dbFile+"-wal"))
	return err == nil && fi.Size() > s.walMost
}

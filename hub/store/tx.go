package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"palyra/internal/clock"
	"palyra/internal/fault"
)

// maxBatch is how many Updates share one commit at most.
const maxBatch = 64

// conn is one connection to the database with its prepared statements. It is
// owned by whoever took it: the writer's turn, or a View.
type conn struct {
	c     *sql.Conn
	stmts map[string]*sql.Stmt
}

func (c *conn) close() error {
	for _, s := range c.stmts {
		_ = s.Close() // closing the connection frees them in any case
	}
	return c.c.Close()
}

// prepare returns the prepared statement of a text. Texts are constants of this
// package, and a few dozen.
func (c *conn) prepare(text string) (*sql.Stmt, error) {
	if s := c.stmts[text]; s != nil {
		return s, nil
	}
	// A context that can end would make the driver start a goroutine for every
	// statement, and interrupting one may end the transaction of others.
	s, err := c.c.PrepareContext(context.Background(), text)
	if err == nil {
		c.stmts[text] = s
	}
	return s, err
}

func (c *conn) exec(text string, args ...any) (int64, error) {
	s, err := c.prepare(text)
	if err != nil {
		return 0, err
	}
	r, err := s.Exec(args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// Tx is a transaction. It ends with the function it was given to and belongs to
// that function's goroutine.
type Tx struct {
	conn   *conn
	write  bool
	now    time.Time
	forget time.Time // what is over by then may be forgotten
	err    error     // of SQLite, after which the transaction may be gone

	written map[string]int64  // in bytes, by who pays for it; see account.go
	changed []string          // tables
	payers  map[string]string // principals by run
}

var errOver = errors.New("the transaction has ended")

func (tx *Tx) usable(write bool) error {
	switch {
	case tx.conn == nil:
		return errOver
	case tx.err != nil:
		return tx.err
	case write && !tx.write:
		return errors.New("a view cannot write")
	}
	return nil
}

// exec runs a statement that makes no row and returns how many it changed.
func (tx *Tx) exec(op, text string, args ...any) (int64, error) {
	if strings.HasPrefix(text, insertInto) {
		panic("store: internal error: a row on no account: " + op)
	}
	return tx.change(op, text, args...)
}

func (tx *Tx) change(op, text string, args ...any) (int64, error) {
	if err := tx.usable(true); err != nil {
		return 0, classify(op, err)
	}
	n, err := tx.conn.exec(text, args...)
	if table := tableOf(text); n > 0 && !slices.Contains(tx.changed, table) {
		tx.changed = append(tx.changed, table)
	}
	return n, tx.fail(op, err)
}

// tableOf returns the table that a statement changes: its first word that isn't SQL's.
func tableOf(text string) string {
	for word := range strings.FieldsSeq(text) {
		switch word {
		case "INSERT", "INTO", "UPDATE", "DELETE", "FROM":
		default:
			return word
		}
	}
	return ""
}

// fail classifies err and remembers one that ends the transaction.
func (tx *Tx) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	c := classify(op, err)
	if broken(err) {
		tx.err = c
	}
	return c
}

// row reads one row into dest and reports whether there was one.
func (tx *Tx) row(op, text string, args []any, dest ...any) (bool, error) {
	if err := tx.usable(false); err != nil {
		return false, classify(op, err)
	}
	s, err := tx.conn.prepare(text)
	if err == nil {
		err = s.QueryRow(args...).Scan(dest...)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, tx.fail(op, err)
}

// errEnough is what scan returns for a row that is the last one wanted.
var errEnough = errors.New("enough")

// query calls scan for each row.
func (tx *Tx) query(op, text string, args []any, scan func(*sql.Rows) error) error {
	if err := tx.usable(false); err != nil {
		return classify(op, err)
	}
	s, err := tx.conn.prepare(text)
	if err != nil {
		return tx.fail(op, err)
	}
	rows, err := s.Query(args...)
	if err != nil {
		return tx.fail(op, err)
	}
	for err == nil && rows.Next() {
		err = scan(rows)
	}
	if err == errEnough {
		err = nil
	}
	if cerr := rows.Close(); err == nil {
		err = cerr
	}
	if rerr := rows.Err(); err == nil {
		err = rerr
	}
	return tx.fail(op, err)
}

// job is one Update that waits for its turn or its commit.
type job struct {
	f     func(*Tx) error
	alone bool // shares no transaction
	err   error
	panic any
	ok    bool // f returned
	done  chan struct{}

	written map[string]int64 // of its Tx
	changed []string         // of its Tx
}

// writer is the one connection that writes. Whoever holds the turn takes the
// jobs that wait, runs them one after the other in one transaction, each in a
// savepoint, and commits them together: with many clients one fsync serves many.
// A savepoint keeps in memory what was on the pages that change since. A job that
// changes many is alone and needs none.
type writer struct {
	turn  chan struct{} // holds one element while nobody writes
	conn  *conn         // owned by the holder of the turn
	step  func(string)
	clock *clock.Clock
	told  atomic.Pointer[func(principal string, bytes int64)] // see OnWritten
	heard atomic.Pointer[func(Change)]                        // see OnChanged

	mu     sync.Mutex
	queue  []*job // guarded by mu
	closed bool   // guarded by mu
}

// update runs f and returns when it is durable or undone.
func (w *writer) update(ctx context.Context, alone bool, f func(*Tx) error) error {
	const op = "update store"
	if err := ctx.Err(); err != nil {
		return classify(op, err)
	}
	j := &job{f: f, alone: alone, done: make(chan struct{})}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errClosed
	}
	w.queue = append(w.queue, j)
	w.mu.Unlock()
	select {
	case <-j.done:
	case <-w.turn:
		for !isDone(j) {
			w.run()
		}
		w.turn <- struct{}{}
	case <-ctx.Done():
		if w.leave(j) {
			return classify(op, ctx.Err())
		}
		<-j.done // somebody has begun with it
	}
	if j.panic != nil {
		panic(j.panic)
	}
	if j.err == nil {
		w.tell(j)
	}
	return classify(op, j.err)
}

// ErrClosed is in the error of an update of a store that is closed.
var ErrClosed = errors.New("the store is closed")

// ErrBackup is in the error of what has to wait for the end of a backup.
var ErrBackup = errors.New("a backup is being made")

var errClosed = fault.New(fault.Busy, "not_ready", "update store", ErrClosed)

func isDone(j *job) bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// leave takes a job out of the queue and reports whether it was still there.
func (w *writer) leave(j *job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range w.queue {
		if o == j {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			return true
		}
	}
	return false
}

// run commits one batch. The caller holds the turn.
func (w *writer) run() {
	w.mu.Lock()
	n := min(len(w.queue), maxBatch)
	if i := slices.IndexFunc(w.queue[:n], func(j *job) bool { return j.alone }); i >= 0 {
		n = max(i, 1)
	}
	batch := append([]*job(nil), w.queue[:n]...)
	w.queue = append(w.queue[:0:0], w.queue[n:]...)
	w.mu.Unlock()

	committed := false
	err := error(fault.New(fault.Internal, "internal", "update store", errors.New("a function left its goroutine")))
	defer func() { // also when a function calls runtime.Goexit, as a failing test does
		if !committed {
			_, _ = w.conn.exec("ROLLBACK") // SQLite may have done so itself
		}
		for _, j := range batch {
			if !committed && j.err == nil && j.panic == nil {
				j.err = err
			}
			close(j.done)
		}
	}()
	if _, err = w.conn.exec("BEGIN IMMEDIATE"); err != nil {
		return
	}
	w.step("begun")
	for _, j := range batch {
		if err = w.apply(j, n == 1); err != nil {
			return
		}
	}
	w.step("applied")
	if _, err = w.conn.exec("COMMIT"); err == nil {
		committed = true
		w.step("committed")
	}
}

// apply runs one job, in a savepoint unless it is the whole batch. Its error is the
// job's alone; what apply returns is the end of the whole batch.
func (w *writer) apply(j *job, whole bool) error {
	if !whole {
		if _, err := w.conn.exec("SAVEPOINT one"); err != nil {
			return err
		}
	}
	tx := &Tx{conn: w.conn, write: true, now: time.Now().UTC(), forget: w.clock.Earliest()}
	func() {
		defer func() {
			if !j.ok {
				if j.panic = recover(); j.panic == nil {
					j.err = errors.New("the function left its goroutine")
				}
			}
		}()
		j.err = j.f(tx)
		j.ok = true
	}()
	tx.conn, j.written, j.changed = nil, tx.written, tx.changed
	if tx.err != nil { // not to be swallowed, whatever f made of it
		return tx.err
	}
	if whole {
		if j.panic != nil {
			return errors.New("the function panicked")
		}
		return j.err
	}
	if j.err != nil || j.panic != nil {
		if _, err := w.conn.exec("ROLLBACK TO one"); err != nil {
			return err
		}
	}
	_, err := w.conn.exec("RELEASE one")
	return err
}

// close waits for what has begun, and refuses what comes later.
func (w *writer) close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	<-w.turn
	for {
		w.mu.Lock()
		left := len(w.queue)
		w.mu.Unlock()
		if left == 0 {
			return w.conn.close()
		}
		w.run()
	}
}

// Update runs f in a transaction that may write. f is called once, must not
// call Update, and sees what it wrote itself. When Update returns nil it is
// durable; when it returns an error, f's or that of the commit, nothing of it
// happened. ctx bounds the wait for the turn and not the commit, which is
// waited for once it has begun.
func (s *Store) Update(ctx context.Context, f func(*Tx) error) error {
	return s.writer.update(ctx, false, f)
}

// View runs f in a transaction that only reads, and returns what f returns. It
// sees everything that Update made durable before. f must not call View or
// Update: it holds one of few connections. ctx bounds the wait for that. Lists are
// for Scan.
func View[T any](ctx context.Context, s *Store, f func(*Tx) (T, error)) (T, error) {
	var zero T
	const op = "read store"
	if err := ctx.Err(); err != nil {
		return zero, classify(op, err)
	}
	var c *conn
	var open bool
	select {
	case c, open = <-s.readers:
	case <-ctx.Done():
		return zero, classify(op, ctx.Err())
	}
	if !open {
		return zero, errClosed
	}
	defer func() { s.readers <- c }()
	if _, err := c.exec("BEGIN"); err != nil {
		return zero, classify(op, err)
	}
	defer func() { _, _ = c.exec("ROLLBACK") }() // nothing was written
	tx := &Tx{conn: c, now: time.Now().UTC()}
	defer func() { tx.conn = nil }()
	v, err := f(tx)
	if err == nil {
		err = tx.err
	}
	if err != nil {
		return zero, classify(op, err)
	}
	return v, nil
}

// times and digests as they are stored.

func ns(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func at(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// blob is never nil, which would be NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func quoteID(id string) string { return fmt.Sprintf("%.80q", id) }

package journal

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/crypt/keyring"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// request is one Append on its way.
type request struct {
	entry Entry
	turn  chan bool // true: lead the next group; false: index and err are set
	leads bool      // true was sent on turn; guarded by queue.mu
	since time.Time // when it began to wait; set only if asked for
	index uint64
	err   error

	meanwhile func(prove func() (Proof, error)) // see AppendMeanwhile; may be nil
}

// queue collects appends while a group is being written. The first append to come leads: it
// writes the collected group, tells the others and hands over to the first that came
// meanwhile. It has no goroutine of its own and no timer: the time that a flush takes makes
// the groups.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	leading bool
}

// enqueue gets r into a group and returns when the group is done, or when ctx
// is done and r is in no group yet.
func (j *Journal) enqueue(ctx context.Context, r *request) error {
	q := &j.queue
	if err := ctx.Err(); err != nil {
		return gaveUp(err)
	}
	if j.told != nil {
		r.since = time.Now()
	}
	q.mu.Lock()
	q.waiting = append(q.waiting, r)
	lead := !q.leading
	q.leading = true
	q.mu.Unlock()
	if !lead {
		select {
		case lead = <-r.turn:
		case <-ctx.Done():
			q.mu.Lock()
			i := slices.Index(q.waiting, r)
			if i >= 0 && !r.leads {
				q.waiting = slices.Delete(q.waiting, i, i+1)
				q.mu.Unlock()
				return gaveUp(ctx.Err())
			}
			q.mu.Unlock()
			lead = <-r.turn
		}
	}
	if lead {
		j.lead(ctx)
	}
	return nil
}

func gaveUp(err error) error { return durable.GaveUp("wait for a place in the journal", err) }

// lead writes one group, which the caller's request is in, and passes the lead. ctx is the
// caller's: it ends the wait for a publisher and for other processes.
func (j *Journal) lead(ctx context.Context) {
	q := &j.queue
	err := j.writer.take(ctx)
	mine := err == nil
	if mine {
		err = j.take(ctx)
	}
	batch := j.batch(err)
	if j.told != nil {
		now := time.Now()
		for _, r := range batch {
			j.told(now.Sub(r.since))
		}
	}
	if err == nil {
		j.commit(batch)
	}
	var dead []*wal
	if mine {
		j.yield()
		dead, j.retired = j.retired, nil
		j.writer.give()
	}

	q.mu.Lock()
	for _, r := range batch[1:] {
		r.turn <- false
	}
	next := len(q.waiting) > 0
	if next {
		q.waiting[0].leads = true
		q.waiting[0].turn <- true
	} else {
		q.leading = false
	}
	q.mu.Unlock()
	if next {
		// Otherwise the new leader would run only once this goroutine, which has a call to
		// finish, next waits for something.
		runtime.Gosched()
	}
	closeAll(dead)
}

// batch takes the next requests out of the queue, the caller's first: a group, or those
// that err answers.
func (j *Journal) batch(err error) []*request {
	q := &j.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	switch {
	case err == nil:
		for n < len(q.waiting) && n < maxGroup {
			size += len(q.waiting[n].entry.Leaf) + len(q.waiting[n].entry.Content)
			if n > 0 && size > maxBytes {
				break
			}
			n++
		}
	case errors.Is(err, durable.ErrGaveUp): // the caller alone has
		n = 1
	default: // the others would fail the same way, one after the other
		n = len(q.waiting)
	}
	batch := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	if err != nil {
		err = durable.Fault("append to journal", err)
		for _, r := range batch {
			r.err = err
		}
	}
	return batch
}

// commit makes a batch durable and sets the results. The caller holds writer.
func (j *Journal) commit(batch []*request) {
	good := batch[:0:0]
	g := &group{first: j.tree.size}
	key := j.key
	open := make(map[uint64]bool) // changes of this group to j.open
	for _, r := range batch {
		index := g.first + uint64(len(g.entries))
		if r.err = j.admit(&r.entry, g, open, index); r.err != nil {
			continue
		}
		r.index = index
		good = append(good, r)
		g.entries = append(g.entries, r.entry)
		if r.entry.Key != nil {
			key = r.entry.Key
		}
	}
	if len(good) == 0 {
		return
	}
	var meanwhile func(func() (Proof, error))
	if len(batch) == 1 { // the caller's own
		meanwhile = batch[0].meanwhile
	}
	if err := j.write(g, key, open, meanwhile); err != nil {
		err = durable.Fault("append to journal", err)
		for _, r := range good {
			r.index, r.err = 0, err
		}
		return
	}
	// The program that embeds the journal publishes in quiet moments. If it doesn't, the
	// write-ahead file must still not grow for ever.
	if j.tree.size-j.tree.base >= maxBacklog && !j.moving {
		j.moving = true
		j.movers.Go(j.move)
	}
}

// ErrNotOpen is in the error for an entry that closes one that is not open: another
// was first.
var ErrNotOpen = errors.New("not open")

// admit checks a request against the log's state.
func (j *Journal) admit(e *Entry, g *group, open map[uint64]bool, index uint64) error {
	if j.closed {
		return errClosed("append to journal")
	}
	if j.broken != nil {
		return durable.Fault("append to journal", j.broken)
	}
	if err := j.mayFollow(g, e); err != nil {
		return err
	}
	if e.Key != nil && e.Key.Origin() != j.key.Origin() {
		return fault.New(fault.Usage, "invalid_input", "append to journal", errors.New("the key to put in force is another log's"))
	}
	if e.Closes != nil {
		is, changed := open[*e.Closes]
		if _, was := j.open[*e.Closes]; !(changed && is) && (changed || !was) {
			return fault.New(fault.Usage, "invalid_input", "append to journal", fmt.Errorf("entry %d is %w", *e.Closes, ErrNotOpen))
		}
		open[*e.Closes] = false
	}
	if e.Opens {
		open[index] = true
	}
	return nil
}

// mayFollow asks Options.Follows about the entry that would be next in g.
func (j *Journal) mayFollow(g *group, e *Entry) error {
	if j.follows == nil {
		return nil
	}
	if n := len(g.entries); n > 0 {
		return j.follows(g.entries[n-1].Leaf, e)
	}
	if j.last == nil && g.first > 0 {
		for r, err := range j.Entries(g.first-1, g.first) {
			if err != nil {
				return durable.Fault("append to journal", err)
			}
			j.last = r.Leaf
		}
	}
	return j.follows(j.last, e)
}

// write signs with key, writes and flushes one group and then makes it part of the log. If that
// fails, the log is as before; repair cuts off leftovers after its end before the next
// group is written.
func (j *Journal) write(g *group, key *keyring.LogKey, open map[uint64]bool, meanwhile func(func() (Proof, error))) error {
	if err := j.repair(); err != nil {
		return err
	}
	// A record follows only a durable one: if a later record is there, recovery knows that
	// a crash didn't tear the damaged one.
	if err := j.flush(); err != nil {
		return err
	}
	leaves := make([]tlog.Hash, len(g.entries))
	for i := range g.entries {
		leaves[i] = tlog.RecordHash(g.entries[i].Leaf)
	}
	x, err := j.tree.extend(leaves)
	if err != nil {
		return err
	}
	g.note = key.SignCheckpoint(x.size, x.root)
	b, places := j.wal.header.encodeGroup(j.wal.end, g)
	j.step("append:begin")
	j.wal.dirty = true
	if meanwhile == nil {
		err = j.store(b, nil)
	} else {
		err = j.store(b, func() {
			meanwhile(func() (Proof, error) { return j.tree.proveIn(x, g.first, g.note) })
		})
	}
	if err != nil {
		_ = j.repair() // now if possible; else before the next group
		return err
	}
	j.step("append:durable")
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wal.dirty = false
	j.wal.end += int64(len(b))
	j.wal.places = append(j.wal.places, places...)
	j.wal.leaves = appendLeaves(j.wal.leaves, g)
	j.tree.apply(x)
	j.key, j.note = key, g.note
	j.last = g.entries[len(g.entries)-1].Leaf
	for i, is := range open {
		if is {
			j.open[i] = struct{}{}
		} else {
			delete(j.open, i)
		}
	}
	j.leaveWord()
	return nil
}

// store writes a record and flushes it, with something to do while the disk is
// at work, or nil.
func (j *Journal) store(b []byte, meanwhile func()) error {
	if _, err := j.wal.file.WriteAt(b, j.wal.end); err != nil {
		return fmt.Errorf("write write-ahead file: %w", err)
	}
	j.step("append:written")
	if meanwhile != nil {
		j.wal.file.StartWriting(j.wal.end, int64(len(b)))
		meanwhile()
	}
	if err := j.wal.file.Sync(); err != nil {
		return fmt.Errorf("sync write-ahead file: %w", err)
	}
	return nil
}

// repair cuts off the leftovers of a failed write. After a failed flush the kernel may have
// dropped pages and call them clean; cutting them off and flushing again restores a known
// state.
func (j *Journal) repair() error {
	if !j.wal.dirty {
		return nil
	}
	if err := j.wal.cut(); err != nil {
		return fmt.Errorf("cut off failed write: %w", err)
	}
	j.wal.dirty = false
	return nil
}

// OpenEntries lists the entries that were appended with Opens and aren't closed yet, in
// order.
func (j *Journal) OpenEntries() []uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return openList(j.open)
}

func openList(open map[uint64]struct{}) []uint64 {
	out := make([]uint64, 0, len(open))
	for i := range open {
		out = append(out, i)
	}
	slices.Sort(out)
	return out
}

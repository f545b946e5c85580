// Package journal is the append-only Merkle log: RFC 6962 hashes, C2SP
// tlog-tiles on disk, C2SP checkpoints signed with Ed25519.
//
// An entry is a leaf, which stays in the tree for ever, and content, which is kept beside
// it. The journal looks into neither. Append returns when the entry is durable; callers
// that append at the same time share one fsync.
//
//	j, err := journal.Open(dir, ring.Log(), journal.Options{})
//	pos, err := j.Append(ctx, journal.Entry{Leaf: leaf, Content: envelope})
//	proof, err := j.Prove(ctx, pos.Index) // at once; nothing has to be published first
//	err = j.Close()
//
// # What is durable when
//
// A group of entries is one record of the write-ahead file "wal", with the checkpoint of
// the tree that it makes, and one fdatasync. An append flushes nothing else, and Open and
// Close usually flush nothing at all. Once 256 entries are complete, the journal writes
// their tiles, entry bundles and content files, each once and durably, while appends go on;
// then the write-ahead file begins anew at that size. Close and Publish make the partial
// tiles and the file "checkpoint" from the write-ahead file.
//
// # Several processes
//
// Any number of processes may have a journal open and append to it. They take turns: a
// process holds the lock for one group, and before it writes it reads the others' appends,
// as Open would. A Journal shows the log as its process last saw it; Refresh looks again.
// No index is given twice, and the checkpoints of all processes are of one tree.
//
// # Crash and tampering
//
// Recovery is how Open always works: it reads the write-ahead file and rebuilds the tree. A
// crash can only tear the last record, which no caller was told about. A torn record ends
// early, or whole sectors of it are zero; Open cuts it off. All other damage is
// fault.Integrity: bytes elsewhere that don't match their checksum, a tree that doesn't
// match the signed checkpoint, a published checkpoint that the tree doesn't extend.
//
// # Limits
//
// A process that may write the directory can cut the log back to the size in its checkpoint
// file (which it can also replace) or at the beginning of the write-ahead file. Only a
// receipt or checkpoint that is kept elsewhere shows this. An Append that returned an error
// after the write began may be found in the log after a crash. The published tree is
// complete for its own checkpoint; partial tiles of older ones are removed.
//
// The formats: docs/formats/journal.md. The oracle: [Check].
package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"palyra/crypt/keyring"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Limits of one entry and one group, in bytes and entries.
const (
	MaxLeaf    = 1<<16 - 1 // a tlog-tiles entry bundle has 16 bits for the length
	MaxContent = 1 << 20
	maxGroup   = 256
	maxBytes   = 16 << 20
)

// maxBacklog is how many entries may wait in the write-ahead file for Close or
// Publish before they are moved into tiles in the background.
const maxBacklog = 4 * tileWidth

// Entry is one entry to append.
type Entry struct {
	Leaf    []byte // 1 to MaxLeaf bytes; hashed into the tree
	Content []byte // at most MaxContent bytes; kept beside it
	// Opens says that another entry is expected to close this one: an intent. OpenEntries
	// lists those that aren't closed. It costs nothing.
	Opens bool
	// Closes is the index of an open entry that this one closes: the result of
	// that intent. An entry that is not open cannot be closed. nil: none.
	Closes *uint64
	// Key is put in force by this entry: it signs the checkpoint over it, and those that follow.
	// nil: the key stays.
	Key *keyring.LogKey
}

// Keyset is the keys of a log as a writer needs them.
type Keyset struct {
	// Own are those that may be in force: the one that signed the newest checkpoint is. The first
	// is that of an empty log.
	Own []*keyring.LogKey
	All Keys // that signed checkpoints at any time, and the next one
}

// OneKeyset is the keys of a log that has had one key.
func OneKeyset(k *keyring.LogKey) Keyset {
	return Keyset{Own: []*keyring.LogKey{k}, All: OneKey(k.VKey())}
}

// Position is the place of an entry.
type Position struct{ Index uint64 }

// Options tune a Journal. The zero value is right for all but tests.
type Options struct {
	// Waited, if not nil, is called for each entry with the time that it waited for its
	// group: from Append until the write of the group begins, which is how long earlier
	// groups took. The writer calls it, so it must not block.
	Waited func(time.Duration)
	// Follows, if not nil, judges each entry under the log's lock, once the entries of other
	// processes are known: an error refuses next, and Append returns it as it is. last is the
	// newest leaf, nil if the log is empty. It must not block or call the journal.
	Follows func(last []byte, next *Entry) error
	// Keys, if not nil, returns the log's keys as they are now, in the place of the one that Open
	// is given. It's called under the log's lock when none of those that it returned before signed
	// the newest checkpoint. It must not call the journal.
	Keys func() (Keyset, error)
	// TestOnlyStep is called with the name of each durable step, so that a test
	// can kill the process there.
	TestOnlyStep func(name string)
	// TestOnlyPatience replaces patience, the wait for another process.
	TestOnlyPatience time.Duration
}

// Journal is an open log. Its methods may be called concurrently.
type Journal struct {
	dir  string
	step func(string)
	told func(time.Duration)    // Options.Waited; may be nil
	keys func() (Keyset, error) // Options.Keys; may be nil

	follows func(last []byte, next *Entry) error // Options.Follows; may be nil

	gates gates // between processes

	queue queue // of appends waiting for their group

	// The mover of complete tiles out of the write-ahead file, Publish and Close hold
	// sealing. It is taken before gates.seal, that before writer, and that before
	// gates.turn and gates.lock.
	sealing turn
	movers  sync.WaitGroup // that run in the background; Close waits for them

	// The leader of a group and the holder of sealing hold writer to change the log. The
	// fields below it are written only under it and mu.
	writer  turn
	held    bool   // guarded by writer: this process has gates.lock
	moving  bool   // guarded by writer: there is a mover
	retired []*wal // guarded by writer: write-ahead files to be closed; see leave
	last    []byte // guarded by writer: the newest leaf; nil if it isn't known
	set     Keyset // guarded by writer: the log's keys, as they were last read

	mu        sync.RWMutex
	closed    bool
	tree      *tree
	key       *keyring.LogKey // in force
	wal       *wal
	note      []byte              // checkpoint of the whole tree; nil if empty
	open      map[uint64]struct{} // entries that wait to be closed
	published uint64              // size of the checkpoint file; 0 if none
	broken    error               // why nothing can be appended any more
	// unsynced says that the end of the write-ahead file, or its name, may not be durable
	// yet.
	unsynced bool
}

// Open opens or creates the journal in dir for writing. Other processes may have it open
// too. A damaged log is fault.Integrity. A log that another process keeps locked for longer
// than a write may take is fault.Busy "locked".
func Open(dir string, key *keyring.LogKey, o Options) (*Journal, error) {
	op := fmt.Sprintf("open journal %q", dir)
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := durable.CheckPrivate(dir); err != nil {
		return nil, err
	}
	j := &Journal{dir: dir, step: o.TestOnlyStep, told: o.Waited, follows: o.Follows, keys: o.Keys, sealing: newTurn(), writer: newTurn()}
	if j.step == nil {
		j.step = func(string) {}
	}
	var err error
	if j.set = OneKeyset(key); o.Keys != nil {
		if j.set, err = o.Keys(); err != nil {
			return nil, err
		}
	}
	err = j.gates.open(dir, cmp.Or(o.TestOnlyPatience, patience))
	if err == nil {
		err = j.recover()
	}
	if err != nil {
		j.wal.close()
		j.gates.close()
		return nil, durable.Fault(op, err)
	}
	return j, nil
}

// recover is the only way a journal comes up: it reads the write-ahead file,
// cuts off a torn end and rebuilds the tree. Nothing else has the Journal yet.
func (j *Journal) recover() error {
	alone, err := j.gates.seal.Try(durable.Exclusive)
	if err != nil {
		return err
	}
	defer j.gates.seal.Release()
	if err := j.gates.take(context.Background()); err != nil {
		return err
	}
	defer j.gates.release()
	if alone { // with both locks: no process is putting a file in its place
		if err := durable.RemoveTemps(j.dir); err != nil {
			return err
		}
	}
	made, err := j.create()
	if err != nil {
		return err
	}
	if err := j.reload(); err != nil {
		return err
	}
	if made {
		j.unsynced = false
		j.leaveWord()
	}
	return nil
}

// create makes the write-ahead file of a new log. A missing one in a directory
// that has tiles or a checkpoint is not a new log.
func (j *Journal) create() (made bool, err error) {
	if _, err := os.Lstat(filepath.Join(j.dir, walFile)); !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	for _, name := range []string{checkpointFile, "tile", contentDir} {
		if _, err := os.Lstat(filepath.Join(j.dir, name)); err == nil {
			return false, corrupt("wal_missing", fmt.Errorf("there is %q but no write-ahead file", name))
		}
	}
	h, err := newHeader(0, nil, nil, nil)
	if err != nil {
		return false, err
	}
	return true, j.writeFile("create", walFile, h.encode())
}

// Append adds an entry and returns when it is durable. ctx bounds the wait for a place in a
// group, not the write itself: once that has begun, Append waits for the answer, since the
// entry may be on disk. Errors are fault.Usage (an entry that is too large or closes what
// isn't open), fault.Unavailable (disk full or failing; the log is as it was and may be
// appended to later) or the reason why ctx ended.
func (j *Journal) Append(ctx context.Context, e Entry) (Position, error) {
	return j.AppendMeanwhile(ctx, e, nil)
}

// AppendMeanwhile is Append that has something else done while the disk writes: it calls
// meanwhile at most once, after the disk has the entry and before it is known to be
// durable. prove gives the proof that Prove will later give for the entry, and must not be
// called after meanwhile returns. The entry may still fail: callers must not use results of
// meanwhile after an error. It isn't called if the entry shares its group with others,
// which should not wait for it. It must not block or call the journal, which is locked.
func (j *Journal) AppendMeanwhile(ctx context.Context, e Entry, meanwhile func(prove func() (Proof, error))) (Position, error) {
	if err := e.check(); err != nil {
		return Position{}, err
	}
	r := &request{entry: e, turn: make(chan bool, 1), meanwhile: meanwhile}
	if err := j.enqueue(ctx, r); err != nil {
		return Position{}, err
	}
	return Position{Index: r.index}, r.err
}

func (e *Entry) check() error {
	switch {
	case len(e.Leaf) == 0 || len(e.Leaf) > MaxLeaf:
		return fault.New(fault.Usage, "invalid_input", "append to journal", fmt.Errorf("leaf of %d bytes, want 1 to %d", len(e.Leaf), MaxLeaf))
	case len(e.Content) > MaxContent:
		return fault.New(fault.Usage, "invalid_input", "append to journal", fmt.Errorf("content of %d bytes, limit %d", len(e.Content), MaxContent))
	}
	return nil
}

// Proof shows that an entry is in a log: Hashes lead from the leaf to Root,
// which Checkpoint is signed over.
type Proof struct {
	Index, Size uint64
	Hashes      [][32]byte
	Root        [32]byte
	Checkpoint  []byte
}

// Prove returns a proof of inclusion under the checkpoint of the whole log. The log never
// falls back behind a checkpoint that Prove gave out. ctx bounds the wait for other writers
// of the log.
func (j *Journal) Prove(ctx context.Context, index uint64) (Proof, error) {
	op := fmt.Sprintf("prove entry %d", index)
	if err := j.settle(ctx); err != nil {
		return Proof{}, durable.Fault(op, err)
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return Proof{}, errClosed(op)
	}
	p, err := j.tree.prove(index)
	if err != nil {
		return Proof{}, durable.Fault(op, err)
	}
	p.Checkpoint = j.note
	return p, nil
}

// settle makes the writes of a process durable that may have died before its flush, before
// a checkpoint over them is given out.
func (j *Journal) settle(ctx context.Context) error {
	j.mu.RLock()
	unsynced := j.unsynced
	j.mu.RUnlock()
	if !unsynced {
		return nil
	}
	if err := j.writer.take(ctx); err != nil {
		return err
	}
	defer j.leave()
	if j.closed {
		return nil
	}
	return j.flush()
}

// flush is settle for the holder of writer.
func (j *Journal) flush() error {
	if !j.unsynced {
		return nil
	}
	if err := j.wal.file.Sync(); err != nil {
		return fmt.Errorf("sync write-ahead file: %w", err)
	}
	if err := durable.SyncDir(j.dir); err != nil {
		return err
	}
	j.mu.Lock()
	j.unsynced = false
	j.mu.Unlock()
	if j.held {
		j.leaveWord()
	}
	return nil
}

// Size returns the number of entries.
func (j *Journal) Size() uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.tree.size
}

// Key returns the verifier key that is in force: the one that signed the newest checkpoint.
func (j *Journal) Key() string {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.key.VKey()
}

// Checkpoint returns the signed note over the whole log, nil if it is empty. ctx is
// as for Prove.
func (j *Journal) Checkpoint(ctx context.Context) ([]byte, error) {
	if err := j.settle(ctx); err != nil {
		return nil, durable.Fault("read checkpoint", err)
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.note, nil
}

// Close publishes partial tiles and the checkpoint for readers. Appended entries are
// durable whatever Close returns: an error means that the published tree is older than the
// log. If another process is at work on the published tree, or keeps the log locked, Close
// leaves the work to it and returns no error.
func (j *Journal) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	j.sealing.must()
	err := j.publishAll(ctx, false)
	j.writer.must()
	j.mu.Lock()
	again := j.closed
	j.closed = true
	j.mu.Unlock()
	if !again {
		j.wal.close()
		j.gates.close()
	}
	j.leave()
	j.sealing.give()
	j.movers.Wait() // there is none or it sees that the journal is closed
	if again || fault.KindOf(err) == fault.Busy || errors.Is(err, durable.ErrGaveUp) {
		return nil
	}
	return durable.Fault(fmt.Sprintf("close journal %q", j.dir), err)
}

// Publish writes tiles and checkpoint for the whole log, durably. ctx bounds each wait for
// other writers of the log, and not the writing.
func (j *Journal) Publish(ctx context.Context) error {
	op := fmt.Sprintf("publish journal %q", j.dir)
	if err := j.sealing.take(ctx); err != nil {
		return durable.Fault(op, err)
	}
	defer j.sealing.give()
	return durable.Fault(op, j.publishAll(ctx, true))
}

// publishAll is publish with the locks that it needs. The caller holds sealing.
func (j *Journal) publishAll(ctx context.Context, lasting bool) error {
	if err := j.gates.takeSeal(ctx); err != nil {
		return err
	}
	defer j.gates.seal.Release()
	st, err := j.stageAll(ctx)
	defer st.discard()
	if err != nil {
		return err
	}
	if err := j.writer.take(ctx); err != nil {
		return err
	}
	defer j.leave()
	if err := j.take(ctx); err != nil {
		return err
	}
	defer j.yield()
	return j.publish(lasting, st)
}

// stageAll is stage for the log as it is now. Only the holder of gates.seal replaces
// the write-ahead file, so what this process sees now stays the beginning of it.
func (j *Journal) stageAll(ctx context.Context) (*staged, error) {
	if err := j.look(ctx); err != nil {
		return nil, err
	}
	if err := j.settle(ctx); err != nil {
		return nil, err
	}
	return j.stage()
}

func errClosed(op string) error {
	return fault.New(fault.BadState, "not_ready", op, errors.New("the journal is closed"))
}

// corrupt returns the error for damage that a crash doesn't explain.
func corrupt(reason string, err error) error {
	return fault.New(fault.Integrity, "journal_"+reason, "check journal", err).
		WithHint("the journal was changed by something other than Palyra; keep it for examination and run palyra journal verify")
}

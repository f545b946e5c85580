package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/crypt/keyring"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A process that wants to write takes lock, catches up with the others' writes, and gives
// lock back after its flush. flock(2) isn't fair: a process that gives it back and takes it
// again would keep it from all others. So turn is taken before lock and given back once
// lock is held: the one that waits for lock has turn, and the one that had lock can't pass
// it.
//
// seal is held for longer, by the one process that moves complete tiles out of the
// write-ahead file or publishes; others append meanwhile. Only its holder replaces
// files, the write-ahead file among them.
const (
	lockFile = "lock"
	turnFile = "turn"
	sealFile = "seal"
)

// IsLock reports whether a file of this name in a journal's directory is a lock,
// which no copy of the journal needs.
func IsLock(name string) bool { return name == lockFile || name == turnFile || name == sealFile }

const (
	// patience bounds the wait for another process. Groups take a flush each, and
	// there is one in front of us; a disk that needs this long is of no use.
	patience = 10 * time.Second
	// closePatience bounds the wait of Close, which has no need to publish.
	closePatience = time.Second
)

// gates are the locks between processes. The holder of writer uses lock and turn,
// the holder of sealing uses seal.
type gates struct {
	lock, turn, seal *durable.Gate
	patience         time.Duration
}

func (g *gates) open(dir string, patience time.Duration) (err error) {
	g.patience = patience
	for name, to := range map[string]**durable.Gate{lockFile: &g.lock, turnFile: &g.turn, sealFile: &g.seal} {
		if *to, err = durable.OpenGate(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// close gives everything back.
func (g *gates) close() {
	_, _, _ = g.lock.Close(), g.turn.Close(), g.seal.Close() // nothing is buffered in them
}

// take takes lock.
func (g *gates) take(ctx context.Context) error {
	until := time.Now().Add(g.patience)
	if err := g.wait(ctx, g.turn, g.patience); err != nil {
		return err
	}
	defer g.turn.Release()
	return g.wait(ctx, g.lock, time.Until(until))
}

func (g *gates) release() { g.lock.Release() }

func (g *gates) takeSeal(ctx context.Context) error { return g.wait(ctx, g.seal, g.patience) }

func (g *gates) wait(ctx context.Context, gate *durable.Gate, patience time.Duration) error {
	err := gate.Take(ctx, durable.Exclusive, patience)
	if fault.KindOf(err) == fault.Busy {
		holder := gate.Holder()
		if gate == g.turn { // its holder waits as we do, unless it is the one that hangs
			holder = cmp.Or(g.lock.Holder(), holder)
		}
		return fault.New(fault.Busy, "locked", "write journal", fmt.Errorf("%s keeps it locked", cmp.Or(holder, "another process"))).
			WithHint("it stands still in the middle of a write: look what stopped it, or end it")
	}
	return err
}

// take gets the log for this process alone and brings its view up to date. The caller holds
// writer, and gives the log back with yield.
func (j *Journal) take(ctx context.Context) error {
	switch {
	case j.closed:
		return errClosed("write journal")
	case j.broken != nil:
		return j.broken
	case j.held: // since a write that failed
		return nil
	}
	if err := j.gates.take(ctx); err != nil {
		return err
	}
	j.held = true
	if err := j.catchUp(); err != nil {
		if fault.KindOf(err) == fault.Integrity {
			j.broken = err
		}
		j.yield()
		return err
	}
	return nil
}

// yield gives the log to other processes, unless a failed write stands at its end
// that could not be cut off: the others would take it for an entry.
func (j *Journal) yield() {
	if j.held && !j.wal.dirty {
		j.held = false
		j.gates.release()
	}
}

// Refresh reads the appends of other processes. It returns fault.Busy "locked" if one
// of them keeps the log locked.
func (j *Journal) Refresh(ctx context.Context) error {
	if j.current() {
		return nil
	}
	return durable.Fault("read journal", j.look(ctx))
}

// look is take and yield.
func (j *Journal) look(ctx context.Context) error {
	if err := j.writer.take(ctx); err != nil {
		return err
	}
	defer j.leave()
	defer j.yield()
	return j.take(ctx)
}

// current reports whether the write-ahead file is as this process last saw it. It returns
// false while a goroutine of this process is at work on it.
func (j *Journal) current() bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	fi, err := os.Lstat(filepath.Join(j.dir, walFile))
	return !j.closed && err == nil && os.SameFile(fi, j.wal.info) && fi.Size() == j.wal.end
}

// catchUp reads the writes of other processes. The caller holds writer and the log.
func (j *Journal) catchUp() error {
	fi, err := os.Lstat(filepath.Join(j.dir, walFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return corrupt("wal_missing", errors.New("the write-ahead file is gone"))
	case err != nil:
		return err
	case !os.SameFile(fi, j.wal.info):
		return j.reload()
	case fi.Size() < j.wal.end:
		return corrupt("rolled_back", fmt.Errorf("the write-ahead file has %d bytes, it had %d", fi.Size(), j.wal.end))
	case fi.Size() > j.wal.end:
		return j.follow(fi.Size())
	}
	return nil
}

// reload reads the write-ahead file from its beginning, cuts off a torn end, and makes it
// this process's view. The view before, if any, must be the beginning of it.
func (j *Journal) reload() (err error) {
	w, err := openWAL(j.dir, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	published, err := os.ReadFile(filepath.Join(j.dir, checkpointFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	key := j.key
	s, err := w.load(j.dir, nil, func(note []byte, size uint64, root tlog.Hash) (keys Keys, err error) {
		key, err = j.inForce(note, size, root)
		return j.set.All, err
	}, published)
	if err != nil {
		return err
	}
	if err := s.extends(j.tree); err != nil {
		return err
	}
	if s.torn > 0 {
		if err := j.cutTorn(w); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.wal != nil {
		j.retired = append(j.retired, j.wal)
	}
	j.wal, j.tree, j.note, j.open, j.published = w, s.tree, s.note, s.open, s.published
	j.key, j.last = key, nil
	// A checkpoint is published after the flush of what it covers. Entries beyond it
	// were written by a process that may have died before the flush, or before that of
	// the file's name.
	end, ok := j.word()
	j.unsynced = !ok || end < w.end && s.tree.size > max(s.tree.base, s.published)
	return nil
}

// inForce returns the key that signed the newest checkpoint, which is for this tree: that key is
// in force, and whoever writes next signs with it. The caller holds writer and the log.
func (j *Journal) inForce(note []byte, size uint64, root tlog.Hash) (*keyring.LogKey, error) {
	if size == 0 {
		return j.set.Own[0], nil
	}
	for again := j.keys != nil; ; again = false {
		for _, k := range j.set.Own {
			if k.Signed(note, size, root) {
				return k, nil
			}
		}
		if !again {
			break
		}
		now, err := j.keys() // another process may have replaced the key
		if err != nil {
			return nil, err
		}
		j.set = now
	}
	// The record isn't as we would sign it: find out why.
	if err := j.set.All.hold(note, size, root); err != nil {
		return nil, corrupt("wal_corrupt", err)
	}
	return nil, corrupt("rolled_back", fmt.Errorf("the newest checkpoint, of size %d, is by a key that was replaced since", size))
}

// extends checks that the log just read extends old, the log known before; nil: none was.
func (s *state) extends(old *tree) error {
	if old == nil {
		return nil
	}
	if s.tree.size < old.size {
		return corrupt("rolled_back", fmt.Errorf("the log has %d entries, it had %d", s.tree.size, old.size))
	}
	root, err := s.tree.rootAt(old.size)
	if err != nil {
		return err
	}
	if root != old.root {
		return corrupt("checkpoint_split", fmt.Errorf("the first %d entries have another root than they had", old.size))
	}
	return nil
}

// cutTorn removes the leftovers of a process that died in the middle of a record. The cut
// must be durable before something else is written there, or a second crash could leave
// sectors of both, which looks like tampering.
func (j *Journal) cutTorn(w *wal) error {
	j.step("recover:torn")
	if err := w.cut(); err != nil {
		return fmt.Errorf("cut off unfinished record: %w", err)
	}
	j.step("recover:cut")
	return nil
}

// follow reads the records that other processes have added to the write-ahead
// file, which has this size now.
func (j *Journal) follow(size int64) error {
	w := &wal{file: j.wal.file, header: j.wal.header, end: j.wal.end, size: size}
	open := maps.Clone(j.open)
	var hashes []tlog.Hash
	var note, leaves []byte
	next := j.tree.size
	err := w.scanFrom(next, func(g *group, places []place) error {
		for i := range g.entries {
			if err := track(open, &g.entries[i], next); err != nil {
				return corrupt("wal_corrupt", err)
			}
			hashes = append(hashes, tlog.RecordHash(g.entries[i].Leaf))
			next++
		}
		leaves = appendLeaves(leaves, g)
		w.places, note = append(w.places, places...), bytes.Clone(g.note)
		return nil
	})
	if err != nil {
		return err
	}
	x, err := j.tree.extend(hashes)
	if err != nil {
		return err
	}
	key := j.key
	if len(hashes) > 0 {
		if key, err = j.inForce(note, x.size, x.root); err != nil {
			return err
		}
	}
	torn := w.end < size
	if torn {
		if err := j.cutTorn(w); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wal.end = w.end
	j.wal.places, j.wal.leaves = append(j.wal.places, w.places...), append(j.wal.leaves, leaves...)
	if len(hashes) > 0 {
		j.tree.apply(x)
		j.key, j.note, j.open, j.last = key, note, open, nil
	}
	if end, ok := j.word(); !ok || end < w.end && len(hashes) > 0 {
		j.unsynced = true
	}
	return nil
}

// The lock file holds a word of the last writer for the next: which write-ahead file has
// its name durably, and how far it is flushed. Nothing flushes the word itself. It may be
// missing or older than the file, and the next writer flushes once more; it is never wrong,
// since flushed data stays.
//
//	"PJL1" salt of the write-ahead file[8] end[8] crc[4]
const (
	wordMagic = "PJL1"
	wordLen   = 24
)

// leaveWord notes that the write-ahead file is durable up to its end, and its name. The
// caller holds the log. A failure costs the next writer a flush.
func (j *Journal) leaveWord() {
	b := append(make([]byte, 0, wordLen), wordMagic...)
	b = append(b, j.wal.header.salt[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(j.wal.end))
	_, _ = j.gates.lock.WriteAt(binary.BigEndian.AppendUint32(b, crcOf(b)), 0)
}

// word returns how far the write-ahead file is durable by the word of the last writer, if
// that is about this file. The caller holds the log.
func (j *Journal) word() (end int64, ok bool) {
	var b [wordLen]byte
	if _, err := j.gates.lock.ReadAt(b[:], 0); err != nil {
		return 0, false
	}
	if string(b[:4]) != wordMagic || !bytes.Equal(b[4:12], j.wal.header.salt[:]) || binary.BigEndian.Uint32(b[20:]) != crcOf(b[:20]) {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(b[12:])), true
}

// Package digests remembers the SHA-256 of files that only root can change, so
// that an interpreter of 90 MB is not read again for each call.
//
//	c := digests.New(filepath.Join(state, "digests"), bootID)
//	r, err := c.Of(ctx, f, handle.Stat, limit) // the caller has asked handle.System
//	c.Save()
//
// A digest is remembered under what the kernel says of the file: mount, device,
// inode, size, and the times of its content, of its inode and of its birth.
// Nobody can set the second of these times, so whatever is done to the content
// gives the file another name here, and it is read again. A digest is not
// remembered, and the file read on each call, if
//
//   - the content or inode changed within [settled] before it was hashed, since
//     a change in the same tick of the file system's clock would not show;
//   - somebody had it open for writing, since a page that is mapped and already
//     dirty is written without a trace. Only root and the file's owner are told
//     of that; to others the file has to be as old as [writtenBack];
//   - its file system does not keep times like that (see pin.KeepsTimes).
//
// The second does not count for files that fs-verity protects: nobody can have
// those open for writing. The digest that fs-verity itself has of a file is of a
// hash tree and not of the content, and therefore not what a capsule names.
//
// Calls that ask for one file at the same time wait for one of them to read it.
//
// Of a program that others can change, its bytes are kept and not its digest alone:
// [Cache.Seal].
//
// # What it does not protect against
//
// Root, who can write to a disk past its file system, or set the clock back to
// the tick of an earlier change and change a file in it. Whoever can write the
// saved file; see [Cache.Save].
package digests

import (
	"context"
	"os"
	"sync"
	"time"

	"palyra/internal/canon"
	"palyra/kernel/internal/pin"
)

const (
	// settled is how old the last change has to be: no file system that counts
	// here has a coarser clock, and the kernel's own moves each 1 to 10 ms.
	settled = 2 * time.Second
	// writtenBack is after what time the kernel has written a dirty page and
	// taken the right to write it from those who map it: dirty_expire_centisecs
	// and dirty_writeback_centisecs are 30 and 5 s (Documentation/admin-guide/
	// sysctl/vm.rst), and as much again.
	writtenBack = 70 * time.Second

	maxEntries = 256 // in memory; the one used longest ago goes
	maxSaved   = 64  // in the file, those used last
	// leastSaved is the size of a file from which on reading the saved digests
	// costs less than hashing it.
	leastSaved = 256 << 10
)

// Digest is the digest of a file, and how it was obtained.
type Digest struct {
	Sum    canon.Digest
	Size   int64
	Cached bool      // remembered, and not made for this call
	Verity bool      // fs-verity kept the file from changing since it was read
	Hashed time.Time // when the file was read
}

// key is the identity of a content. Its fields are saved in this order.
type key struct {
	Dev, Ino, Mount             uint64
	Size, Mtime, Ctime, Birthed int64
}

func keyOf(st pin.Stat) key {
	return key{st.Dev, st.Ino, st.Mount, st.Size, st.MtimeNS, st.CtimeNS, st.BirthNS}
}

type entry struct {
	Digest
	used uint64 // the turn of its last use
}

// flight is a file that is being read.
type flight struct {
	done chan struct{} // closed by who reads it, when the fields below are set
	got  Digest
	err  error
}

// Cache remembers digests. It is safe for concurrent use. A nil Cache remembers
// nothing.
type Cache struct {
	path string // of the saved file; "": none
	boot string

	// TestOnlyNow replaces the clock that says how old a file is: nobody can set
	// the time at which an inode changed.
	TestOnlyNow func() time.Time

	mu       sync.Mutex
	entries  map[key]*entry  // guarded by mu
	flights  map[key]*flight // guarded by mu
	programs []program       // guarded by mu: sealed before, at most maxCopies, the one used last at the end
	turn     uint64          // guarded by mu
	loaded   bool            // guarded by mu: the saved file was looked at
	unsaved  bool            // guarded by mu: something worth saving came in
}

// New makes a Cache. What was saved in path is used if it was saved under the
// same boot id. Without a path, or without a boot id, nothing is saved.
func New(path, boot string) *Cache {
	if boot == "" {
		path = ""
	}
	return &Cache{path: path, boot: boot,
		entries: make(map[key]*entry), flights: make(map[key]*flight)}
}

// Of returns the digest of f, an open file of at most limit bytes that was as st
// says when it was opened. The caller has made sure that nobody but root can
// change f, and looks afterwards whether it is still as st says; only with that
// the digest is of what f holds.
func (c *Cache) Of(ctx context.Context, f *os.File, st pin.Stat, limit int64) (Digest, error) {
	// What is remembered is of a mount whose file system keeps times. That is asked
	// again only if another mount may have been given its number since.
	if c == nil || st.Size > limit || !st.MountForGood && !pin.KeepsTimes(f) {
		return hash(ctx, f, limit)
	}
	k := keyOf(st)
	c.mu.Lock()
	d, ok := c.foundLocked(k)
	if ok {
		c.mu.Unlock()
		return d, nil
	}
	if w := c.flights[k]; w != nil {
		c.mu.Unlock()
		select {
		case <-w.done:
		case <-ctx.Done():
			return Digest{}, ctx.Err()
		}
		if w.err != nil {
			return hash(ctx, f, limit) // the other's error is not ours
		}
		d := w.got
		d.Cached = true
		return d, nil
	}
	verity := pin.KeepsContent(f, st)
	if st.MountForGood && !pin.KeepsTimes(f) || !c.oldEnough(f, st, verity) {
		c.mu.Unlock()
		return hash(ctx, f, limit)
	}
	w := &flight{done: make(chan struct{})}
	c.flights[k] = w
	c.mu.Unlock()

	w.got, w.err = hash(ctx, f, limit)
	w.got.Verity = verity
	if w.err == nil {
		w.err = pin.Changed(f, st)
	}
	c.mu.Lock()
	delete(c.flights, k)
	if w.err == nil {
		c.rememberLocked(k, w.got)
		c.unsaved = c.unsaved || k.Size >= leastSaved
	}
	c.mu.Unlock()
	close(w.done)
	return w.got, w.err
}

func hash(ctx context.Context, f *os.File, limit int64) (d Digest, err error) {
	d.Hashed = time.Now()
	d.Sum, d.Size, err = pin.Digest(ctx, f, limit)
	return d, err
}

// oldEnough reports whether a change of f from now on will show in its times.
// A time to come is not old: the clock was set back, or the file came so.
// No change of a file that verity keeps as it is needs to show.
func (c *Cache) oldEnough(f *os.File, st pin.Stat, verity bool) bool {
	now := time.Now()
	if c.TestOnlyNow != nil {
		now = c.TestOnlyNow()
	}
	age := now.Sub(time.Unix(0, max(st.MtimeNS, st.CtimeNS)))
	if age <= settled {
		return false
	}
	if verity {
		return true
	}
	switch pin.WritersOf(f) {
	case pin.WritersNone:
		return true
	case pin.WritersUnknown:
		return age > writtenBack
	}
	return false
}

// foundLocked looks k up, for large files also in what was saved.
func (c *Cache) foundLocked(k key) (Digest, bool) {
	if e := c.entries[k]; e != nil {
		c.turn++
		e.used = c.turn
		d := e.Digest
		d.Cached = true
		return d, true
	}
	if c.loaded || k.Size < leastSaved {
		return Digest{}, false
	}
	c.loaded = true
	for _, r := range c.load() {
		if c.entries[r.key] == nil {
			c.rememberLocked(r.key, r.Digest)
		}
	}
	if c.entries[k] == nil {
		return Digest{}, false
	}
	return c.foundLocked(k)
}

// rememberLocked adds an entry and lets the one go that was used longest ago.
func (c *Cache) rememberLocked(k key, d Digest) {
	if len(c.entries) >= maxEntries {
		var oldest key
		least := ^uint64(0)
		for k, e := range c.entries {
			if e.used < least {
				oldest, least = k, e.used
			}
		}
		delete(c.entries, oldest)
	}
	c.turn++
	c.entries[k] = &entry{d, c.turn}
}

// Package ring keeps the newest records of several processes in one file, and finds them by digest.
//
//	r := ring.New(filepath.Join(state, "placeholders"))
//	err := r.Add(ctx, sha256.Sum256(text), record)
//	key, record, err := r.Find(ctx, slices.Values(keys)) // nil: none of them has one
//
// The file has [Slots] records at most; another takes the place of the oldest. Each call opens the
// file and holds its lock (flock) while it reads or writes, and a Ring reads what others have
// written since it last looked, no more. A file that is lost, or isn't one of these, is begun anew:
// it holds only what can be done without.
//
//	header  "palyra ring 1\n", 16 random bytes of the file's own, the number of records that were ever
//	        added (8 bytes, big endian); padded to a slot
//	slot    32 bytes of the digest, the record's length (2 bytes, big endian), the record
//
// It doesn't protect against other programs of the file's owner, which can write what they will.
package ring

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Slots is how many records a file has, and MaxRecord how long one is, in bytes.
const (
	Slots     = 4096
	slot      = 1 << 10
	MaxRecord = slot - sha256.Size - 2
)

const magic = "palyra ring 1\n"

// patience bounds the wait for a process that reads or writes.
const patience = 10 * time.Second

// Key is what a record is found by.
type Key = [sha256.Size]byte

// Ring is a file and what is known of it. Its methods are safe for concurrent use.
type Ring struct {
	path string

	mu    sync.Mutex
	id    [16]byte    // guarded by mu, as is what follows; of the file that was read
	added uint64      // records of which are known
	at    map[Key]int // the slot of each record
	keys  [Slots]Key  // of each slot
}

// New returns the Ring of a file, which need not be there.
func New(path string) *Ring { return &Ring{path: path, at: make(map[Key]int)} }

// Add adds a record. Another of the same key isn't found any more.
func (r *Ring) Add(ctx context.Context, key Key, record []byte) error {
	if len(record) > MaxRecord {
		return fault.New(fault.Usage, "too_large", fmt.Sprintf("write %q", r.path), fmt.Errorf("a record of %d bytes, limit %d", len(record), MaxRecord))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := r.open(ctx, durable.Exclusive)
	if err != nil {
		return err
	}
	defer g.Close()
	id, added, err := header(g)
	if err == nil && id == [16]byte{} {
		rand.Read(id[:]) // never fails
	}
	b := make([]byte, slot)
	copy(b, key[:])
	binary.BigEndian.PutUint16(b[len(key):], uint16(len(record)))
	copy(b[len(key)+2:], record)
	if err == nil {
		_, err = g.WriteAt(b, offset(added))
	}
	if err == nil { // a process that dies before has added nothing
		_, err = g.WriteAt(binary.BigEndian.AppendUint64(append([]byte(magic), id[:]...), added+1), 0)
	}
	return durable.Fault(fmt.Sprintf("write %q", r.path), err)
}

// Find returns the first of keys that has a record, and the newest of it; nil if none has one. It
// opens the file if there are keys.
func (r *Ring) Find(ctx context.Context, keys iter.Seq[Key]) (key Key, record []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var g *durable.Gate
	defer func() { g.Close() }()
	for key := range keys {
		if g == nil {
			if _, err := os.Lstat(r.path); errors.Is(err, fs.ErrNotExist) {
				return Key{}, nil, nil
			}
			if g, err = r.open(ctx, durable.Shared); err != nil {
				return Key{}, nil, err
			}
			if err := r.readLocked(g); err != nil {
				return Key{}, nil, durable.Fault(fmt.Sprintf("read %q", r.path), err)
			}
		}
		n, ok := r.at[key]
		if !ok {
			continue
		}
		b, err := read(g, n)
		if err != nil {
			return Key{}, nil, durable.Fault(fmt.Sprintf("read %q", r.path), err)
		}
		size := min(int(binary.BigEndian.Uint16(b[len(key):])), MaxRecord)
		return key, b[len(key)+2:][:size], nil
	}
	return Key{}, nil, nil
}

func (r *Ring) open(ctx context.Context, h durable.Hold) (*durable.Gate, error) {
	g, err := durable.OpenGate(r.path)
	if err != nil {
		return nil, err
	}
	if err := g.Take(ctx, h, patience); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// readLocked learns of what was added.
func (r *Ring) readLocked(g *durable.Gate) error {
	id, added, err := header(g)
	if err != nil {
		return err
	}
	if id != r.id || added < r.added {
		r.id, r.added = id, 0
		clear(r.at)
		r.keys = [Slots]Key{}
	}
	if added > Slots {
		r.added = max(r.added, added-Slots)
	}
	for ; r.added < added; r.added++ {
		n := int(r.added % Slots)
		b, err := read(g, n)
		if err != nil {
			return err
		}
		if old := r.keys[n]; r.at[old] == n {
			delete(r.at, old)
		}
		r.keys[n] = Key(b[:sha256.Size])
		r.at[r.keys[n]] = n
	}
	return nil
}

// header returns the identity of a file, zeros if it has none, and how many records were added.
func header(g *durable.Gate) (id [16]byte, added uint64, err error) {
	b := make([]byte, len(magic)+len(id)+8)
	if _, err := g.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return id, 0, err
	}
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return id, 0, nil
	}
	copy(id[:], rest)
	return id, binary.BigEndian.Uint64(rest[len(id):]), nil
}

func offset(n uint64) int64 { return int64(1+n%Slots) * slot }

// read returns a slot, the rest of which is zeros if the file ends in it.
func read(g *durable.Gate, n int) ([]byte, error) {
	b := make([]byte, slot)
	_, err := g.ReadAt(b, offset(uint64(n)))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, err
}

package digests

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
)

// The saved file, all numbers big-endian:
//
//	"palyra digests 1\n"
//	SHA-256 of the boot id
//	records of 96 bytes, at most maxSaved, the one used longest ago first:
//	    device, inode, mount, size, mtime, ctime, birth (8 bytes each, times in
//	    nanoseconds), when it was hashed (8 bytes, nanoseconds), SHA-256
//	SHA-256 of all that precedes
const (
	magic      = "palyra digests 1\n"
	headerSize = len(magic) + 32
	recordSize = 7*8 + 8 + 32
	maxFile    = headerSize + maxSaved*recordSize + 32
)

// record is an entry with its key.
type record struct {
	key
	Digest
}

// raw is a record as it is saved.
type raw struct {
	Key    key
	Hashed int64
	Sum    canon.Digest
}

var errSaved = errors.New("not saved digests of this boot")

// encode writes records, the ones at the end if there are too many.
func encode(boot string, rs []record) []byte {
	rs = rs[max(0, len(rs)-maxSaved):]
	id := canon.Sum([]byte(boot))
	b := append([]byte(magic), id[:]...)
	for _, r := range rs {
		var err error
		if b, err = binary.Append(b, binary.BigEndian, raw{r.key, r.Hashed.UnixNano(), r.Sum}); err != nil {
			panic("digests: internal error: " + err.Error()) // raw has a fixed size
		}
	}
	sum := canon.Sum(b)
	return append(b, sum[:]...)
}

// decode reads what encode wrote under the same boot id and nothing else.
func decode(boot string, b []byte) ([]record, error) {
	body := len(b) - 32
	if len(b) > maxFile || body < headerSize || (body-headerSize)%recordSize != 0 {
		return nil, errSaved
	}
	id, sum := canon.Sum([]byte(boot)), canon.Sum(b[:body])
	if !bytes.Equal(b[body:], sum[:]) || string(b[:len(magic)]) != magic || !bytes.Equal(b[len(magic):headerSize], id[:]) {
		return nil, errSaved
	}
	raws := make([]raw, (body-headerSize)/recordSize)
	if _, err := binary.Decode(b[headerSize:body], binary.BigEndian, raws); err != nil {
		return nil, errSaved
	}
	rs := make([]record, len(raws))
	for i, r := range raws {
		if r.Key.Size < leastSaved {
			return nil, errSaved
		}
		rs[i] = record{r.Key, Digest{Sum: r.Sum, Size: r.Key.Size, Hashed: time.Unix(0, r.Hashed)}}
	}
	return rs, nil
}

// load reads the saved file. Whatever is wrong with it, files are hashed again.
func (c *Cache) load() []record {
	if c.path == "" {
		return nil
	}
	b, err := durable.ReadPrivate(c.path, int64(maxFile))
	if err != nil {
		return nil
	}
	rs, err := decode(c.boot, b)
	if err != nil {
		return nil
	}
	return rs
}

// Save writes the digests of large files for the next process of this boot, if
// there is one that was not saved yet. The file is replaced at once and not
// flushed: a crash of the host that could damage it also makes it worthless.
//
// Of several processes that save, the last one's digests stay. The file lies in the
// state directory, and is as private. Who can write it can have
// another digest shown, decided and recorded for a file of the system than it
// has; but there they also reach the keys that sign what is recorded.
func (c *Cache) Save() error {
	if c == nil || c.path == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unsaved {
		return nil
	}
	if err := durable.Replace(c.path, encode(c.boot, c.recordsLocked()), 0o600); err != nil {
		return err
	}
	c.unsaved = false
	return nil
}

// Sweep removes what a process left that was killed in Save. No other may be saving.
func (c *Cache) Sweep() error {
	if c == nil || c.path == "" {
		return nil
	}
	return durable.RemoveTempsOf(c.path)
}

// records are the entries worth saving, the one used longest ago first.
func (c *Cache) recordsLocked() []record {
	var ks []key
	for k := range c.entries {
		if k.Size >= leastSaved {
			ks = append(ks, k)
		}
	}
	slices.SortFunc(ks, func(a, b key) int { return cmp.Compare(c.entries[a].used, c.entries[b].used) })
	rs := make([]record, len(ks))
	for i, k := range ks {
		rs[i] = record{k, c.entries[k].Digest}
	}
	return rs
}

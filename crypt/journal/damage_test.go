package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/internal/fault"
	"palyra/internal/sample"
)

// memory is a write-ahead file in memory, for reading.
type memory struct{ b []byte }

func (m *memory) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(m.b).ReadAt(p, off) }

func (m *memory) WriteAt(p []byte, off int64) (int, error) { return 0, errors.ErrUnsupported }
func (m *memory) Truncate(int64) error                     { return errors.ErrUnsupported }
func (m *memory) StartWriting(int64, int64)                {}
func (m *memory) Sync() error                              { return nil }
func (m *memory) Close() error                             { return nil }

// written is a write-ahead file of five groups, none published, and where each
// begins and ends.
func written(t testing.TB) (s *house, file []byte, ends []int64) {
	t.Helper()
	s = newHouse(t)
	j := s.open(t, Options{})
	ends = []int64{j.wal.end}
	for i := range 5 {
		content := []byte(rand.Text())
		for len(content) < 100+i*400 {
			content = append(content, rand.Text()...)
		}
		if _, err := j.Append(context.Background(), Entry{Leaf: leafN(i), Content: content}); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, j.wal.end)
	}
	file, err := os.ReadFile(filepath.Join(s.dir, walFile))
	if err != nil {
		t.Fatal(err)
	}
	// As a killed process leaves it: nothing is published.
	j.broken = errors.New("killed")
	_ = j.Close()
	return s, file, ends
}

// reload returns what Open reads from a write-ahead file with these bytes. A reader with
// only the public key must come to the same result.
func reload(s *house, file []byte) (*state, error) {
	load := func(keys Keys, own func([]byte, uint64, tlog.Hash) (Keys, error)) (*state, error) {
		w, err := newWAL(&memory{b: file}, int64(len(file)))
		if err != nil {
			return nil, err
		}
		return w.load(s.dir, keys, own, nil)
	}
	j := &Journal{set: OneKeyset(s.ring.Log())}
	st, err := load(nil, func(note []byte, size uint64, root tlog.Hash) (Keys, error) {
		_, err := j.inForce(note, size, root)
		return j.set.All, err
	})
	if _, other := load(j.set.All, nil); (err == nil) != (other == nil) {
		return nil, fmt.Errorf("%v with the key, %v without", err, other)
	}
	return st, err
}

// TestTornAtEveryByte cuts the file at every byte of the last record, and puts
// zeros for every set of sectors: that is what a crash leaves, and recovery
// must come up with all records before it.
func TestTornAtEveryByte(t *testing.T) {
	s, file, ends := written(t)
	last := ends[4]
	for n := last; n < int64(len(file)); n += int64(sample.Of(7, 1)) {
		st, err := reload(s, file[:n])
		if err != nil {
			t.Fatalf("cut %d bytes into the last record: %v", n-last, err)
		}
		if st.tree.size != 4 || st.torn != n-last {
			t.Fatalf("cut %d bytes into the last record: size %d, torn %d", n-last, st.tree.size, st.torn)
		}
	}
	var sectors [][2]int64
	for at := last; at < int64(len(file)); {
		end := min((at/sectorBytes+1)*sectorBytes, int64(len(file)))
		sectors = append(sectors, [2]int64{at, end})
		at = end
	}
	if len(sectors) < 4 {
		t.Fatalf("the last record has %d sectors", len(sectors))
	}
	for set := 1; set < 1<<len(sectors); set++ {
		m := bytes.Clone(file)
		for i, sec := range sectors {
			if set&(1<<i) != 0 {
				clear(m[sec[0]:sec[1]])
			}
		}
		st, err := reload(s, m)
		if err != nil || st.tree.size != 4 {
			t.Fatalf("sectors %b lost: %v", set, err)
		}
	}
}

// TestFlipEveryByte changes every byte of the file. No crash does that: each is
// an integrity error, and never a shorter log.
func TestFlipEveryByte(t *testing.T) {
	s, file, _ := written(t)
	for i := 0; i < len(file); i += sample.Of(7, 1) {
		for _, x := range []byte{0x01, 0x80} {
			m := bytes.Clone(file)
			m[i] ^= x
			st, err := reload(s, m)
			if fault.KindOf(err) != fault.Integrity {
				t.Fatalf("byte %d of %d flipped: %+v, %v; want integrity", i, len(file), st, err)
			}
		}
	}
}

// TestTampering is what a crash cannot do, and what recovery must not mend.
func TestTampering(t *testing.T) {
	s, file, ends := written(t)
	record := func(i int) []byte { return file[ends[i]:ends[i+1]] }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	w, err := newWAL(&memory{b: file}, int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	forged, _ := w.header.encodeGroup(int64(len(file)), &group{first: 5, entries: []Entry{{Leaf: []byte("forged")}}, note: []byte("no note\n")})
	other := newHouse(t)
	foreign, _ := w.header.encodeGroup(int64(len(file)), &group{first: 5, entries: []Entry{{Leaf: []byte("forged")}},
		note: other.ring.Log().SignCheckpoint(6, [32]byte{1})})
	replay, _ := w.header.encodeGroup(int64(len(file)), &group{first: 5, entries: []Entry{{Leaf: []byte("forged")}},
		note: s.ring.Log().SignCheckpoint(5, [32]byte{1})})
	sectorInMiddle := bytes.Clone(file)
	at := (ends[3]/sectorBytes + 1) * sectorBytes
	clear(sectorInMiddle[at : at+sectorBytes])
	for _, c := range []struct {
		name string
		file []byte
	}{
		{"empty file", nil},
		{"header cut", file[:ends[0]-1]},
		{"zero sector before the last record", sectorInMiddle},
		{"record removed", join(file[:ends[2]], file[ends[3]:])},
		{"record doubled", join(file, record(4))},
		{"records swapped", join(file[:ends[1]], record(2), record(1), file[ends[3]:])},
		{"text after the end", join(file, []byte("hello"))},
		{"long text after the end", join(file, bytes.Repeat([]byte("hello "), 100))},
		{"record without a checkpoint", join(file, forged)},
		{"record signed by another log", join(file, foreign)},
		{"record with an old checkpoint", join(file, replay)},
		{"zero head before a record", join(file[:ends[4]], make([]byte, 32), record(4)[32:], record(4))},
	} {
		if st, err := reload(s, c.file); fault.KindOf(err) != fault.Integrity {
			t.Errorf("%s: %+v, %v; want integrity", c.name, st, err)
		}
	}
	// The same log under another key is not that key's log.
	if _, err := Check(s.dir, OneKey(other.ring.Log().VKey())); fault.KindOf(err) != fault.Integrity {
		t.Errorf("check with another key: %v", err)
	}
	if _, err := Open(s.dir, other.ring.Log(), Options{}); fault.KindOf(err) != fault.Integrity {
		t.Errorf("open with another key: %v", err)
	}
}

// TestNeverBehindPublished cuts acknowledged records off a published log.
func TestNeverBehindPublished(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	add(t, j, 0, 3)
	end := j.wal.end
	add(t, j, 3, 5)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(s.dir, walFile), end); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir, s.ring.Log(), Options{}); fault.ReasonOf(err) != "journal_rolled_back" {
		t.Errorf("open: %v, want journal_rolled_back", err)
	}
	if _, err := Check(s.dir, OneKey(s.ring.Log().VKey())); fault.ReasonOf(err) != "journal_rolled_back" {
		t.Errorf("check: %v, want journal_rolled_back", err)
	}
}

// TestDamagedWhileOpen changes a leaf on disk between its append and Close. Close publishes
// the entry as it was appended, and the next Open notices.
func TestDamagedWhileOpen(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	add(t, j, 0, 5)
	path := filepath.Join(s.dir, walFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, leafN(3))
	if at < 0 {
		t.Fatal("the leaf is not in the write-ahead file")
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{b[at] ^ 1}, int64(at))
	if err = errors.Join(err, f.Close(), j.Close()); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(filepath.Join(s.dir, "tile", "entries", "000.p", "5")); err != nil {
		t.Fatal(err)
	}
	leaves, err := decodeBundle(b, 5)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range leaves {
		if !bytes.Equal(l, leafN(i)) {
			t.Errorf("entry %d is published as %q", i, l)
		}
	}
	if _, err := Open(s.dir, s.ring.Log(), Options{}); fault.ReasonOf(err) != "journal_wal_corrupt" {
		t.Errorf("open: %v, want journal_wal_corrupt", err)
	}
}

// TestDamagedFiles damages each file of a log with complete tiles and says who
// must notice. Open looks at what it needs, Check at everything.
func TestDamagedFiles(t *testing.T) {
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	leaf := func(b []byte) []byte { b[5] ^= 1; return b }
	remove := func([]byte) []byte { return nil }
	short := func(b []byte) []byte { return b[:len(b)-1] }
	long := func(b []byte) []byte { return append(b, 0) }
	zeros := func(b []byte) []byte { clear(b); return b }
	without := func(b []byte) []byte { // the first content, with the checksum of a head that says so
		n := binary.BigEndian.Uint32(b[12:])
		binary.BigEndian.PutUint64(b[12:], 0xffffffff<<32)
		binary.BigEndian.PutUint32(b[contentHead-4:], crcOf(b[:contentHead-4]))
		return append(b[:contentHead:contentHead], b[contentHead+int(n):]...)
	}
	for _, c := range []struct {
		file   string
		damage func([]byte) []byte
		open   string // reason that Open gives, "" for none
		check  string
		prove  string // of entry 0
	}{
		{"checkpoint", flip, "journal_checkpoint_corrupt", "journal_checkpoint_corrupt", ""},
		{"checkpoint", short, "journal_checkpoint_corrupt", "journal_checkpoint_corrupt", ""},
		{"checkpoint", remove, "journal_checkpoint_missing", "journal_checkpoint_missing", ""},
		{"checkpoint", zeros, "", "", ""}, // what a power failure leaves
		{"wal", remove, "journal_wal_missing", "journal_wal_missing", ""},
		{"wal", flip, "journal_wal_corrupt", "journal_wal_corrupt", ""},
		{"wal", zeros, "journal_wal_corrupt", "journal_wal_corrupt", ""},
		{"tile/0/000", flip, "", "journal_tile_corrupt", "journal_tile_corrupt"},
		{"tile/0/000", short, "", "journal_tile_corrupt", "journal_tile_corrupt"},
		{"tile/0/000", long, "", "journal_tile_corrupt", "journal_tile_corrupt"},
		{"tile/0/000", remove, "", "journal_tile_missing", "journal_tile_missing"},
		{"tile/0/000", zeros, "", "journal_tile_corrupt", "journal_tile_corrupt"},
		{"tile/1/000.p/2", flip, "", "journal_tile_corrupt", "journal_tile_corrupt"},
		{"tile/1/000.p/2", remove, "", "journal_tile_missing", "journal_tile_missing"},
		{"tile/0/002.p/88", flip, "", "journal_tile_corrupt", ""},
		{"tile/0/002.p/88", remove, "", "", ""},
		{"tile/entries/001", leaf, "", "journal_tree_mismatch", ""},
		{"tile/entries/001", short, "", "journal_tile_corrupt", ""},
		{"tile/entries/001", remove, "", "journal_tile_missing", ""},
		{"tile/entries/002.p/88", flip, "", "journal_tile_corrupt", ""},
		{"content/000", flip, "", "journal_content_corrupt", ""},
		{"content/000", short, "", "journal_content_corrupt", ""},
		{"content/000", without, "", "journal_content_corrupt", ""},
		{"content/001", remove, "", "journal_content_missing", ""},
	} {
		t.Run(c.file, func(t *testing.T) {
			s := newHouse(t)
			j := s.open(t, Options{})
			fill(t, j, 0, 600)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			s.check(t)
			path := filepath.Join(s.dir, filepath.FromSlash(c.file))
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b = c.damage(b); b == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Check(s.dir, OneKey(s.ring.Log().VKey())); fault.ReasonOf(err) != c.check || err != nil && fault.KindOf(err) != fault.Integrity {
				t.Errorf("check: %v, want %q", err, c.check)
			}
			j, err = Open(s.dir, s.ring.Log(), Options{})
			if fault.ReasonOf(err) != c.open || err != nil && fault.KindOf(err) != fault.Integrity {
				t.Errorf("open: %v, want %q", err, c.open)
			}
			if err != nil {
				return
			}
			defer j.Close()
			if _, err := j.Prove(t.Context(), 0); fault.ReasonOf(err) != c.prove {
				t.Errorf("prove: %v, want %q", err, c.prove)
			}
			add(t, j, 600, 601) // appending needs none of them
		})
	}
}

// failing is a write-ahead file whose disk fails, on which a write leaves half.
type failing struct {
	storage
	writeErr, syncErr, cutErr error
}

func (f *failing) WriteAt(p []byte, off int64) (int, error) {
	if f.writeErr != nil {
		n, _ := f.storage.WriteAt(p[:len(p)/2], off)
		return n, f.writeErr
	}
	return f.storage.WriteAt(p, off)
}

func (f *failing) Truncate(n int64) error {
	if f.cutErr != nil {
		return f.cutErr
	}
	return f.storage.Truncate(n)
}

func (f *failing) Sync() error {
	if f.syncErr != nil {
		return f.syncErr
	}
	return f.storage.Sync()
}

// TestFailingDisk lets writes and flushes fail: the append reports it, the log
// is as before, reading goes on and a later append works. Other processes append
// meanwhile, unless what failed could not be cut off.
func TestFailingDisk(t *testing.T) {
	for _, c := range []struct {
		name string
		fail failing
		busy bool // for others, until the disk works again
	}{
		{"write", failing{writeErr: syscall.ENOSPC}, false},
		{"sync", failing{syncErr: syscall.EIO}, true}, // the cut is flushed, too
		{"write and cut", failing{writeErr: syscall.ENOSPC, cutErr: syscall.EIO}, true},
		{"sync and cut", failing{syncErr: syscall.EIO, cutErr: syscall.EIO}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newHouse(t)
			j := s.open(t, Options{})
			defer j.Close()
			other := s.open(t, Options{TestOnlyPatience: time.Millisecond})
			defer other.Close()
			real := j.wal.file
			disk := &failing{storage: real}
			j.wal.file = disk
			add(t, j, 0, 2)
			*disk = c.fail
			disk.storage = real
			n := 2
			for range 3 {
				_, err := j.Append(context.Background(), Entry{Leaf: []byte("lost"), Content: []byte("x")})
				if fault.KindOf(err) != fault.Unavailable {
					t.Fatalf("append: %v, want unavailable", err)
				}
				if j.Size() != uint64(n) {
					t.Fatalf("size %d after a failed append", j.Size())
				}
				p, err := j.Prove(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				verifyProof(t, s.ring.Log().VKey(), p, leafN(1))
				if got, err := j.Content(0); err != nil || !bytes.Equal(got, contentN(0)) {
					t.Fatalf("content: %v", err)
				}
				pos, err := other.Append(context.Background(), Entry{Leaf: leafN(n), Content: contentN(n)})
				switch {
				case c.busy && fault.ReasonOf(err) != "locked":
					t.Fatalf("another process, behind what could not be cut off: %v", err)
				case !c.busy && (err != nil || pos.Index != uint64(n)):
					t.Fatalf("another process: %d, %v", pos.Index, err)
				case !c.busy:
					n++
					if err := j.Refresh(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
			}
			*disk = failing{storage: real}
			add(t, j, n, n+2)
			add(t, other, n+2, n+4)
			if r := s.check(t); r.Size != uint64(n+4) || r.Torn != 0 {
				t.Fatalf("%+v", r)
			}
		})
	}
}

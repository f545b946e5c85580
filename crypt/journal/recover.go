package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/internal/durable"
)

// storage is the part of *os.File that the write-ahead file needs; a test puts a failing
// disk in its place. StartWriting is a hint.
type storage interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	StartWriting(off, n int64)
	Sync() error
	Close() error
}

// disk is a file whose Sync flushes content and size only.
type disk struct{ *os.File }

func (d disk) Sync() error { return durable.Datasync(d.File) }

// StartWriting lets the disk work while this process has something else to do.
func (d disk) StartWriting(off, n int64) { durable.StartWriting(d.File, off, n) }

// wal is an open write-ahead file.
type wal struct {
	file   storage
	info   os.FileInfo // which file it is
	size   int64       // of the file when it was opened
	header *header
	start  int64   // where the first record is
	end    int64   // where the next record goes
	places []place // of the entries from header.base on
	leaves []byte  // theirs as an entry bundle, for writers; at most half a megabyte
	dirty  bool    // there may be bytes after end that are no record
}

func (w *wal) close() {
	if w != nil {
		_ = w.file.Close() // nothing is buffered in it
	}
}

// openWAL opens the write-ahead file in dir and reads its header.
func openWAL(dir string, flag int) (*wal, error) {
	path := filepath.Join(dir, walFile)
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = corrupt("wal_corrupt", errors.New("write-ahead file is no regular file"))
	}
	var w *wal
	if err == nil {
		w, err = newWAL(disk{f}, fi.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	w.info = fi
	return w, nil
}

// newWAL reads the header of a write-ahead file of this size.
func newWAL(f storage, size int64) (*wal, error) {
	// A header is at most 64 hashes, a note and the list of open entries; read
	// more only if that list is long.
	for n := int64(1 << 14); ; n *= 8 {
		b := make([]byte, min(n, size))
		if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
			return nil, err
		}
		h, end, err := decodeHeader(b)
		if err == nil {
			return &wal{file: f, size: size, header: h, start: int64(end), end: int64(end)}, nil
		}
		if int64(len(b)) == size || n > 1<<26 {
			return nil, corrupt("wal_corrupt", err)
		}
	}
}

// state is the log by its write-ahead file and published checkpoint.
type state struct {
	tree      *tree
	note      []byte
	open      map[uint64]struct{}
	published uint64
	torn      int64 // bytes after the last record
}

// load replays the write-ahead file. With keys it holds the result to
// the signed checkpoint and to the published one (nil: there is none); without,
// it only reads. A writer has own instead, which judges the newest checkpoint and returns all keys.
func (w *wal) load(dir string, keys Keys, own func(note []byte, size uint64, root tlog.Hash) (Keys, error), published []byte) (*state, error) {
	t, err := newTree(dir, w.header.base, w.header.edge)
	if err != nil {
		return nil, corrupt("wal_corrupt", err)
	}
	s := &state{tree: t, note: w.header.note, open: make(map[uint64]struct{})}
	for _, i := range w.header.open {
		s.open[i] = struct{}{}
	}
	if own != nil { // a leaf is a small part of a record
		w.leaves = make([]byte, 0, (w.size-w.end)/8+1<<12)
	}
	err = w.scan(func(g *group, places []place) error {
		if own != nil {
			w.leaves = appendLeaves(w.leaves, g)
		}
		for i := range g.entries {
			if err := t.add(tlog.RecordHash(g.entries[i].Leaf)); err != nil {
				return err
			}
			if err := track(s.open, &g.entries[i], t.size-1); err != nil {
				return corrupt("wal_corrupt", err)
			}
		}
		w.places = append(w.places, places...)
		s.note = append(s.note[:0:0], g.note...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.torn = w.size - w.end
	if t.root, err = t.rootAt(t.size); err != nil {
		return nil, err
	}
	switch {
	case own != nil:
		if keys, err = own(s.note, t.size, t.root); err != nil {
			return nil, err
		}
	case keys == nil:
		return s, nil
	case t.size > 0:
		if err := keys.hold(s.note, t.size, t.root); err != nil {
			return nil, corrupt("wal_corrupt", err)
		}
	}
	s.published, err = s.checkPublished(published, keys)
	return s, err
}

// hold checks that note is a checkpoint for exactly this tree.
func (ks Keys) hold(note []byte, size uint64, root tlog.Hash) error {
	c, _, err := ks.Open(note)
	if err != nil {
		return err
	}
	if c.Size != size || c.Root != root {
		return fmt.Errorf("the entries make a tree of size %d that is not the signed one of size %d", size, c.Size)
	}
	return nil
}

// track keeps the set of open entries.
func track(open map[uint64]struct{}, e *Entry, index uint64) error {
	if e.Closes != nil {
		if _, ok := open[*e.Closes]; !ok {
			return fmt.Errorf("entry %d is not open", *e.Closes)
		}
		delete(open, *e.Closes)
	}
	if e.Opens {
		open[index] = struct{}{}
	}
	return nil
}

// scan reads record after record and leaves w.end after the last good one. The records that
// it hands out are valid during the call only.
func (w *wal) scan(each func(*group, []place) error) error { return w.scanFrom(w.header.base, each) }

// scanFrom is scan for a wal whose end is where the record of entry next begins.
func (w *wal) scanFrom(next uint64, each func(*group, []place) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(w.file, w.end, w.size-w.end), 1<<16)
	var head [groupHead]byte
	var body []byte
	for w.end < w.size {
		n, err := io.ReadFull(r, head[:])
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		first, count, length, ok := w.header.decodeHead(head[:n], w.end)
		if !ok || first != next || w.end+groupHead+int64(length) > w.size {
			return w.tail(next, errors.New("write-ahead file: bytes that are no record"))
		}
		rest := 0 // of the record in the reader's buffer
		if length <= r.Size() {
			rest = length
			if body, err = r.Peek(length); err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
		} else {
			body = make([]byte, length)
			_, err = io.ReadFull(r, body)
		}
		if err != nil {
			return err
		}
		g, places, err := decodeBody(body, w.end+groupHead, first, count)
		if errors.Is(err, errBody) {
			return w.tail(next, err)
		}
		if err != nil {
			return corrupt("wal_corrupt", err)
		}
		if err := each(g, places); err != nil {
			return err
		}
		if _, err := r.Discard(rest); err != nil {
			return err
		}
		w.end += groupHead + int64(length)
		next += uint64(count)
	}
	return nil
}

// tail judges the bytes after the last good record: they are harmless if a crash explains
// them; otherwise it says why not.
func (w *wal) tail(next uint64, why error) error {
	n := w.size - w.end
	if n > groupHead+maxBody {
		return corrupt("wal_corrupt", why)
	}
	rest := make([]byte, n)
	if _, err := w.file.ReadAt(rest, w.end); err != nil {
		return err
	}
	if !w.header.torn(rest, w.end, next) {
		return corrupt("wal_corrupt", why)
	}
	return nil
}

// cut removes everything after the last good record, durably.
func (w *wal) cut() error {
	if err := w.file.Truncate(w.end); err != nil {
		return err
	}
	return w.file.Sync()
}

// checkPublished holds the log to the checkpoint that it published: same tree,
// and not beyond the log's end. It returns its size.
//
// On Close the file is replaced without a flush, so a power failure may leave it empty or
// zeros, or missing if it was the first; its content is then in the write-ahead file. No
// other damage is excused.
func (s *state) checkPublished(b []byte, keys Keys) (uint64, error) {
	switch {
	case b == nil && s.tree.base > 0:
		return 0, corrupt("checkpoint_missing", errors.New("the log has complete tiles but no checkpoint"))
	case zero(b):
		return 0, nil
	case bytes.Equal(b, s.note):
		return s.tree.size, nil // checked as the log's own
	}
	c, _, err := keys.Open(b)
	if err != nil {
		return 0, corrupt("checkpoint_corrupt", err)
	}
	switch {
	case c.Size > s.tree.size:
		return 0, corrupt("rolled_back", fmt.Errorf("checkpoint of size %d is published and the log has %d entries", c.Size, s.tree.size))
	case c.Size < s.tree.base:
		return 0, corrupt("checkpoint_rolled_back", fmt.Errorf("the published checkpoint has size %d, a later one of size %d was durable", c.Size, s.tree.base))
	}
	root, err := s.tree.rootAt(c.Size)
	if err != nil {
		return 0, err
	}
	if root != c.Root {
		return 0, corrupt("checkpoint_split", fmt.Errorf("the published checkpoint of size %d has another root than the log", c.Size))
	}
	return c.Size, nil
}

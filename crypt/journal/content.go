package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
)

// A content file holds the contents of the entries of one complete bundle:
//
//	"PJC1" first[8] n × (length[4] crc[4]) crc[4]   the contents
//
// with n = 256, big endian, CRC-32C.
const (
	contentMagic = "PJC1"
	contentHead  = 4 + 8 + 8*tileWidth + 4
)

// encodeContentHead returns the head of the content file for entries first, first+1, …
func encodeContentHead(first uint64, places []place) []byte {
	b := make([]byte, 0, contentHead)
	b = append(b, contentMagic...)
	b = binary.BigEndian.AppendUint64(b, first)
	for _, p := range places {
		b = binary.BigEndian.AppendUint32(b, uint32(p.contentLen))
		b = binary.BigEndian.AppendUint32(b, p.sum)
	}
	return binary.BigEndian.AppendUint32(b, crcOf(b))
}

// copyContents writes the contents of entries first, first+1, … from a write-ahead file, one at a
// time: together they can have a quarter of a gigabyte.
func copyContents(w io.Writer, first uint64, file io.ReaderAt, places []place) error {
	for i, p := range places {
		b, err := readContent(file, first+uint64(i), slot{off: p.content, length: p.contentLen, sum: p.sum})
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// slot is the place of one content in a content file.
type slot struct {
	off    int64
	length int
	sum    uint32
}

// decodeContentHead reads the head of the content file that begins at entry
// first; size is that of the file.
func decodeContentHead(b []byte, first uint64, size int64) ([]slot, error) {
	if len(b) < contentHead || string(b[:4]) != contentMagic || binary.BigEndian.Uint64(b[4:]) != first ||
		binary.BigEndian.Uint32(b[contentHead-4:]) != crcOf(b[:contentHead-4]) {
		return nil, errors.New("content file: head is damaged")
	}
	out := make([]slot, tileWidth)
	off := int64(contentHead)
	for i := range out {
		l := binary.BigEndian.Uint32(b[12+8*i:])
		if l > MaxContent {
			return nil, errors.New("content file: length out of range")
		}
		out[i] = slot{off: off, length: int(l), sum: binary.BigEndian.Uint32(b[16+8*i:])}
		off += int64(l)
	}
	if off != size {
		return nil, fmt.Errorf("content file: %d bytes, want %d", size, off)
	}
	return out, nil
}

// openContents opens the content file of bundle n.
func openContents(dir string, n uint64) (*os.File, []slot, error) {
	path := filepath.Join(dir, filepath.FromSlash(contentPath(int64(n))))
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, nil, corrupt("content_missing", fmt.Errorf("content file %q is missing", path))
	}
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	var slots []slot
	if err == nil {
		head := make([]byte, contentHead)
		if _, err = f.ReadAt(head, 0); err == nil || err == io.EOF {
			slots, err = decodeContentHead(head, n*tileWidth, fi.Size())
			if err != nil {
				err = corrupt("content_corrupt", fmt.Errorf("%q: %w", path, err))
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, slots, nil
}

func readContent(r io.ReaderAt, index uint64, s slot) ([]byte, error) {
	b := make([]byte, s.length)
	if _, err := r.ReadAt(b, s.off); err != nil {
		return nil, err
	}
	if crcOf(b) != s.sum {
		return nil, corrupt("content_corrupt", fmt.Errorf("content of entry %d does not match its checksum", index))
	}
	return b, nil
}

// Record is an entry as it is read back.
type Record struct {
	Index   uint64
	Leaf    []byte
	Content []byte
}

// snapshot is a log at one size, for reading: entries below base are in files that never
// change, the rest in a write-ahead file that we hold open.
type snapshot struct {
	dir    string
	base   uint64
	size   uint64
	file   io.ReaderAt
	places []place
}

// content reads the content of one entry.
func (s *snapshot) content(index uint64) ([]byte, error) {
	if index >= s.size {
		return nil, notFound(index, s.size)
	}
	if index >= s.base {
		p := s.places[index-s.base]
		return readContent(s.file, index, slot{off: p.content, length: p.contentLen, sum: p.sum})
	}
	f, slots, err := openContents(s.dir, index/tileWidth)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readContent(f, index, slots[index%tileWidth])
}

// leaf reads a leaf from base on.
func (s *snapshot) leaf(index uint64) ([]byte, error) {
	p := s.places[index-s.base]
	b := make([]byte, p.leafLen)
	_, err := s.file.ReadAt(b, p.leaf)
	return b, err
}

// entries reads records in order. It stops after the first error.
func (s *snapshot) entries(from, to uint64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		to = min(to, s.size)
		for from < min(to, s.base) {
			next, ok := s.bundle(from, min(to, s.base), yield)
			if !ok {
				return
			}
			from = next
		}
		for ; from < to; from++ {
			r := Record{Index: from}
			var err error
			if r.Leaf, err = s.leaf(from); err == nil {
				r.Content, err = s.content(from)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// bundle yields the records from index on that are in the same bundle.
func (s *snapshot) bundle(from, to uint64, yield func(Record, error) bool) (next uint64, ok bool) {
	leaves, err := readBundle(s.dir, from/tileWidth)
	if err != nil {
		return 0, yield(Record{Index: from}, err) && false
	}
	f, slots, err := openContents(s.dir, from/tileWidth)
	if err != nil {
		return 0, yield(Record{Index: from}, err) && false
	}
	defer f.Close()
	end := min(to, from/tileWidth*tileWidth+tileWidth)
	for ; from < end; from++ {
		r := Record{Index: from, Leaf: leaves[from%tileWidth]}
		var err error
		r.Content, err = readContent(f, from, slots[from%tileWidth])
		if !yield(r, err) || err != nil {
			return 0, false
		}
	}
	return from, true
}

// readBundle reads the complete entry bundle n.
func readBundle(dir string, n uint64) ([][]byte, error) {
	path := filepath.Join(dir, filepath.FromSlash(bundlePath(int64(n), tileWidth)))
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, corrupt("tile_missing", fmt.Errorf("entry bundle %q is missing", path))
	}
	if err != nil {
		return nil, err
	}
	leaves, err := decodeBundle(b, tileWidth)
	if err != nil {
		return nil, corrupt("tile_corrupt", fmt.Errorf("%q: %w", path, err))
	}
	return leaves, nil
}

// snapshot returns the log as it is now, for reading.
func (j *Journal) snapshot() *snapshot {
	return &snapshot{dir: j.dir, base: j.tree.base, size: j.tree.size, file: j.wal.file, places: j.wal.places}
}

// Content returns the content of an entry.
func (j *Journal) Content(index uint64) ([]byte, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return nil, errClosed("read journal")
	}
	return j.snapshot().content(index)
}

// Entries reads the entries from index from up to but not including to. It doesn't check
// them against the tree: Check does that. Entries appended during the loop aren't in it.
// The loop holds up no append, however long it takes.
func (j *Journal) Entries(from, to uint64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		to = min(to, j.Size())
		for {
			batch, err := j.records(from, to)
			for _, r := range batch {
				if !yield(r, nil) {
					return
				}
				from++
			}
			if err != nil {
				yield(Record{Index: from}, err)
				return
			}
			if from >= to {
				return
			}
		}
	}
}

// A batch is as many records as are read under one lock: these, or the first that
// bring its content to this many bytes.
const (
	batchRecords = 64
	batchBytes   = 256 << 10
)

// records reads the next ones, at least one if there is no error.
func (j *Journal) records(from, to uint64) (rs []Record, err error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return nil, errClosed("read journal")
	}
	bytes := 0
	for r, e := range j.snapshot().entries(from, to) {
		if e != nil {
			return rs, e
		}
		rs = append(rs, r)
		if bytes += len(r.Content); len(rs) == batchRecords || bytes >= batchBytes {
			break
		}
	}
	return rs, nil
}

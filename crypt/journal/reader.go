package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Reader reads a journal that another process may be writing: it sees the log
// as it was when it was opened. It takes no lock and changes nothing.
type Reader struct {
	snapshot
	wal  *wal
	st   *state
	seen []byte // the published checkpoint, as it was read
}

// OpenReader opens the journal in dir for reading. It authenticates nothing and returns the
// log as it is on disk. Check says whether that is the log that its key signed.
func OpenReader(dir string) (*Reader, error) { return openReader(dir, nil) }

func openReader(dir string, keys Keys) (*Reader, error) {
	op := fmt.Sprintf("read journal %q", dir)
	for try := 0; ; try++ {
		r, err := readOnce(dir, keys)
		if err == nil {
			return r, nil
		}
		// A writer may have moved on between our looks at the two files. A damaged file
		// gives the same answer again.
		if k := fault.KindOf(err); try < 3 && (k == fault.Integrity || errors.Is(err, io.ErrUnexpectedEOF)) {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) && fault.KindOf(err) == fault.Internal {
			return nil, fault.New(fault.NotFound, "not_found", op, errors.New("there is no journal here")).
				WithHint("the first call makes the journal; name the directory where it was made: --state DIR")
		}
		return nil, durable.Fault(op, err)
	}
}

// readOnce reads the published checkpoint first: the log only grows after it.
func readOnce(dir string, keys Keys) (*Reader, error) {
	seen, err := os.ReadFile(filepath.Join(dir, checkpointFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	w, err := openWAL(dir, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) && seen != nil {
		return nil, corrupt("wal_missing", errors.New("there is a checkpoint but no write-ahead file"))
	}
	if err != nil {
		return nil, err
	}
	st, err := w.load(dir, keys, nil, seen)
	if err != nil {
		w.close()
		return nil, err
	}
	// Entries that we are about to hand out must not be lost with the writer's page cache.
	// If a flush isn't possible (read-only media), nothing is unflushed.
	_ = w.file.Sync()
	return &Reader{
		snapshot: snapshot{dir: dir, base: st.tree.base, size: st.tree.size, file: w.file, places: w.places},
		wal:      w, st: st, seen: seen,
	}, nil
}

// Close gives the descriptor back.
func (r *Reader) Close() error {
	r.wal.close()
	return nil
}

// Size returns the number of entries.
func (r *Reader) Size() uint64 { return r.size }

// Checkpoint returns the signed note over the whole log, nil if it is empty.
func (r *Reader) Checkpoint() []byte { return r.st.note }

// OpenEntries lists the entries that wait to be closed.
func (r *Reader) OpenEntries() []uint64 { return openList(r.st.open) }

// Content returns the content of an entry.
func (r *Reader) Content(index uint64) ([]byte, error) { return r.content(index) }

// Entries reads the entries from index from up to but not including to.
func (r *Reader) Entries(from, to uint64) iter.Seq2[Record, error] { return r.entries(from, to) }

// Prove returns a proof of inclusion under the checkpoint of the whole log.
func (r *Reader) Prove(index uint64) (Proof, error) {
	p, err := r.st.tree.prove(index)
	if err != nil {
		return Proof{}, durable.Fault(fmt.Sprintf("prove entry %d", index), err)
	}
	p.Checkpoint = r.st.note
	return p, nil
}

// RootAt returns the root that the log had at a size.
func (r *Reader) RootAt(size uint64) ([32]byte, error) {
	if size == 0 || size > r.size {
		return [32]byte{}, fault.New(fault.Usage, "invalid_input", "read journal", fmt.Errorf("size %d, want 1 to %d", size, r.size))
	}
	return r.st.tree.rootAt(size)
}

// Report is Check's account of a sound journal.
type Report struct {
	Origin     string   `json:"origin"`
	Size       uint64   `json:"size"`
	Root       [32]byte `json:"-"`
	Checkpoint string   `json:"checkpoint"` // signed note over the whole log
	Published  uint64   `json:"published"`  // size of the checkpoint file
	Sealed     uint64   `json:"sealed"`     // entries in complete tiles
	Groups     int      `json:"groups"`     // records in the write-ahead file
	Torn       int64    `json:"torn_bytes"` // of an unfinished record; the next writer cuts it off
	Open       []uint64 `json:"open"`       // entries that wait to be closed
	Notes      []string `json:"notes"`      // harmless oddities
}

// Check reads the whole journal and recomputes everything in it from the
// leaves: every hash of every tile, the root under every checkpoint, every
// signature, every content's checksum. An error is fault.Integrity if the
// journal is not what the log with these keys wrote. It needs no lock.
func Check(dir string, keys Keys) (*Report, error) {
	op := fmt.Sprintf("check journal %q", dir)
	r, err := openReader(dir, keys)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	c := &checker{r: r, keys: keys, rep: &Report{Size: r.size, Published: r.st.published, Sealed: r.base, Torn: r.st.torn,
		Open: r.OpenEntries(), Checkpoint: string(r.st.note), Notes: []string{}}}
	if err := c.run(); err != nil {
		return nil, durable.Fault(op, err)
	}
	return c.rep, nil
}

// checker rebuilds the tree from its leaves alone.
type checker struct {
	r      *Reader
	keys   Keys
	rep    *Report
	hashes []tlog.Hash // all stored hashes
}

// ReadHashes implements tlog.HashReader.
func (c *checker) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, x := range indexes {
		if x >= int64(len(c.hashes)) {
			return nil, fmt.Errorf("hash %d is beyond the tree", x)
		}
		out[i] = c.hashes[x]
	}
	return out, nil
}

func (c *checker) run() error {
	if c.r.size == 0 {
		return nil
	}
	n := uint64(0)
	for rec, err := range c.r.entries(0, c.r.size) {
		if err != nil {
			return err
		}
		hs, err := tlog.StoredHashes(int64(rec.Index), rec.Leaf, c)
		if err != nil {
			return err
		}
		c.hashes = append(c.hashes, hs...)
		n++
	}
	if n != c.r.size {
		return corrupt("entries_missing", fmt.Errorf("%d entries, want %d", n, c.r.size))
	}
	root, err := tlog.TreeHash(int64(n), c)
	if err != nil {
		return err
	}
	c.rep.Root = root
	cp, _, err := c.keys.Open(c.r.st.note)
	if err != nil {
		return corrupt("checkpoint_corrupt", err)
	}
	c.rep.Origin = cp.Origin
	if cp.Size != n || cp.Root != root {
		return corrupt("tree_mismatch", fmt.Errorf("the entries do not make the signed tree of size %d", cp.Size))
	}
	if err := c.tiles(); err != nil {
		return err
	}
	if err := c.groups(); err != nil {
		return err
	}
	return c.published()
}

// tiles compares every tile of the sealed part with what the leaves give.
func (c *checker) tiles() error {
	all := tlog.NewTiles(tileHeight, 0, int64(c.r.base))
	for _, t := range all {
		want, err := tlog.ReadTileData(t, c)
		if err != nil {
			return err
		}
		got, err := readTile(c.r.dir, t)
		if err != nil {
			return err
		}
		if string(got) != string(want) {
			return corrupt("tile_corrupt", fmt.Errorf("tile %q is not the hash of its entries", tilePath(t)))
		}
	}
	if c.r.base == 0 {
		return nil
	}
	root, err := tlog.TreeHash(int64(c.r.base), c)
	if err != nil {
		return err
	}
	if err := c.keys.hold(c.r.wal.header.note, c.r.base, root); err != nil {
		return corrupt("wal_corrupt", err)
	}
	return nil
}

// groups checks the checkpoint of every record, not only of the last.
func (c *checker) groups() error {
	w := &wal{file: c.r.wal.file, header: c.r.wal.header, end: c.r.wal.start, size: c.r.wal.end}
	return w.scan(func(g *group, _ []place) error {
		c.rep.Groups++
		size := g.first + uint64(len(g.entries))
		root, err := tlog.TreeHash(int64(size), c)
		if err != nil {
			return err
		}
		if err := c.keys.hold(g.note, size, root); err != nil {
			return corrupt("wal_corrupt", err)
		}
		return nil
	})
}

// published compares the partial tiles of the published checkpoint. They are
// not flushed on Close: missing or zero ones are only noted.
func (c *checker) published() error {
	if c.rep.Published == 0 {
		if c.r.seen != nil {
			c.rep.Notes = append(c.rep.Notes, "the published checkpoint is empty, as a power failure leaves it; it is written again when the journal grows")
		}
		return nil
	}
	root, err := tlog.TreeHash(int64(c.rep.Published), c)
	if err != nil {
		return err
	}
	if err := c.keys.hold(c.r.seen, c.rep.Published, root); err != nil {
		return corrupt("checkpoint_corrupt", err)
	}
	for _, t := range partialsAt(c.rep.Published) {
		want, err := tlog.ReadTileData(t, c)
		if err != nil {
			return err
		}
		if err := c.partial(tilePath(t), want); err != nil {
			return err
		}
		if t.L != 0 {
			continue
		}
		var leaves [][]byte
		first := uint64(t.N) * tileWidth
		for rec, err := range c.r.entries(first, first+uint64(t.W)) {
			if err != nil {
				return err
			}
			leaves = append(leaves, rec.Leaf)
		}
		if err := c.partial(bundlePath(t.N, t.W), encodeBundle(leaves)); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) partial(name string, want []byte) error {
	b, err := os.ReadFile(filepath.Join(c.r.dir, filepath.FromSlash(name)))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(want) > 0 && faded(b, want):
		c.rep.Notes = append(c.rep.Notes, fmt.Sprintf("published partial tile %q is missing or incomplete, as a power failure leaves it; it is written again when the journal grows", name))
		return nil
	case err != nil:
		return err
	case string(b) != string(want):
		return corrupt("tile_corrupt", fmt.Errorf("published partial tile %q is not the hash of its entries", name))
	}
	return nil
}

// faded reports whether b is what a power failure leaves of a file that was not
// flushed: it ends early, or some of its sectors are zero; nothing in it is wrong.
func faded(b, want []byte) bool {
	if len(b) > len(want) || string(b) == string(want) {
		return false
	}
	for i := 0; i < len(b); i += sectorBytes {
		end := min(i+sectorBytes, len(b))
		if string(b[i:end]) != string(want[i:end]) && !zero(b[i:end]) {
			return false
		}
	}
	return true
}

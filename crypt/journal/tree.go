package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"
)

// tree holds the hashes of a log. Below base they are in tiles on disk, except
// for the edge, the roots of the perfect subtrees that base consists of; from
// base on they are in memory. That is all that appending needs.
type tree struct {
	dir    string
	base   uint64 // multiple of tileWidth
	size   uint64
	edge   map[int64]tlog.Hash // stored hash index → hash
	recent []tlog.Hash         // from the stored hash index of leaf base on
	root   tlog.Hash           // of size
}

// edgeIndexes lists the stored hash indexes of the perfect subtrees that a tree
// of this size consists of, from the largest to the smallest.
func edgeIndexes(size uint64) []int64 {
	var out []int64
	var at uint64
	for level := 62; level >= 0; level-- {
		if size&(1<<level) == 0 {
			continue
		}
		out = append(out, tlog.StoredHashIndex(level, int64(at>>level)))
		at += 1 << level
	}
	return out
}

// newTree returns the tree of size base with this edge.
func newTree(dir string, base uint64, edge []tlog.Hash) (*tree, error) {
	idx := edgeIndexes(base)
	if base%tileWidth != 0 || base > maxSize || len(edge) != len(idx) {
		return nil, fmt.Errorf("tree of size %d with %d edge hashes", base, len(edge))
	}
	t := &tree{dir: dir, base: base, size: base, edge: make(map[int64]tlog.Hash, len(idx))}
	for i, x := range idx {
		t.edge[x] = edge[i]
	}
	var err error
	t.root, err = tlog.TreeHash(int64(base), t)
	return t, err
}

// ReadHashes implements tlog.HashReader over edge, memory and tiles.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	return t.read(indexes, nil)
}

// read returns hashes of t, or of t with more behind its own.
func (t *tree) read(indexes []int64, more []tlog.Hash) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	start := tlog.StoredHashIndex(0, int64(t.base))
	var tiles map[tlog.Tile][]byte
	for i, x := range indexes {
		if at := x - start; at >= 0 {
			switch own := int64(len(t.recent)); {
			case at < own:
				out[i] = t.recent[at]
			case at-own < int64(len(more)):
				out[i] = more[at-own]
			default:
				return nil, fmt.Errorf("hash %d is beyond the tree", x)
			}
			continue
		}
		if h, ok := t.edge[x]; ok {
			out[i] = h
			continue
		}
		if tiles == nil {
			tiles = make(map[tlog.Tile][]byte)
		}
		h, err := t.fromTile(x, tiles)
		if err != nil {
			return nil, err
		}
		out[i] = h
	}
	return out, nil
}

// fromTile reads a hash below base from disk. The hash isn't authenticated; prove checks
// its result against the root.
func (t *tree) fromTile(x int64, cache map[tlog.Tile][]byte) (tlog.Hash, error) {
	tile := tlog.TileForIndex(tileHeight, x)
	tile.W = tileWidthAt(tile.L, tile.N, t.base)
	b, ok := cache[tile]
	if !ok {
		var err error
		if b, err = readTile(t.dir, tile); err != nil {
			return tlog.Hash{}, err
		}
		cache[tile] = b
	}
	return tlog.HashFromTile(tile, b, x)
}

// readTile reads a tile that the log made durable before, so a missing one is damage. A
// partial tile may have been replaced by a wider one since the snapshot that asks was
// taken; that begins with the same hashes.
func readTile(dir string, t tlog.Tile) ([]byte, error) {
	path := filepath.Join(dir, filepath.FromSlash(tilePath(t)))
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && t.W < tileWidth {
		b, err = readWider(dir, t)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt("tile_missing", fmt.Errorf("tile %q is missing", path))
	}
	if err != nil {
		return nil, err
	}
	if len(b) != t.W*tlog.HashSize {
		return nil, corrupt("tile_corrupt", fmt.Errorf("tile %q has %d bytes, want %d", path, len(b), t.W*tlog.HashSize))
	}
	return b, nil
}

func readWider(dir string, t tlog.Tile) ([]byte, error) {
	want := t.W * tlog.HashSize
	for try := 0; ; try++ {
		for w := t.W + 1; w <= tileWidth; w++ {
			wide := tlog.Tile{H: t.H, L: t.L, N: t.N, W: w}
			b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(tilePath(wide))))
			if err == nil && len(b) == w*tlog.HashSize {
				return b[:want], nil
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		if try == 2 { // a writer may have passed us while we looked
			return nil, fs.ErrNotExist
		}
	}
}

// extension is a tree that a group would make: hashes to add, size and root.
type extension struct {
	hashes []tlog.Hash
	size   uint64
	root   tlog.Hash
}

// extend computes what appending these leaf hashes gives, without changing t.
func (t *tree) extend(leaves []tlog.Hash) (*extension, error) {
	x := &extension{size: t.size}
	r := tlog.HashReaderFunc(func(idx []int64) ([]tlog.Hash, error) { return t.read(idx, x.hashes) })
	for _, h := range leaves {
		hs, err := tlog.StoredHashesForRecordHash(int64(x.size), h, r)
		if err != nil {
			return nil, err
		}
		x.hashes = append(x.hashes, hs...)
		x.size++
	}
	var err error
	x.root, err = tlog.TreeHash(int64(x.size), r)
	return x, err
}

// apply makes an extension of t its content.
func (t *tree) apply(x *extension) {
	t.recent = append(t.recent, x.hashes...)
	t.size, t.root = x.size, x.root
}

// add appends one leaf hash without computing the root: recovery needs the root
// only where a checkpoint stands.
func (t *tree) add(h tlog.Hash) error {
	hs, err := tlog.StoredHashesForRecordHash(int64(t.size), h, t)
	if err != nil {
		return err
	}
	t.recent = append(t.recent, hs...)
	t.size++
	return nil
}

// rootAt computes the root of the first n leaves.
func (t *tree) rootAt(n uint64) (tlog.Hash, error) { return tlog.TreeHash(int64(n), t) }

// rebase returns t with everything below base only in tiles, which must have
// been written.
func (t *tree) rebase(base uint64) (*tree, error) {
	idx := edgeIndexes(base)
	hs, err := t.ReadHashes(idx)
	if err != nil {
		return nil, err
	}
	n, err := newTree(t.dir, base, hs)
	if err != nil {
		return nil, err
	}
	cut := tlog.StoredHashIndex(0, int64(base)) - tlog.StoredHashIndex(0, int64(t.base))
	n.recent = append([]tlog.Hash(nil), t.recent[cut:]...)
	n.size, n.root = t.size, t.root
	return n, nil
}

// prove returns a proof under the tree's own root, after checking it: a changed tile shows
// here, and not only when a receipt is verified.
func (t *tree) prove(index uint64) (Proof, error) {
	return proveWith(t, index, t.size, t.root)
}

// proveIn is prove for the tree that t and an extension of it make, with the
// checkpoint of that.
func (t *tree) proveIn(x *extension, index uint64, note []byte) (Proof, error) {
	r := tlog.HashReaderFunc(func(idx []int64) ([]tlog.Hash, error) { return t.read(idx, x.hashes) })
	p, err := proveWith(r, index, x.size, x.root)
	p.Checkpoint = note
	return p, err
}

func proveWith(r tlog.HashReader, index, size uint64, root tlog.Hash) (Proof, error) {
	if index >= size {
		return Proof{}, notFound(index, size)
	}
	rp, err := tlog.ProveRecord(int64(size), int64(index), r)
	if err != nil {
		return Proof{}, err
	}
	leaf, err := r.ReadHashes([]int64{tlog.StoredHashIndex(0, int64(index))})
	if err != nil {
		return Proof{}, err
	}
	if err := tlog.CheckRecord(rp, int64(size), root, int64(index), leaf[0]); err != nil {
		return Proof{}, corrupt("tile_corrupt", fmt.Errorf("tiles do not lead from entry %d to the root", index))
	}
	p := Proof{Index: index, Size: size, Root: root, Hashes: make([][32]byte, len(rp))}
	for i, h := range rp {
		p.Hashes[i] = h
	}
	return p, nil
}

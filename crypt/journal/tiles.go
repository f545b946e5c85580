package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/internal/fault"
)

// A tile has 256 hashes (C2SP tlog-tiles).
const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
)

// checkpointFile and contentDir are names below the journal's directory.
const (
	checkpointFile = "checkpoint"
	contentDir     = "content"
)

// tilePath returns the tlog-tiles path of a tile, "tile/0/x001/234.p/5". tlog's
// own Path has the height in it, which C2SP fixed.
func tilePath(t tlog.Tile) string {
	return fmt.Sprintf("tile/%d/%s", t.L, numberPath(t.N, t.W))
}

// bundlePath returns the path of an entry bundle of w entries.
func bundlePath(n int64, w int) string { return "tile/entries/" + numberPath(n, w) }

// contentPath returns the path of the content file of a complete bundle.
func contentPath(n int64) string { return contentDir + "/" + numberPath(n, tileWidth) }

// numberPath writes n in groups of three digits, all but the last with an x
// before them, and for a partial tile its width.
func numberPath(n int64, w int) string {
	s := fmt.Sprintf("%03d", n%1000)
	for n /= 1000; n > 0; n /= 1000 {
		s = fmt.Sprintf("x%03d/%s", n%1000, s)
	}
	if w < tileWidth {
		s += fmt.Sprintf(".p/%d", w)
	}
	return s
}

// partialDir returns the folder that holds the partial forms of a tile.
func partialDir(path string) string {
	dir, _, _ := strings.Cut(path, ".p/")
	return dir + ".p"
}

// tileWidthAt returns how many hashes tile n at level l has in a tree of this
// size, 0 if none.
func tileWidthAt(l int, n int64, size uint64) int {
	have := int64(size>>(uint(l)*tileHeight)) - n*tileWidth
	return int(max(0, min(have, tileWidth)))
}

// partialsAt lists the tiles, of every level, that are not full in a tree of
// this size.
func partialsAt(size uint64) []tlog.Tile {
	var out []tlog.Tile
	for l := 0; size>>(uint(l)*tileHeight) > 0; l++ {
		n := int64(size >> (uint(l+1) * tileHeight))
		if w := tileWidthAt(l, n, size); w > 0 {
			out = append(out, tlog.Tile{H: tileHeight, L: l, N: n, W: w})
		}
	}
	return out
}

// encodeBundle writes leaves as a tlog-tiles entry bundle: for each two bytes of
// length, big endian, and the leaf.
func encodeBundle(leaves [][]byte) []byte {
	n := 0
	for _, l := range leaves {
		n += 2 + len(l)
	}
	b := make([]byte, 0, n)
	for _, l := range leaves {
		b = appendLeaf(b, l)
	}
	return b
}

// appendLeaves appends the leaves of a group to an entry bundle.
func appendLeaves(b []byte, g *group) []byte {
	for i := range g.entries {
		b = appendLeaf(b, g.entries[i].Leaf)
	}
	return b
}

func appendLeaf(b, leaf []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(leaf))), leaf...)
}

// decodeBundle is the inverse of encodeBundle for a bundle of n leaves.
func decodeBundle(b []byte, n int) ([][]byte, error) {
	if n < 0 || n > tileWidth {
		return nil, fmt.Errorf("entry bundle of %d entries", n)
	}
	out := make([][]byte, 0, n)
	for range n {
		if len(b) < 2 {
			return nil, errors.New("entry bundle ends early")
		}
		l := int(binary.BigEndian.Uint16(b))
		if l == 0 || len(b) < 2+l {
			return nil, errors.New("entry bundle: entry is empty or ends early")
		}
		out = append(out, b[2:2+l:2+l])
		b = b[2+l:]
	}
	if len(b) != 0 {
		return nil, errors.New("entry bundle has bytes left over")
	}
	return out, nil
}

func notFound(index, size uint64) error {
	return fault.New(fault.NotFound, "not_found", fmt.Sprintf("find entry %d", index),
		fmt.Errorf("the journal has %d entries", size))
}

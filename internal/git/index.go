package git

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// MaxIndex bounds an index, in bytes.
const MaxIndex = 32 << 20

// Index is what an index says: each path's mode and object. How the files looked when git last
// looked, and its extensions, are kept apart or forgotten: they can make git overlook a change.
type Index struct {
	Entries []IndexEntry // sorted by path, one each
}

// IndexEntry is one path of an index.
type IndexEntry struct {
	Path string
	Mode uint32
	ID   ID

	stat  [40]byte // ctime to size, as in the file; zeros say that git should look
	flags uint16   // assume-valid
	more  uint16   // skip-worktree, intent-to-add
}

// maxNames bounds the bytes of an index's paths, by its size.
const maxNames = 4

const (
	flagValid  = 0x8000
	flagMore   = 0x4000
	flagStage  = 0x3000
	moreSkip   = 0x4000
	moreIntent = 0x2000
)

// ParseIndex reads an index of version 2, 3 or 4: gitformat-index(5).
func ParseIndex(b []byte) (*Index, error) {
	if len(b) < 32 || string(b[:4]) != "DIRC" {
		return nil, bad("an index's head")
	}
	version, count := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if version < 2 || version > 4 {
		return nil, wrap(ErrUnsupported, "an index of version %d", version)
	}
	x := &Index{}
	rest := b[12 : len(b)-20]
	last, names := "", 0
	for range count {
		if len(rest) < 62 {
			return nil, bad("an index that ends in the middle")
		}
		e := IndexEntry{Mode: binary.BigEndian.Uint32(rest[24:]), ID: ID(rest[40:60])}
		copy(e.stat[:24], rest[:24])
		copy(e.stat[28:], rest[28:40])
		flags := binary.BigEndian.Uint16(rest[60:])
		used := 62
		e.flags = flags & flagValid
		if flags&flagMore != 0 {
			if version < 3 || len(rest) < 64 {
				return nil, bad("an index's entry")
			}
			e.more = binary.BigEndian.Uint16(rest[62:]) & (moreSkip | moreIntent)
			used = 64
		}
		name := ""
		if version == 4 {
			strip, n := offset(rest[used:])
			if n == 0 || strip > int64(len(last)) {
				return nil, bad("an index's entry")
			}
			used += n
			name = last[:len(last)-int(strip)]
		}
		end := bytes.IndexByte(rest[used:], 0)
		if end < 0 {
			return nil, bad("an index that ends in the middle")
		}
		// Version 4 has of each path what differs from the one before, so a byte may stand for thousands.
		if names += len(name) + end; names > maxNames*len(b) {
			return nil, wrap(ErrTooLarge, "an index whose paths take more than %d times its size", maxNames)
		}
		name += string(rest[used : used+end])
		used += end + 1
		if version < 4 { // padded with 1 to 8 zeros
			used = (used + 7) &^ 7
		}
		if used > len(rest) {
			return nil, bad("an index that ends in the middle")
		}
		switch {
		case flags&flagStage != 0:
			return nil, wrap(ErrUnsupported, "an index in the middle of a merge")
		case e.Mode == ModeFolder:
			return nil, wrap(ErrUnsupported, "a sparse index")
		case !okMode(e.Mode):
			return nil, bad("an index with the mode %o", e.Mode)
		case name == "":
			return nil, wrap(ErrUnsupported, "an index in several files")
		case name <= last:
			return nil, bad("an index whose paths are out of order")
		}
		if err := CheckPath(name); err != nil {
			return nil, err
		}
		e.Path, last, rest = name, name, rest[used:]
		x.Entries = append(x.Entries, e)
	}
	for len(rest) >= 8 {
		size := binary.BigEndian.Uint32(rest[4:])
		if int64(size) > int64(len(rest)-8) {
			return nil, bad("an index's extension")
		}
		if string(rest[:4]) == "link" || string(rest[:4]) == "sdir" {
			return nil, wrap(ErrUnsupported, "an index in several files")
		}
		rest = rest[8+size:]
	}
	return x, nil
}

// Intended reports whether it has a path that is only intended to be added.
func (x *Index) Intended() bool {
	return slices.ContainsFunc(x.Entries, func(e IndexEntry) bool { return e.more&moreIntent != 0 })
}

// Digest is the SHA-256 of what git ls-files --stage -z prints.
func (x *Index) Digest() (d [32]byte) {
	h := sha256.New()
	for _, e := range x.Entries {
		fmt.Fprintf(h, "%06o %x 0\t%s\x00", e.Mode, e.ID[:], e.Path)
	}
	h.Sum(d[:0])
	return d
}

// Plain returns the index without what git saw of the files.
func (x *Index) Plain() *Index {
	p := &Index{Entries: make([]IndexEntry, len(x.Entries))}
	for i, e := range x.Entries {
		p.Entries[i] = IndexEntry{Path: e.Path, Mode: e.Mode, ID: e.ID}
	}
	return p
}

// Recall takes what git saw of the files from another index, where that has the same entry.
func (x *Index) Recall(of *Index) {
	known := make(map[string]*IndexEntry, len(of.Entries))
	for i := range of.Entries {
		known[of.Entries[i].Path] = &of.Entries[i]
	}
	for i := range x.Entries {
		e := &x.Entries[i]
		if k := known[e.Path]; k != nil && k.Mode == e.Mode && k.ID == e.ID {
			*e = *k
		}
	}
}

// Bytes returns the index as a file of version 2, or 3 where entries need it.
func (x *Index) Bytes() []byte {
	version := uint32(2)
	for _, e := range x.Entries {
		if e.more != 0 {
			version = 3
		}
	}
	b := []byte("DIRC")
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(x.Entries)))
	for _, e := range x.Entries {
		at := len(b)
		b = append(b, e.stat[:24]...)
		b = binary.BigEndian.AppendUint32(b, e.Mode)
		b = append(b, e.stat[28:]...)
		b = append(b, e.ID[:]...)
		flags := e.flags | uint16(min(len(e.Path), 0xfff))
		if e.more != 0 {
			flags |= flagMore
		}
		b = binary.BigEndian.AppendUint16(b, flags)
		if e.more != 0 {
			b = binary.BigEndian.AppendUint16(b, e.more)
		}
		b = append(b, e.Path...)
		pad := 8 - (len(b)-at)%8
		b = append(b, strings.Repeat("\x00", pad)...)
	}
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"golang.org/x/mod/sumdb/tlog"
)

// The write-ahead file is a header and records, each a group of entries with
// the checkpoint of the tree that they make. All numbers are big endian.
//
//	header:  "PALYRAW1" salt[8] base[8] n[2] edge[n][32] n[4] open[n][8] n[2] note[n] crc[4]
//	record:  "PWG1" salt[8] first[8] count[4] length[4] crc[4]   length bytes of body
//	body:    count × entry   n[2] note[n] crc[4]
//	entry:   flags[1] leaf length[2] content length[4] content crc[4] [closes[8]] leaf content
//
// Checksums are CRC-32C. That of a record's head also covers its offset in the
// file, so that bytes copied elsewhere are no record. Checksums find damage;
// what finds a forger is the checkpoint, which is signed.
const (
	walFile     = "wal"
	walMagic    = "PALYRAW1"
	groupMagic  = "PWG1"
	groupHead   = 32
	entryHead   = 11
	maxNote     = 1 << 12
	maxBody     = maxBytes + maxGroup*(entryHead+8) + maxNote + 16
	flagOpens   = 1
	flagCloses  = 2
	sectorBytes = 512
)

// crcOf is CRC-32C (Castagnoli), which processors compute.
func crcOf(parts ...[]byte) uint32 {
	var c uint32
	t := crc32.MakeTable(crc32.Castagnoli) // one shared table inside
	for _, p := range parts {
		c = crc32.Update(c, t, p)
	}
	return c
}

// header is the beginning of a write-ahead file: the tree that it continues.
type header struct {
	salt [8]byte
	base uint64
	edge []tlog.Hash
	open []uint64
	note []byte
}

func newHeader(base uint64, edge []tlog.Hash, open []uint64, note []byte) (*header, error) {
	h := &header{base: base, edge: edge, open: open, note: note}
	if _, err := rand.Read(h.salt[:]); err != nil {
		return nil, fmt.Errorf("read random salt: %w", err)
	}
	return h, nil
}

func (h *header) encode() []byte {
	b := append([]byte(walMagic), h.salt[:]...)
	b = binary.BigEndian.AppendUint64(b, h.base)
	b = binary.BigEndian.AppendUint16(b, uint16(len(h.edge)))
	for _, e := range h.edge {
		b = append(b, e[:]...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.open)))
	for _, o := range h.open {
		b = binary.BigEndian.AppendUint64(b, o)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(h.note)))
	b = append(b, h.note...)
	return binary.BigEndian.AppendUint32(b, crcOf(b))
}

// cursor reads numbers off a byte slice; after the first read beyond the end
// every read gives zero and short is set.
type cursor struct {
	b     []byte
	at    int
	short bool
}

func (c *cursor) take(n int) []byte {
	if c.short || n < 0 || len(c.b)-c.at < n {
		c.short = true
		return nil
	}
	c.at += n
	return c.b[c.at-n : c.at : c.at]
}

func (c *cursor) num(n int) uint64 {
	var v uint64
	for _, x := range c.take(n) {
		v = v<<8 | uint64(x)
	}
	return v
}

// decodeHeader reads the header at the start of b and returns its length. The
// file is put in its place with a rename after a flush: a header is never torn.
func decodeHeader(b []byte) (*header, int, error) {
	c := &cursor{b: b}
	if string(c.take(8)) != walMagic {
		return nil, 0, errors.New("write-ahead file: not one of this version")
	}
	h := &header{}
	copy(h.salt[:], c.take(8))
	h.base = c.num(8)
	if n := int(c.num(2)); n <= 64 {
		for range n {
			var e tlog.Hash
			copy(e[:], c.take(len(e)))
			h.edge = append(h.edge, e)
		}
	} else {
		c.short = true
	}
	n := int(c.num(4))
	if n > (len(b)-c.at)/8 {
		c.short = true
	}
	for i := 0; i < n && !c.short; i++ {
		h.open = append(h.open, c.num(8))
	}
	if n := int(c.num(2)); n > 0 {
		h.note = bytes.Clone(c.take(n))
	}
	sum := crcOf(b[:c.at])
	if got := uint32(c.num(4)); c.short || got != sum {
		return nil, 0, errors.New("write-ahead file: header is damaged")
	}
	if h.base%tileWidth != 0 || h.base > maxSize || (h.base == 0) != (len(h.note) == 0) {
		return nil, 0, errors.New("write-ahead file: header contradicts itself")
	}
	return h, c.at, nil
}

// group is a record of the write-ahead file.
type group struct {
	first   uint64
	entries []Entry
	note    []byte
}

// place is where an entry is in the write-ahead file.
type place struct {
	leaf, content int64 // offsets
	leafLen       int
	contentLen    int
	sum           uint32 // of the content
}

// encodeGroup returns the record for entries first, first+1, ... that begins at
// off, and where each entry is.
func (h *header) encodeGroup(off int64, g *group) ([]byte, []place) {
	n := groupHead + 2 + len(g.note) + 4
	for i := range g.entries {
		n += entryHead + 8 + len(g.entries[i].Leaf) + len(g.entries[i].Content)
	}
	b := make([]byte, groupHead, n)
	places := make([]place, len(g.entries))
	for i := range g.entries {
		e := &g.entries[i]
		var flags byte
		if e.Opens {
			flags |= flagOpens
		}
		if e.Closes != nil {
			flags |= flagCloses
		}
		sum := crcOf(e.Content)
		b = append(b, flags)
		b = binary.BigEndian.AppendUint16(b, uint16(len(e.Leaf)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.Content)))
		b = binary.BigEndian.AppendUint32(b, sum)
		if e.Closes != nil {
			b = binary.BigEndian.AppendUint64(b, *e.Closes)
		}
		places[i] = place{leaf: off + int64(len(b)), leafLen: len(e.Leaf), contentLen: len(e.Content), sum: sum}
		b = append(b, e.Leaf...)
		places[i].content = off + int64(len(b))
		b = append(b, e.Content...)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(g.note)))
	b = append(b, g.note...)
	b = binary.BigEndian.AppendUint32(b, crcOf(b[groupHead:]))
	h.encodeHead(b[:groupHead], off, g.first, len(g.entries), len(b)-groupHead)
	return b, places
}

func (h *header) encodeHead(b []byte, off int64, first uint64, count, length int) {
	copy(b, groupMagic)
	copy(b[4:], h.salt[:])
	binary.BigEndian.PutUint64(b[12:], first)
	binary.BigEndian.PutUint32(b[20:], uint32(count))
	binary.BigEndian.PutUint32(b[24:], uint32(length))
	binary.BigEndian.PutUint32(b[28:], h.headSum(b, off))
}

func (h *header) headSum(b []byte, off int64) uint32 {
	return crcOf(b[:28], binary.BigEndian.AppendUint64(nil, uint64(off)))
}

// decodeHead reads a record's head. ok says that we wrote it, at this offset of
// this file.
func (h *header) decodeHead(b []byte, off int64) (first uint64, count, length int, ok bool) {
	if len(b) < groupHead || string(b[:4]) != groupMagic || !bytes.Equal(b[4:12], h.salt[:]) ||
		binary.BigEndian.Uint32(b[28:]) != h.headSum(b, off) {
		return 0, 0, 0, false
	}
	first, count, length = binary.BigEndian.Uint64(b[12:]), int(binary.BigEndian.Uint32(b[20:])), int(binary.BigEndian.Uint32(b[24:]))
	return first, count, length, count > 0 && count <= maxGroup && length > 0 && length <= maxBody
}

var errBody = errors.New("write-ahead file: record does not match its checksum")

// decodeBody reads a record's body, which stands at offset off of the file. The
// result points into b.
func decodeBody(b []byte, off int64, first uint64, count int) (*group, []place, error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b[len(b)-4:]) != crcOf(b[:len(b)-4]) {
		return nil, nil, errBody
	}
	c := &cursor{b: b[:len(b)-4]}
	g := &group{first: first, entries: make([]Entry, count)}
	places := make([]place, count)
	for i := range count {
		e, p := &g.entries[i], &places[i]
		flags := c.num(1)
		p.leafLen, p.contentLen = int(c.num(2)), int(c.num(4))
		p.sum = uint32(c.num(4))
		e.Opens = flags&flagOpens != 0
		if flags&flagCloses != 0 {
			x := c.num(8)
			e.Closes = &x
		}
		p.leaf = off + int64(c.at)
		e.Leaf = c.take(p.leafLen)
		p.content = off + int64(c.at)
		e.Content = c.take(p.contentLen)
		if c.short || flags > flagOpens|flagCloses || p.leafLen == 0 || p.contentLen > MaxContent {
			return nil, nil, errors.New("write-ahead file: record contradicts itself")
		}
	}
	g.note = c.take(int(c.num(2)))
	if c.short || len(g.note) == 0 || c.at != len(c.b) {
		return nil, nil, errors.New("write-ahead file: record contradicts itself")
	}
	return g, places, nil
}

// torn reports whether rest, which begins at off and is no valid record, is
// what a crash leaves of the last record: cut short, or with whole sectors that
// were never written. A record that was acknowledged is complete, and a record
// after another says that the other was acknowledged: those are never torn.
func (h *header) torn(rest []byte, off int64, next uint64) bool {
	if len(rest) > groupHead+maxBody {
		return false
	}
	for at := 1; ; at++ {
		i := bytes.Index(rest[at:], []byte(groupMagic))
		if i < 0 {
			break
		}
		at += i
		if _, _, _, ok := h.decodeHead(rest[at:], off+int64(at)); ok {
			return false
		}
	}
	if zero(rest) {
		return true
	}
	first, _, length, ok := h.decodeHead(rest, off)
	switch {
	case ok && first != next:
		return false
	case ok && len(rest) < groupHead+length:
		return true
	case ok:
		return len(rest) == groupHead+length && zeroSector(rest, off)
	case len(rest) < groupHead:
		want := binary.BigEndian.AppendUint64(append([]byte(groupMagic), h.salt[:]...), next)
		n := min(len(rest), len(want))
		return bytes.Equal(rest[:n], want[:n]) || zeroSector(rest, off)
	}
	// The head is damaged: then at least one of the sectors that it is in was
	// not written at all.
	n := (off+groupHead+sectorBytes-1)/sectorBytes*sectorBytes - off
	return zeroSector(rest[:min(n, int64(len(rest)))], off)
}

func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// zeroSector reports whether some sector holds nothing but zeros where b, which
// stands at off in the file, covers it.
func zeroSector(b []byte, off int64) bool {
	for len(b) > 0 {
		n := min(len(b), int(sectorBytes-off%sectorBytes))
		if zero(b[:n]) {
			return true
		}
		b, off = b[n:], off+int64(n)
	}
	return false
}

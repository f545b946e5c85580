package git

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Bounds of packs.
const (
	maxPacks = 256
	maxChain = 512 // deltas on deltas; git makes at most 50, unless told
)

const packFolder = "objects/pack"

// pack is a pack with its index: gitformat-pack(5).
type pack struct {
	folder Folder
	name   string // without .idx
	idx    *os.File
	fan    [256]uint32
	f      *os.File // opened when it's first needed
	size   int64
}

// load opens the indexes of the packs.
func (o *Objects) load() error {
	if o.loaded {
		return nil
	}
	names, err := o.folder.Names(packFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, n := range names {
		base, ok := strings.CutSuffix(n.Name, ".idx")
		if !ok || n.Folder || strings.HasPrefix(base, ".") {
			continue
		}
		if len(o.packs) == maxPacks {
			return wrap(ErrTooLarge, "more than %d packs; git gc makes one of them", maxPacks)
		}
		p := &pack{folder: o.folder, name: packFolder + "/" + base}
		if p.idx, err = o.folder.Open(p.name + ".idx"); err != nil {
			return err
		}
		o.packs = append(o.packs, p)
		if err := p.head(); err != nil {
			return fmt.Errorf("%s.idx: %w", p.name, err)
		}
	}
	o.loaded = true
	return nil
}

func (p *pack) close() {
	p.idx.Close()
	if p.f != nil {
		p.f.Close()
	}
}

const idxHead = 8 + 256*4

func (p *pack) head() error {
	var b [idxHead]byte
	if _, err := p.idx.ReadAt(b[:], 0); err != nil {
		return bad("%v", err)
	}
	if string(b[:8]) != "\xfftOc\x00\x00\x00\x02" {
		return wrap(ErrUnsupported, "not version 2")
	}
	for i := range p.fan {
		p.fan[i] = binary.BigEndian.Uint32(b[8+4*i:])
		if i > 0 && p.fan[i] < p.fan[i-1] {
			return bad("its numbers go down")
		}
	}
	fi, err := p.idx.Stat()
	if err == nil && fi.Size() < idxHead+int64(p.fan[255])*28+40 {
		err = bad("it is too short")
	}
	return err
}

// find returns the place of an object in the pack.
func (p *pack) find(id ID) (at int64, ok bool, err error) {
	lo, hi := int64(0), int64(p.fan[id[0]])
	if id[0] > 0 {
		lo = int64(p.fan[id[0]-1])
	}
	var got ID
	for lo < hi {
		mid := (lo + hi) / 2
		if _, err := p.idx.ReadAt(got[:], idxHead+20*mid); err != nil {
			return 0, false, err
		}
		switch c := bytes.Compare(got[:], id[:]); {
		case c == 0:
			at, err := p.place(mid)
			return at, err == nil, err
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false, nil
}

func (p *pack) place(i int64) (int64, error) {
	n := int64(p.fan[255])
	var b [8]byte
	if _, err := p.idx.ReadAt(b[:4], idxHead+24*n+4*i); err != nil {
		return 0, err
	}
	at := binary.BigEndian.Uint32(b[:])
	if at&(1<<31) == 0 {
		return int64(at), nil
	}
	if _, err := p.idx.ReadAt(b[:], idxHead+28*n+8*int64(at&^(1<<31))); err != nil {
		return 0, bad("%v", err)
	}
	return int64(binary.BigEndian.Uint64(b[:]) & (1<<63 - 1)), nil
}

func (p *pack) open() error {
	if p.f != nil {
		return nil
	}
	f, err := p.folder.Open(p.name + ".pack")
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMissing
	}
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	p.f, p.size = f, fi.Size()
	return nil
}

// read reads the object at a place, with what its deltas are based on.
func (p *pack) read(o *Objects, at int64, depth int) (*Object, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	var deltas [][]byte
	var x *Object
	for x == nil {
		if depth++; depth > maxChain {
			return nil, wrap(ErrTooLarge, "more than %d deltas", maxChain)
		}
		var b [64]byte
		n, err := p.f.ReadAt(b[:], at)
		if err != nil && !errors.Is(err, io.EOF) || n < 2 {
			return nil, bad("it lies behind the pack's end")
		}
		kind, _, used := entryHead(b[:n])
		if used == 0 {
			return nil, bad("a size")
		}
		base := int64(0)
		var id ID
		switch kind {
		case 1, 2, 3, 4:
		case 6:
			off, m := offset(b[used:n])
			if base = at - off; m == 0 || off <= 0 || base < 12 {
				return nil, bad("a delta's base")
			}
			used += m
		case 7:
			if n < used+20 {
				return nil, bad("a delta's base")
			}
			id = ID(b[used : used+20])
			used += 20
		default:
			return nil, bad("type %d", kind)
		}
		data, err := o.inflate(io.NewSectionReader(p.f, at+int64(used), p.size-at-int64(used)), o.left.each())
		switch {
		case err != nil:
			return nil, err
		case kind <= 4:
			x = &Object{Type(kind), data}
			continue
		}
		deltas = append(deltas, data)
		if at = base; kind == 7 {
			if x, err = o.read(id, depth); err != nil {
				return nil, err
			}
		}
	}
	for _, d := range slices.Backward(deltas) {
		data, err := o.patch(x.Data, d)
		if err != nil {
			return nil, err
		}
		x = &Object{x.Type, data}
	}
	return x, nil
}

// entryHead reads type and size of an entry; used is 0 if it's malformed.
func entryHead(b []byte) (kind byte, size int64, used int) {
	kind, size = b[0]>>4&7, int64(b[0]&15)
	for i, shift := 0, 4; ; i, shift = i+1, shift+7 {
		if b[i]&0x80 == 0 {
			return kind, size, i + 1
		}
		if i+1 == len(b) || shift > 50 {
			return 0, 0, 0
		}
		size |= int64(b[i+1]&0x7f) << shift
	}
}

func offset(b []byte) (off int64, used int) {
	for i, c := range b {
		if i > 7 {
			break
		}
		if i > 0 {
			off++
		}
		off = off<<7 | int64(c&0x7f)
		if c&0x80 == 0 {
			return off, i + 1
		}
	}
	return 0, 0
}

// patch applies a delta.
func (o *Objects) patch(base, d []byte) ([]byte, error) {
	from, n := binary.Uvarint(d)
	if n <= 0 || from != uint64(len(base)) {
		return nil, bad("a delta for another base")
	}
	d = d[n:]
	to, n := binary.Uvarint(d)
	if n <= 0 || to > uint64(o.left.each()) {
		return nil, wrap(ErrTooLarge, "an object of more than %d bytes", o.left.each())
	}
	d = d[n:]
	if err := o.left.spend(int64(to)); err != nil {
		return nil, err
	}
	out := make([]byte, 0, to)
	for len(d) > 0 {
		op := d[0]
		d = d[1:]
		if op&0x80 == 0 {
			if op == 0 || int(op) > len(d) || len(out)+int(op) > int(to) {
				return nil, bad("a delta")
			}
			out, d = append(out, d[:op]...), d[op:]
			continue
		}
		var v [7]uint32
		for i := range v {
			if op&(1<<i) != 0 {
				if len(d) == 0 {
					return nil, bad("a delta")
				}
				v[i], d = uint32(d[0]), d[1:]
			}
		}
		at := int64(v[0] | v[1]<<8 | v[2]<<16 | v[3]<<24)
		size := int64(v[4] | v[5]<<8 | v[6]<<16)
		if size == 0 {
			size = 0x10000
		}
		if at+size > int64(len(base)) || int64(len(out))+size > int64(to) {
			return nil, bad("a delta")
		}
		out = append(out, base[at:at+size]...)
	}
	if len(out) != int(to) {
		return nil, bad("a delta")
	}
	return out, nil
}

// packer makes a pack of whole objects.
type packer struct {
	buf   bytes.Buffer
	count uint32
	z     *zlib.Writer
}

func (p *packer) add(o *Object) error {
	if p.count == 0 {
		p.buf.WriteString("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	}
	p.count++
	n := len(o.Data)
	c := byte(o.Type)<<4 | byte(n&15)
	for n >>= 4; n > 0; n >>= 7 {
		p.buf.WriteByte(c | 0x80)
		c = byte(n & 0x7f)
	}
	p.buf.WriteByte(c)
	if p.z == nil {
		p.z = zlib.NewWriter(&p.buf)
	} else {
		p.z.Reset(&p.buf)
	}
	if _, err := p.z.Write(o.Data); err != nil {
		return err
	}
	return p.z.Close()
}

// bytes ends the pack; nil if it has nothing.
func (p *packer) bytes() []byte {
	if p.count == 0 {
		return nil
	}
	b := p.buf.Bytes()
	binary.BigEndian.PutUint32(b[8:], p.count)
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

// Packed is an object in a pack.
type Packed struct {
	ID    ID
	Type  Type
	Needs []ID // other objects
	at    uint32
	crc   uint32
}

// ParsePack reads a whole pack without deltas, and names each of its objects.
func ParsePack(b []byte, left *Budget) ([]Packed, error) {
	if len(b) < 32 || string(b[:8]) != "PACK\x00\x00\x00\x02" {
		return nil, bad("a pack's head")
	}
	body := b[:len(b)-20]
	if sum := sha1.Sum(body); !bytes.Equal(sum[:], b[len(b)-20:]) {
		return nil, bad("a pack's checksum")
	}
	o := &Objects{left: left}
	var out []Packed
	seen := make(map[ID]bool)
	at := 12
	for range binary.BigEndian.Uint32(b[8:]) {
		if at >= len(body) {
			return nil, bad("a pack that ends in the middle")
		}
		kind, size, used := entryHead(body[at:min(len(body), at+16)])
		if used == 0 || kind < 1 || kind > 4 {
			return nil, bad("a pack's entry of type %d", kind)
		}
		r := bytes.NewReader(body[at+used:]) // an io.ByteReader: nothing is read ahead
		data, err := o.inflateAll(r, left.each())
		if err != nil {
			return nil, err
		}
		if int64(len(data)) != size {
			return nil, bad("a pack's entry of another size")
		}
		end := len(body) - r.Len()
		x := Object{Type(kind), data}
		p := Packed{ID: x.ID(), Type: x.Type, at: uint32(at), crc: crc32.ChecksumIEEE(body[at:end])}
		if p.Needs, err = x.Refers(); err != nil {
			return nil, err
		}
		if seen[p.ID] {
			return nil, bad("a pack with an object twice")
		}
		seen[p.ID], out, at = true, append(out, p), end
	}
	if at != len(body) {
		return nil, bad("a pack with more behind its objects")
	}
	return out, nil
}

// PackName returns the name of a pack's file, without its end.
func PackName(b []byte) string { return fmt.Sprintf("pack-%x", b[len(b)-20:]) }

// PackIndex returns the index of a pack.
func PackIndex(pack []byte, objects []Packed) []byte {
	all := slices.Clone(objects)
	slices.SortFunc(all, func(a, b Packed) int { return cmp.Compare(string(a.ID[:]), string(b.ID[:])) })
	var b bytes.Buffer
	b.WriteString("\xfftOc\x00\x00\x00\x02")
	word := func(n uint32) { b.Write(binary.BigEndian.AppendUint32(nil, n)) }
	n := 0
	for i := range 256 {
		for n < len(all) && int(all[n].ID[0]) <= i {
			n++
		}
		word(uint32(n))
	}
	for _, p := range all {
		b.Write(p.ID[:])
	}
	for _, p := range all {
		word(p.crc)
	}
	for _, p := range all {
		word(p.at)
	}
	b.Write(pack[len(pack)-20:])
	sum := sha1.Sum(b.Bytes())
	b.Write(sum[:])
	return b.Bytes()
}

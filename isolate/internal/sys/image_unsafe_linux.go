package sys

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"unsafe"

	"palyra/internal/canon"
)

// Image is a tape that was encoded once, for many children that differ in their
// descriptors and in lists of strings: a copy takes a tenth of the time of the
// encoding. It is immutable, so it may be used by many at once.
type Image struct {
	Tape   Tape         // what it was made of
	Text   string       // its Lines, each with a newline
	Digest canon.Digest // of Text
	Steps  int          // number of lines

	data   []byte // the used memory of an arena at address 0
	words  []int  // offsets of words to which the arena's address is added
	args   []imageArg
	blocks []imageBlock
	slots  map[string]int // their offsets
	rooms  map[string]place
}

// imageArg is an argument that is set for each child: its label and its offset.
type imageArg struct {
	kind  argKind
	label string
	at    int
}

// imageBlock is where the steps of a tape, or of one within it, begin.
type imageBlock struct {
	at    int
	tape  Tape
	first int
}

// errImage is our own bug, or an address that is not a multiple of eight.
var errImage = errors.New("tape image: an encoding depends on more than its address")

// NewImage encodes t, with wait as for NewArena. Where the addresses are it finds
// by encoding it at two places: what differs, differs by the distance of the two.
func NewImage(t Tape, wait bool) (*Image, error) {
	a, err := NewArena(t, wait)
	if err != nil {
		return nil, err
	}
	defer a.Free()
	b, err := NewArena(t, wait)
	if err != nil {
		return nil, err
	}
	defer b.Free()
	lines := t.Lines()
	im := &Image{Tape: t, Text: strings.Join(lines, "\n") + "\n", Steps: len(lines)}
	im.Digest = canon.Sum([]byte(im.Text))
	if a.used != b.used || len(a.full)+len(b.full) > 0 {
		return nil, errImage
	}
	const word = int(unsafe.Sizeof(uintptr(0)))
	im.data = append([]byte(nil), a.mem[:(a.used+word-1)/word*word]...)
	for at := 0; at < len(im.data); at += word {
		x, y := *wordAt(a.mem, at), *wordAt(b.mem, at)
		if x == y {
			continue
		}
		if y-x != b.addr(0)-a.addr(0) {
			return nil, errImage
		}
		im.words = append(im.words, at)
		*wordAt(im.data, at) = x - a.addr(0)
	}
	im.slots = make(map[string]int, len(a.slots))
	for name, at := range a.slots {
		im.slots[name] = int(at - a.addr(0))
	}
	im.rooms = a.rooms
	for _, p := range a.parts {
		base := int(p.at - a.addr(0))
		im.blocks = append(im.blocks, imageBlock{base, p.tape, p.first})
		for i := range p.tape {
			for j, x := range p.tape[i].Args {
				if x.kind == argFD || x.kind == argID || x.kind == argVec {
					at := base + i*int(unsafe.Sizeof(rawStep{})) + int(unsafe.Offsetof(rawStep{}.args)) + j*word
					im.args = append(im.args, imageArg{x.kind, x.label, at})
				}
			}
		}
	}
	return im, nil
}

// wordAt is the word at an offset, a multiple of eight, that lies within b, whose
// own address is one, too: memory of an arena, or a slice that is as large as one.
func wordAt(b []byte, at int) *uintptr { return (*uintptr)(unsafe.Pointer(&b[at : at+8][0])) }

// FDValue and StringsValue are what is set in the copy of an image: the argument
// with this label. An ID is set as a descriptor is.
type FDValue struct {
	Label string
	FD    int
}

// StringsValue is FDValue for a list of strings.
type StringsValue struct {
	Label string
	Value []string
}

// Copy makes an arena of the image. Every descriptor and every list of strings of
// the tape must be given, and nothing else. room is as for NewArena.
func (m *Memory) Copy(im *Image, fds []FDValue, lists []StringsValue, room int) (*Arena, error) {
	const piece = 16 + 15
	need := len(im.data) + 2*piece + room
	for _, l := range lists {
		need += 8*(len(l.Value)+1) + piece
		for _, s := range l.Value {
			need += len(s) + piece
		}
	}
	a := &Arena{from: m, slots: make(map[string]uintptr), rooms: maps.Clone(im.rooms)}
	if err := a.grow(need); err != nil {
		return nil, err
	}
	copy(a.mem, im.data)
	a.used = len(im.data)
	base := a.addr(0)
	for _, at := range im.words {
		*wordAt(a.mem, at) += base
	}
	// The block is at the start of a page, so it is aligned; it lives as long as mem.
	a.status = (*rawStatus)(unsafe.Pointer(&a.mem[0]))
	for name, at := range im.slots {
		a.slots[name] = a.addr(at)
	}
	a.tape = a.addr(im.blocks[len(im.blocks)-1].at) // encode notes a tape after those within it
	a.steps = im.Steps
	for _, b := range im.blocks {
		a.parts = append(a.parts, encoded{a.addr(b.at), b.tape, b.first})
	}
	set := 0
	for _, v := range fds {
		set += a.fill(im, argFD, v.Label, uintptr(v.FD)) + a.fill(im, argID, v.Label, uintptr(v.FD))
	}
	for _, l := range lists {
		set += a.fill(im, argVec, l.Label, a.putStrings(l.Value))
	}
	if set != len(im.args) {
		a.Free()
		return nil, fmt.Errorf("tape image: %d of %d arguments are given", set, len(im.args))
	}
	runtime.KeepAlive(im)
	return a, nil
}

// fill sets every argument of a kind and label and returns how many there are.
func (a *Arena) fill(im *Image, kind argKind, label string, v uintptr) (n int) {
	for _, x := range im.args {
		if x.kind == kind && x.label == label {
			*wordAt(a.mem, x.at) = v
			n++
		}
	}
	return n
}

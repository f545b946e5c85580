// Package elf reads what Linux and the dynamic loader will make of a program's
// headers: which loader the kernel starts before the program, and where that
// loader looks for libraries.
//
//	p, err := elf.Read(f, size)
//	p.Loader    // PT_INTERP: "/lib64/ld-linux-x86-64.so.2", "" if the program is static
//	p.Libraries // DT_RUNPATH and its like, split and as written: "$ORIGIN/lib"
//
// It reads hostile files: at most 64 KiB of headers, of the dynamic section and
// of names each, and follows no pointer out of the file. Headers that Linux
// would refuse are refused, and those that could be read in two ways: the loader
// reads memory, so a program that has one is refused where memory could hold
// something else than the bytes of the file that are read here.
//
// What it does not protect against: a program that loads code by itself
// (dlopen, mmap), and what its libraries ask for in their own headers.
package elf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// Program is what the headers of an executable say.
type Program struct {
	Loader    string   // path in PT_INTERP; "" if there is none
	Libraries []string // folders, and names of files with a slash, in no order that matters, each once
}

// The bounds.
const (
	maxHeaders = 64 << 10 // bytes of program headers, as in load_elf_phdrs of fs/binfmt_elf.c
	maxDynamic = 64 << 10 // bytes of the dynamic section
	maxNames   = 64 << 10 // bytes of the names that are of interest
	maxLoader  = 4096     // PATH_MAX
)

// The parts of the format (elf(5)) that are read here.
const (
	headerSize  = 64
	segmentSize = 56

	typeExec, typeDyn = 2, 3

	segLoad, segDynamic, segInterp, segHeaders = 1, 2, 3, 6

	dynNull, dynNeeded, dynStrtab, dynStrsz, dynRpath, dynRunpath = 0, 1, 5, 10, 15, 29

	dynConfig, dynDepaudit, dynAudit = 0x6ffffefa, 0x6ffffefb, 0x6ffffefc
	dynAuxiliary, dynFilter          = 0x7ffffffd, 0x7fffffff
)

var machines = map[string]uint16{"amd64": 62, "arm64": 183}

type segment struct {
	kind                      uint32
	offset, addr, size, inMem uint64
}

// table is where the program headers stand in the file.
type table struct {
	offset, size uint64
	movable      bool // the kernel chooses the address of the program
}

// Read reads the headers of a 64-bit executable for this machine.
func Read(f io.ReaderAt, size int64) (*Program, error) {
	segments, headers, err := segmentsOf(f, size)
	if err != nil {
		return nil, err
	}
	p := &Program{}
	if p.Loader, err = loaderOf(f, segments); err != nil || p.Loader == "" {
		return p, err // nothing reads the dynamic section of a program without a loader but itself
	}
	if err := checkMemory(segments, headers); err != nil {
		return nil, err
	}
	p.Libraries, err = librariesOf(f, segments)
	return p, err
}

// Check refuses what is not a 64-bit ELF executable for this machine by the
// first bytes of its header, at least 20.
func Check(head []byte) error {
	switch {
	case len(head) < 20 || string(head[:4]) != "\x7fELF":
		return errors.New("neither an ELF binary nor a script that begins with #! and names an interpreter")
	case head[4] != 2 || head[5] != 1:
		return errors.New("not a 64-bit little-endian binary")
	}
	if t := binary.LittleEndian.Uint16(head[16:]); t != typeExec && t != typeDyn {
		return fmt.Errorf("ELF type %d is not executable", t)
	}
	if m := binary.LittleEndian.Uint16(head[18:]); m != machines[runtime.GOARCH] {
		return fmt.Errorf("built for machine %d, this is %s", m, runtime.GOARCH)
	}
	return nil
}

func segmentsOf(f io.ReaderAt, size int64) ([]segment, table, error) {
	head := make([]byte, headerSize)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, table{}, err
	}
	if err := Check(head[:n]); err != nil {
		return nil, table{}, err
	}
	if n < headerSize {
		return nil, table{}, errors.New("ELF header cut short")
	}
	le := binary.LittleEndian
	offset, each, count := le.Uint64(head[32:]), int(le.Uint16(head[54:])), int(le.Uint16(head[56:]))
	switch {
	case each != segmentSize || count == 0 || count*segmentSize > maxHeaders:
		return nil, table{}, fmt.Errorf("%d program headers of %d bytes", count, each)
	case offset > uint64(size):
		return nil, table{}, errors.New("program headers lie outside the file")
	}
	b := make([]byte, count*segmentSize)
	if err := readAll(f, b, offset); err != nil {
		return nil, table{}, fmt.Errorf("program headers: %w", err)
	}
	segments := make([]segment, count)
	for i := range segments {
		h := b[i*segmentSize:]
		segments[i] = segment{kind: le.Uint32(h), offset: le.Uint64(h[8:]), addr: le.Uint64(h[16:]), size: le.Uint64(h[32:]), inMem: le.Uint64(h[40:])}
	}
	return segments, table{offset, uint64(len(b)), le.Uint16(head[16:]) == typeDyn}, nil
}

// checkMemory refuses segments that could show the loader something else than what
// stands in the file. The kernel maps whole pages, so what comes later covers what
// shares a page with it. It hands the loader the address of the headers in memory,
// by the last segment in which they begin, and the loader takes PT_PHDR for where
// they ought to be: it looks for everything else as far from there.
func checkMemory(segments []segment, headers table) error {
	page := uint64(os.Getpagesize())
	var end uint64
	var in *segment
	for i := range segments {
		s := &segments[i]
		if s.kind != segLoad {
			continue
		}
		last := s.addr + s.inMem
		switch {
		case s.size > s.inMem || last < s.addr || last > 1<<62 || s.offset > 1<<62:
			return errors.New("a segment lies outside of what can be loaded")
		case s.addr&^(page-1) < end:
			return errors.New("segments share a page, or do not ascend")
		}
		end = (last + page - 1) &^ (page - 1)
		if headers.offset >= s.offset && headers.offset-s.offset < s.size {
			in = s
		}
	}
	if in == nil || headers.size > in.size-(headers.offset-in.offset) {
		return errors.New("program headers are not in a segment that is loaded")
	}
	told := !headers.movable
	for i := range segments {
		if segments[i].kind != segHeaders {
			continue
		}
		if told = true; segments[i].addr != in.addr+headers.offset-in.offset {
			return errors.New("program headers are at another address than PT_PHDR says")
		}
	}
	if !told {
		return errors.New("has no PT_PHDR, without which the loader does not find it")
	}
	return nil
}

// loaderOf is the path in PT_INTERP. The kernel takes the first one and reads
// its bytes up to a NUL; a second one and bytes behind the NUL are for nobody.
func loaderOf(f io.ReaderAt, segments []segment) (string, error) {
	var at *segment
	for i := range segments {
		if segments[i].kind != segInterp {
			continue
		}
		if at != nil {
			return "", errors.New("names more than one loader (PT_INTERP)")
		}
		at = &segments[i]
	}
	if at == nil {
		return "", nil
	}
	if at.size < 2 || at.size > maxLoader {
		return "", fmt.Errorf("the name of its loader (PT_INTERP) has %d bytes", at.size)
	}
	b := make([]byte, at.size)
	if err := readAll(f, b, at.offset); err != nil {
		return "", fmt.Errorf("the name of its loader (PT_INTERP): %w", err)
	}
	if bytes.IndexByte(b, 0) != len(b)-1 {
		return "", errors.New("the name of its loader (PT_INTERP) does not end with its only NUL")
	}
	return string(b[:len(b)-1]), nil
}

// librariesOf reads the dynamic section as the loader finds it: in memory, at the
// address that PT_DYNAMIC gives.
func librariesOf(f io.ReaderAt, segments []segment) ([]string, error) {
	var dynamic *segment
	for i := range segments { // glibc takes the last one, musl too
		if segments[i].kind == segDynamic {
			dynamic = &segments[i]
		}
	}
	if dynamic == nil {
		return nil, nil
	}
	le := binary.LittleEndian
	var table, length uint64
	type name struct{ tag, at uint64 }
	var names []name
	var b []byte
	for read := uint64(0); ; b = b[16:] { // it ends with dynNull, whatever size the header names
		if len(b) < 16 {
			if read >= maxDynamic {
				return nil, errors.New("dynamic section is too long")
			}
			var err error
			if b, err = readMemory(f, segments, dynamic.addr+read, 1024); err != nil || len(b) < 16 {
				return nil, fmt.Errorf("dynamic section: %w", cmp.Or(err, io.ErrUnexpectedEOF))
			}
			b = b[:len(b)&^15]
			read += uint64(len(b))
		}
		tag, v := le.Uint64(b), le.Uint64(b[8:])
		if tag == dynNull {
			break
		}
		switch tag {
		case dynStrtab:
			table = v
		case dynStrsz:
			length = v
		case dynNeeded, dynRpath, dynRunpath, dynConfig, dynDepaudit, dynAudit, dynAuxiliary, dynFilter:
			names = append(names, name{tag, v})
		}
	}
	var out []string
	left := maxNames
	for _, n := range names {
		if n.at >= length {
			return nil, errors.New("a name lies outside the table of names")
		}
		s, err := text(f, segments, table+n.at, min(length-n.at, uint64(left)))
		if err != nil {
			return nil, fmt.Errorf("names in the dynamic section: %w", err)
		}
		left -= len(s) + 1
		switch n.tag {
		case dynNeeded, dynAuxiliary, dynFilter, dynConfig:
			// Without a slash it is looked up in the folders.
			if strings.Contains(s, "/") {
				out = append(out, s)
			}
		default:
			out = append(out, strings.Split(s, ":")...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// text reads a string of less than most bytes and its NUL.
func text(f io.ReaderAt, segments []segment, addr, most uint64) (string, error) {
	var out []byte
	for uint64(len(out)) < most {
		b, err := readMemory(f, segments, addr+uint64(len(out)), min(256, most-uint64(len(out))))
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(append(out, b[:i]...)), nil
		}
		out = append(out, b...)
	}
	return "", errors.New("too long, or without an end")
}

// readMemory reads at most most bytes of what the kernel maps at addr, and at least
// one: bytes of the file only. Behind them there may be zeros or not, by the
// kernel's version and what may be written.
func readMemory(f io.ReaderAt, segments []segment, addr, most uint64) ([]byte, error) {
	for i := range segments {
		s := &segments[i]
		if s.kind == segLoad && addr >= s.addr && addr-s.addr < s.size {
			at := addr - s.addr
			b := make([]byte, min(most, s.size-at))
			return b, readAll(f, b, s.offset+at)
		}
	}
	return nil, errors.New("not in a segment that is loaded")
}

func readAll(f io.ReaderAt, b []byte, offset uint64) error {
	if offset > 1<<62 {
		return io.ErrUnexpectedEOF
	}
	if n, err := f.ReadAt(b, int64(offset)); n < len(b) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}

package elf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// image is a program with the given segments, all of whose bytes are mapped at
// their offset.
type image struct {
	loaders []string // PT_INTERP, as they are
	dynamic []uint64 // tags and values
	names   string   // the table of names; its address is put in behind dynStrtab
	spoil   func(b []byte) []byte
}

func (m image) bytes() []byte {
	le := binary.LittleEndian
	count := len(m.loaders) + 2
	if m.dynamic != nil {
		count++
	}
	b := make([]byte, headerSize+count*segmentSize)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], typeDyn)
	le.PutUint16(b[18:], machines[runtime.GOARCH])
	le.PutUint64(b[32:], headerSize)
	le.PutUint16(b[54:], segmentSize)
	le.PutUint16(b[56:], uint16(count))
	n := 0
	add := func(kind uint32, data []byte) {
		h := b[headerSize+n*segmentSize:]
		le.PutUint32(h, kind)
		for _, at := range []int{8, 16} {
			le.PutUint64(h[at:], uint64(len(b)))
		}
		for _, at := range []int{32, 40} {
			le.PutUint64(h[at:], uint64(len(data)))
		}
		b = append(b, data...)
		n++
	}
	for _, l := range m.loaders {
		add(segInterp, []byte(l))
	}
	if m.dynamic != nil {
		at := uint64(len(b))
		b = append(b, m.names...)
		d := append(slices.Clone(m.dynamic), dynNull, 0)
		for i := 0; i < len(d); i += 2 {
			if d[i] == dynStrtab {
				d[i+1] += at
			}
		}
		var data []byte
		for _, v := range d {
			data = le.AppendUint64(data, v)
		}
		add(segDynamic, data)
	}
	h := b[headerSize+n*segmentSize:]
	le.PutUint32(h, segLoad)
	le.PutUint64(h[32:], uint64(len(b)))
	le.PutUint64(h[40:], uint64(len(b)))
	h = h[segmentSize:]
	le.PutUint32(h, segHeaders)
	le.PutUint64(h[16:], headerSize)
	if m.spoil != nil {
		b = m.spoil(b)
	}
	return b
}

const ld = "/lib64/ld.so\x00"

// dynamic is a section whose tags all point to the table's beginning.
func dynamic(length uint64, tags ...uint64) []uint64 {
	out := []uint64{dynStrtab, 0, dynStrsz, length}
	for _, tag := range tags {
		out = append(out, tag, 1)
	}
	return out
}

func TestRead(t *testing.T) {
	le := binary.LittleEndian
	first := func(at int, v uint64) func([]byte) []byte { // in the first program header
		return func(b []byte) []byte { le.PutUint64(b[headerSize+at:], v); return b }
	}
	second := func(at int, v uint64) func([]byte) []byte { // in the second one
		return first(segmentSize+at, v)
	}
	const dynDebug = 21
	for name, c := range map[string]struct {
		m         image
		loader    string
		libraries string // joined by blanks
		err       string
	}{
		"static":              {m: image{}},
		"static, with names":  {m: image{dynamic: dynamic(9, dynRunpath), names: "\x00/tmp/lib\x00"}},
		"dynamic":             {m: image{loaders: []string{ld}}, loader: "/lib64/ld.so"},
		"relative":            {m: image{loaders: []string{"ld.so\x00"}}, loader: "ld.so"},
		"two loaders":         {m: image{loaders: []string{ld, ld}}, err: "more than one"},
		"no NUL":              {m: image{loaders: []string{"/lib64/ld.so"}}, err: "NUL"},
		"two NULs":            {m: image{loaders: []string{"/lib64/ld.so\x00/tmp/x\x00"}}, err: "NUL"},
		"only a NUL":          {m: image{loaders: []string{"\x00"}}, err: "1 bytes"},
		"empty":               {m: image{loaders: []string{""}}, err: "0 bytes"},
		"long":                {m: image{loaders: []string{"/" + strings.Repeat("x", 4096) + "\x00"}}, err: "4098 bytes"},
		"behind the end":      {m: image{loaders: []string{ld}, spoil: first(8, 1<<40)}, err: "EOF"},
		"offset overflows":    {m: image{loaders: []string{ld}, spoil: first(8, 1<<64-4)}, err: "EOF"},
		"huge":                {m: image{loaders: []string{ld}, spoil: first(32, 1<<63)}, err: "bytes"},
		"no headers":          {m: image{spoil: func(b []byte) []byte { le.PutUint16(b[56:], 0); return b }}, err: "0 program headers"},
		"many headers":        {m: image{spoil: func(b []byte) []byte { le.PutUint16(b[56:], 0xffff); return b }}, err: "65535 program headers"},
		"small headers":       {m: image{spoil: func(b []byte) []byte { le.PutUint16(b[54:], 32); return b }}, err: "of 32 bytes"},
		"headers outside":     {m: image{spoil: func(b []byte) []byte { le.PutUint64(b[32:], 1<<63); return b }}, err: "outside"},
		"headers cut":         {m: image{spoil: func(b []byte) []byte { return b[:80] }}, err: "EOF"},
		"header cut":          {m: image{spoil: func(b []byte) []byte { return b[:40] }}, err: "cut short"},
		"not ELF":             {m: image{spoil: func([]byte) []byte { return []byte("MZ") }}, err: "neither"},
		"nothing":             {m: image{spoil: func([]byte) []byte { return nil }}, err: "neither"},
		"runpath":             {m: image{[]string{ld}, dynamic(15, dynRunpath), "\x00$ORIGIN:/a::b\x00", nil}, loader: "/lib64/ld.so", libraries: " $ORIGIN /a b"},
		"rpath, audit":        {m: image{[]string{ld}, dynamic(4, dynRpath, dynAudit, dynDepaudit), "\x00/a\x00", nil}, loader: "/lib64/ld.so", libraries: "/a"},
		"library":             {m: image{[]string{ld}, dynamic(9, dynNeeded), "\x00libc.so\x00", nil}, loader: "/lib64/ld.so"},
		"library by path":     {m: image{[]string{ld}, dynamic(10, dynNeeded), "\x00./lib.so\x00", nil}, loader: "/lib64/ld.so", libraries: "./lib.so"},
		"filter by path":      {m: image{[]string{ld}, dynamic(6, dynFilter, dynAuxiliary), "\x00a/b\x00", nil}, loader: "/lib64/ld.so", libraries: "a/b"},
		"name without an end": {m: image{[]string{ld}, dynamic(4, dynRunpath), "\x00/abcdef\x00", nil}, err: "without an end"},
		"name outside":        {m: image{[]string{ld}, dynamic(1, dynRunpath), "\x00/a\x00", nil}, err: "outside the table"},
		"table outside":       {m: image{[]string{ld}, []uint64{dynStrtab, 1 << 40, dynStrsz, 9, dynRunpath, 1}, "\x00/a\x00", nil}, err: "not in a segment"},
		"no table":            {m: image{[]string{ld}, []uint64{dynRunpath, 1}, "\x00/a\x00", nil}, err: "outside the table"},
		"shown short":         {m: image{[]string{ld}, dynamic(4, dynRunpath), "\x00/a\x00", second(40, 0)}, loader: "/lib64/ld.so", libraries: "/a"},
		"without an end":      {m: image{[]string{ld}, dynamic(4, dynRunpath), "\x00/a\x00", func(b []byte) []byte { b[len(b)-16] = dynDebug; return b }}, err: "dynamic section"},
		"behind the file's":   {m: image{[]string{ld}, dynamic(4, dynRunpath), "\x00/a\x00", func(b []byte) []byte { le.PutUint64(b[headerSize+2*segmentSize+32:], uint64(len(b)-32)); return b }}, err: "dynamic section"},
		"another's page":      {m: image{[]string{ld, ld}, dynamic(4, dynRunpath), "\x00/a\x00", first(0, segLoad)}, err: "share a page"},
		"headers unloaded":    {m: image{loaders: []string{ld}, spoil: func(b []byte) []byte { le.PutUint64(b[headerSize+segmentSize+32:], 100); return b }}, err: "not in a segment"},
		"headers elsewhere":   {m: image{loaders: []string{ld}, spoil: func(b []byte) []byte { le.PutUint64(b[headerSize+2*segmentSize+16:], 0x1040); return b }}, err: "PT_PHDR"},
		"headers not said":    {m: image{loaders: []string{ld}, spoil: func(b []byte) []byte { b[headerSize+2*segmentSize] = 0; return b }}, err: "PT_PHDR"},
		"names beyond bound":  {m: image{[]string{ld}, dynamic(1<<17, dynRunpath), "\x00" + strings.Repeat("x", 1<<17) + "\x00", nil}, err: "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.m.bytes()
			p, err := Read(bytes.NewReader(b), int64(len(b)))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want an error about %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(p.Libraries, " "); p.Loader != c.loader || got != c.libraries {
				t.Errorf("got %q, %q", p.Loader, got)
			}
		})
	}
}

// TestSystem: of the programs of this host it reads what debug/elf reads.
func TestSystem(t *testing.T) {
	names, err := filepath.Glob("/usr/bin/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		st, err := f.Stat()
		want, werr := elf.NewFile(f)
		if err != nil || werr != nil || want.Type != elf.ET_EXEC && want.Type != elf.ET_DYN {
			f.Close()
			continue
		}
		n++
		got, err := Read(f, st.Size())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			f.Close()
			continue
		}
		loader := ""
		for _, p := range want.Progs {
			if p.Type == elf.PT_INTERP {
				b, err := io.ReadAll(p.Open())
				if err != nil {
					t.Fatal(err)
				}
				loader = strings.TrimSuffix(string(b), "\x00")
			}
		}
		var places []string
		for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
			ss, _ := want.DynString(tag)
			for _, s := range ss {
				places = append(places, strings.Split(s, ":")...)
			}
		}
		slices.Sort(places)
		if places = slices.Compact(places); loader == "" {
			places = nil
		}
		if got.Loader != loader || !slices.Equal(got.Libraries, places) {
			t.Errorf("%s: got %+v, want %q and %q", name, got, loader, places)
		}
		f.Close()
	}
	if n == 0 {
		t.Error("no program of this host was read")
	}
}

// FuzzRead: no file makes it panic, read without a bound, or return a loader that
// the kernel would not open by that name.
func FuzzRead(f *testing.F) {
	for _, m := range []image{{}, {loaders: []string{ld}}, {loaders: []string{ld, ld}},
		{loaders: []string{ld}, dynamic: dynamic(15, dynRunpath, dynNeeded), names: "\x00$ORIGIN:/a::b\x00"}} {
		f.Add(m.bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &counting{r: bytes.NewReader(b)}
		p, err := Read(r, int64(len(b)))
		if r.n > headerSize+maxHeaders+maxLoader+maxDynamic+2*maxNames+256*(maxDynamic/16) {
			t.Errorf("%d bytes read", r.n)
		}
		if err != nil {
			return
		}
		if strings.ContainsRune(p.Loader, 0) || len(p.Loader) >= maxLoader || p.Loader == "" && len(p.Libraries) > 0 {
			t.Errorf("%+v", p)
		}
		if n := len(strings.Join(p.Libraries, ":")); n > maxNames {
			t.Errorf("%d bytes of names", n)
		}
	})
}

type counting struct {
	r io.ReaderAt
	n int
}

func (c *counting) ReadAt(b []byte, at int64) (int, error) {
	c.n += len(b)
	return c.r.ReadAt(b, at)
}

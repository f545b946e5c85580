// Package seek looks for a secret value in bytes, files and the memory of processes.
//
// A search that finds nothing shows something only if it finds the same value when that is put
// there: each test that uses it does both.
//
// It finds the value as it is, in base64 (all three alignments, both alphabets), in hexadecimal and
// reversed. It doesn't find what was compressed or encrypted, nor what memory held a moment before.
package seek

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Value is what is looked for.
type Value struct{ forms []form }

type form struct {
	name string
	text []byte
}

// minValue is the shortest value in bytes: what is shorter is found by chance.
const minValue = 12

// For returns the forms of a value.
func For(value string) *Value {
	if len(value) < minValue {
		panic("seek: internal error: a value of less than 12 bytes")
	}
	v := &Value{forms: []form{{"plain", []byte(value)}, {"hex", []byte(hex.EncodeToString([]byte(value)))}, {"HEX", []byte(strings.ToUpper(hex.EncodeToString([]byte(value))))}}}
	back := []byte(value)
	slices.Reverse(back)
	v.forms = append(v.forms, form{"reversed", back})
	for i := range 3 {
		// Only the characters that the value alone decides: the bytes around it decide the others.
		for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			text := enc.EncodeToString(append(make([]byte, i), value...))
			from, to := (i*8+5)/6, (i+len(value))*8/6
			v.forms = append(v.forms, form{name, []byte(text[from:to])})
		}
	}
	return v
}

// In returns the forms in which the value stands in b.
func (v *Value) In(b []byte) (forms []string) {
	for _, f := range v.forms {
		if bytes.Contains(b, f.text) && !slices.Contains(forms, f.name) {
			forms = append(forms, f.name)
		}
	}
	return forms
}

// Files returns where the value stands in the files below a folder, or in their names: "PATH:
// plain". It follows no link, and reads each file whole. Files that are gone meanwhile had their
// chance.
func (v *Value) Files(root string) (found []string, read int, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, f := range v.In([]byte(d.Name())) {
			found = append(found, path+": its name: "+f)
		}
		text := ""
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			text, err = os.Readlink(path)
		case d.Type().IsRegular():
			var b []byte
			b, err = os.ReadFile(path)
			text = string(b)
		default:
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		read++
		for _, f := range v.In([]byte(text)) {
			found = append(found, path+": "+f)
		}
		return nil
	})
	return found, read, err
}

// memoryChunk is how much of a mapping is read at a time, beside the length of the longest form.
const memoryChunk = 4 << 20

// Memory returns where the value stands in a process: its memory, of which read counts the bytes,
// its arguments and its environment. It leaves out pages that were never written: most of what a
// Go program maps.
func (v *Value) Memory(pid int) (found []string, read int64, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	for _, name := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, 0, err
		}
		for _, f := range v.In(b) {
			found = append(found, name+": "+f)
		}
	}
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return nil, 0, err
	}
	mem, err := os.Open(filepath.Join(dir, "mem"))
	if err != nil {
		return nil, 0, err
	}
	defer mem.Close()
	pages, err := os.Open(filepath.Join(dir, "pagemap"))
	if err != nil {
		return nil, 0, err
	}
	defer pages.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		f := strings.Fields(line)
		if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil {
			return nil, 0, fmt.Errorf("maps of process %d: %w", pid, err)
		}
		if !strings.HasPrefix(f[1], "r") || len(f) > 5 && (f[5] == "[vvar]" || f[5] == "[vvar_vclock]" || f[5] == "[vsyscall]") {
			continue
		}
		runs := []run{{from, to}}
		if f[4] == "0" { // of no file: an absent page is nothing's
			if runs, err = written(pages, from, to); err != nil {
				return nil, 0, fmt.Errorf("pages of process %d at %s: %w", pid, f[0], err)
			}
		}
		var in []string
		for _, r := range runs {
			n, forms, err := v.mapping(mem, r.from, r.to)
			if err != nil {
				return nil, 0, fmt.Errorf("memory of process %d at %s: %w", pid, f[0], err)
			}
			read += n
			in = append(in, forms...)
		}
		slices.Sort(in)
		for _, x := range slices.Compact(in) {
			found = append(found, "memory "+strings.Join(f[5:], " ")+": "+x)
		}
	}
	return found, read, nil
}

// run is a range of addresses.
type run struct{ from, to uint64 }

// written returns the runs of pages of a mapping that are in memory or swapped out, by
// /proc/pid/pagemap: for each page 64 bits, of which the uppermost two say so.
func written(pages *os.File, from, to uint64) (runs []run, err error) {
	size := uint64(os.Getpagesize())
	b := make([]byte, (to-from)/size*8)
	n, err := pages.ReadAt(b, int64(from/size*8))
	if err != nil && err != io.EOF {
		return nil, err
	}
	for i := 0; i+8 <= n; i += 8 {
		at := from + uint64(i/8)*size
		switch {
		case binary.NativeEndian.Uint64(b[i:])>>62 == 0:
		case len(runs) > 0 && runs[len(runs)-1].to == at:
			runs[len(runs)-1].to += size
		default:
			runs = append(runs, run{at, at + size})
		}
	}
	return runs, nil
}

func (v *Value) mapping(mem *os.File, from, to uint64) (read int64, forms []string, err error) {
	longest := 0
	for _, f := range v.forms {
		longest = max(longest, len(f.text))
	}
	b := make([]byte, min(to-from, memoryChunk+uint64(longest)))
	for at := from; at < to; at += memoryChunk {
		n, err := mem.ReadAt(b[:min(uint64(len(b)), to-at)], int64(at))
		// A page beyond the end of a mapped file can't be read.
		if err != nil && err != io.EOF && !strings.Contains(err.Error(), "input/output error") {
			return read, forms, err
		}
		read += int64(n)
		for _, f := range v.In(b[:n]) {
			if !slices.Contains(forms, f) {
				forms = append(forms, f)
			}
		}
	}
	return read, forms, nil
}

// Below returns the processes that descend from one, without it.
func Below(pid int) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid; the name may have spaces and parentheses.
		var id, parent int
		end := bytes.LastIndexByte(b, ')')
		fmt.Sscan(filepath.Base(filepath.Dir(path)), &id)
		if f := bytes.Fields(b[end+1:]); len(f) > 1 {
			fmt.Sscan(string(f[1]), &parent)
		}
		children[parent] = append(children[parent], id)
	}
	var out []int
	for todo := children[pid]; len(todo) > 0; {
		id := todo[0]
		todo = append(todo[1:], children[id]...)
		out = append(out, id)
	}
	return out, nil
}

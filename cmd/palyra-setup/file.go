package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/cmd/internal/front"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// maxFile bounds a configuration; Claude Code keeps histories in its user's.
const maxFile = 64 << 20

// kept is the suffix of the file as it was before setup, and absent what that holds if there
// was none.
const (
	kept   = ".before-palyra"
	absent = "palyra setup: there was no file\n"
)

// file is a configuration below a folder that is held open: no link leads out of that, and
// a file that is a link isn't followed at all.
type file struct {
	root   *os.Root
	base   string
	name   string
	perm   fs.FileMode
	text   []byte
	exists bool
	backup []byte
	kept   bool // there is a backup
	absent bool // which says that there was no file
}

func (f *file) path() string { return filepath.Join(f.base, f.name) }

// unfit is the error for a file that setup doesn't edit.
func (f *file) unfit(err error) error {
	return fault.New(fault.BadState, "bad_file", fmt.Sprintf("edit %q", f.path()), err).
		WithHint("mend it by hand; palyra setup --print prints the entry")
}

// openFile reads a file and its backup.
func openFile(base, name string, perm fs.FileMode) (*file, error) {
	root, err := os.OpenRoot(base)
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", fmt.Sprintf("open folder %q", base), err)
	}
	f := &file{root: root, base: base, name: name, perm: perm}
	if f.text, f.exists, err = f.read(name); err == nil {
		f.backup, f.kept, err = f.read(name + kept)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	if f.absent = string(f.backup) == absent; f.absent {
		f.backup = nil
	}
	if fi, err := root.Lstat(name); err == nil {
		f.perm = fi.Mode().Perm()
	}
	return f, nil
}

func (f *file) read(name string) ([]byte, bool, error) {
	fi, err := f.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, f.unfit(err)
	case fi.Mode()&fs.ModeSymlink != 0:
		return nil, false, f.unfit(fmt.Errorf("%q is a symbolic link", filepath.Base(name)))
	case !fi.Mode().IsRegular():
		return nil, false, f.unfit(fmt.Errorf("%q is no regular file", filepath.Base(name)))
	}
	r, err := f.root.Open(name)
	if err != nil {
		return nil, false, f.unfit(err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("above %d MiB", maxFile>>20)
	}
	if err != nil {
		return nil, false, f.unfit(err)
	}
	return b, true, nil
}

// unchanged compares the file with what was read.
func (f *file) unchanged() error {
	now, exists, err := f.read(f.name)
	if err == nil && (exists != f.exists || !bytes.Equal(now, f.text)) {
		err = f.unfit(errors.New("it changed meanwhile"))
	}
	return err
}

// write replaces the file, once its backup is on disk.
func (f *file) write(text []byte, backup bool) error {
	if err := f.unchanged(); err != nil {
		return err
	}
	if backup {
		was := f.text
		if !f.exists {
			was = []byte(absent)
		}
		if err := f.place(f.name+kept, was, 0o600); err != nil {
			return err
		}
	}
	return f.place(f.name, text, f.perm)
}

// restore replaces the file by what it was, or removes it if there was none, and then the
// backup.
func (f *file) restore(text []byte) error {
	if err := f.unchanged(); err != nil {
		return err
	}
	var err error
	if text == nil {
		err = f.root.Remove(f.name)
	} else {
		err = f.place(f.name, text, f.perm)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = f.root.Remove(f.name + kept)
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		err = fault.New(fault.Unavailable, "io_error", fmt.Sprintf("restore %q", f.path()), err)
	}
	return err
}

func (f *file) place(name string, text []byte, perm fs.FileMode) error {
	err := f.root.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		var dir *os.Root
		if dir, err = f.root.OpenRoot(filepath.Dir(name)); err == nil {
			err = durable.WriteIn(dir, filepath.Base(name), text, perm)
			dir.Close()
		}
	}
	if err != nil {
		return fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write %q", filepath.Join(f.base, name)), err)
	}
	return nil
}

// diff shows how the file would change: the lines that differ, without those around them,
// which are none of setup's business and may be secret.
func (f *file) diff(text []byte) string {
	a, b := strings.SplitAfter(string(f.text), "\n"), strings.SplitAfter(string(text), "\n")
	head, tail := 0, 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	a, b = a[head:len(a)-tail], b[head:len(b)-tail]
	var out strings.Builder
	fmt.Fprintf(&out, "%s, from line %d\n", front.Escape(f.path()), head+1)
	// The shorter side's lines stand in the longer one in order, as setup adds or takes out
	// whole lines, but for a comma: a greedy walk finds them.
	for len(a) > 0 || len(b) > 0 {
		switch in, of := slices.Index(b, first(a)), slices.Index(a, first(b)); {
		case len(a) > 0 && len(b) > 0 && a[0] == b[0]:
			a, b = a[1:], b[1:]
		case len(a) > 0 && (in < 0 || len(b) == 0 || of > 0 && of < in):
			show(&out, "-", a[0])
			a = a[1:]
		default:
			show(&out, "+", b[0])
			b = b[1:]
		}
	}
	return out.String()
}

func first(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[0]
}

func show(out *strings.Builder, sign, line string) {
	if line != "" {
		fmt.Fprintf(out, "%s %s\n", sign, front.Escape(strings.TrimRight(line, "\r\n")))
	}
}

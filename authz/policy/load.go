package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"palyra/call/egress"
	"palyra/internal/fault"
)

// The limits of a policy directory. They're far above any real one and bound the cost of a
// mistake.
const (
	maxFile     = 1 << 20  // bytes per file
	maxTotal    = 16 << 20 // bytes per directory
	maxFiles    = 1000     //
	maxPolicies = 20000    //
	maxPolicy   = 64 << 10 // bytes per policy, without comments
	maxNesting  = 64       // brackets
)

// SchemaFile is the name that a copy of the schema has in a policy directory.
const SchemaFile = "palyra.cedarschema"

type fileKind uint8

const (
	kindPolicy fileKind = iota + 1
	kindTest
	kindSchema
	kindHosts
)

type file struct {
	name string
	kind fileKind
	data []byte
}

// kindOf returns the kind of a file by its name. Any other name is an error and isn't ignored:
// a rule in "deny.ceder" must not get lost.
func kindOf(name string) (kind fileKind, ignore bool, err error) {
	switch {
	case strings.HasPrefix(name, ".") && !strings.HasSuffix(name, ".cedar"):
		return 0, true, nil // .git, editors' swap files
	case name == "README.md":
		return 0, true, nil
	case name == SchemaFile:
		return kindSchema, false, nil
	case strings.HasPrefix(name, "."):
	case strings.HasSuffix(name, ".cedar"):
		return kindPolicy, false, nil
	case strings.HasSuffix(name, ".test.json"):
		return kindTest, false, nil
	case strings.HasSuffix(name, hostsSuffix):
		if !egress.ListName(strings.TrimSuffix(name, hostsSuffix)) {
			return 0, false, errors.New("the name of a list of hosts has lower-case letters, digits and inner hyphens, 32 at most")
		}
		return kindHosts, false, nil
	}
	return 0, false, errors.New("not a policy (*.cedar), policy test (*.test.json), list of hosts (*.hosts), palyra.cedarschema or README.md")
}

// hintName is for a name that a policy directory may not have.
const hintName = "move the file out of the directory, or give it the name that it should have; a leading dot hides it"

// readDir reads the directory in one piece: the listings before and after must agree in every
// name, inode, size and time, or another process is changing it. os.Root refuses links out of
// the directory.
func readDir(dir string) ([]file, error) {
	root, err := openDir(dir)
	if err != nil {
		kind, reason := fault.BadState, "bad_file"
		if errors.Is(err, fs.ErrNotExist) {
			kind, reason = fault.NotFound, "bad_file"
		}
		return nil, fault.New(kind, reason, fmt.Sprintf("open policy directory %q", dir), errors.Unwrap(err)).
			WithHint("name an existing directory with *.cedar files; without one the built-in set is used")
	}
	defer root.Close()
	self, err := root.Stat(".")
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", fmt.Sprintf("stat policy directory %q", dir), err)
	}
	if err := onlyOursToWrite(self); err != nil {
		return nil, unsafe(dir, err)
	}
	before, err := list(root)
	if err != nil {
		return nil, err
	}
	var files []file
	total := 0
	for _, e := range before {
		f, err := readFile(root, e)
		if err != nil {
			return nil, err
		}
		if total += len(f.data); total > maxTotal {
			return nil, tooLarge(dir, fmt.Errorf("more than %d bytes in all", maxTotal))
		}
		files = append(files, f)
	}
	after, err := list(root)
	if err != nil {
		return nil, err
	}
	if !slices.EqualFunc(before, after, listed.same) {
		return nil, fault.New(fault.Busy, "policy_changed", fmt.Sprintf("read policy directory %q", dir), errors.New("changed while it was read"))
	}
	return files, nil
}

// openDir opens a directory. os.OpenRoot alone would wait at a FIFO for a writer.
func openDir(dir string) (*os.Root, error) {
	if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	return os.OpenRoot(dir)
}

type listed struct {
	name string
	kind fileKind
	info fs.FileInfo
}

func (a listed) same(b listed) bool {
	return a.name == b.name && os.SameFile(a.info, b.info) && a.info.Size() == b.info.Size() && a.info.ModTime().Equal(b.info.ModTime())
}

func list(root *os.Root) ([]listed, error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", "open policy directory", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(maxFiles + 1)
	if err != nil && err != io.EOF {
		return nil, fault.New(fault.BadState, "bad_file", "list policy directory", err)
	}
	if len(names) > maxFiles {
		return nil, tooLarge(root.Name(), fmt.Errorf("more than %d files", maxFiles))
	}
	slices.Sort(names)
	var out []listed
	for _, name := range names {
		kind, ignore, err := kindOf(name)
		if ignore {
			continue
		}
		if err != nil {
			return nil, fault.New(fault.BadState, "policy_invalid", fmt.Sprintf("%q", name), err).WithHint(hintName)
		}
		info, err := root.Stat(name) // follows links, but not out of the directory
		if err != nil {
			return nil, unsafe(name, err)
		}
		out = append(out, listed{name, kind, info})
	}
	return out, nil
}

func readFile(root *os.Root, e listed) (file, error) {
	// Non-blocking, so that a FIFO planted between stat and open can't hang us.
	f, err := root.OpenFile(e.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return file{}, unsafe(e.name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return file{}, unsafe(e.name, err)
	}
	if !info.Mode().IsRegular() {
		return file{}, unsafe(e.name, errors.New("not a regular file"))
	}
	if err := onlyOursToWrite(info); err != nil {
		return file{}, unsafe(e.name, err)
	}
	data, err := readLimited(f, info.Size(), e.name)
	return file{e.name, e.kind, data}, err
}

// readFS is readDir for a file system without owners.
func readFS(fsys fs.FS) ([]file, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fault.New(fault.BadState, "bad_file", "list policy directory", err)
	}
	var files []file
	for _, e := range entries {
		kind, ignore, err := kindOf(e.Name())
		if ignore {
			continue
		}
		if err != nil {
			return nil, fault.New(fault.BadState, "policy_invalid", fmt.Sprintf("%q", e.Name()), err).WithHint(hintName)
		}
		f, err := fsys.Open(e.Name())
		if err != nil {
			return nil, unsafe(e.Name(), err)
		}
		var size int64 // a claim: readLimited bounds the read all the same
		if info, err := f.Stat(); err == nil {
			size = info.Size()
		}
		data, err := readLimited(f, size, e.Name())
		f.Close()
		if err != nil {
			return nil, err
		}
		files = append(files, file{e.Name(), kind, data})
	}
	sortFiles(files)
	return files, nil
}

func sortFiles(files []file) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
}

func readLimited(r io.Reader, size int64, name string) ([]byte, error) {
	var data bytes.Buffer
	if size <= maxFile {
		data.Grow(int(max(size, 0)) + bytes.MinRead) // ReadFrom wants that much room
		if _, err := data.ReadFrom(io.LimitReader(r, maxFile+1)); err != nil {
			return nil, unsafe(name, err)
		}
		size = int64(data.Len())
	}
	if size > maxFile {
		return nil, tooLarge(name, fmt.Errorf("file is larger than %d bytes", maxFile))
	}
	return data.Bytes(), nil
}

func tooLarge(name string, err error) error {
	return fault.New(fault.BadState, "too_large", fmt.Sprintf("read policy %q", name), err).
		WithHint("split it into several files; a rule over many values belongs in one set literal")
}

func unsafe(name string, err error) error {
	return fault.New(fault.BadState, "unsafe_file", fmt.Sprintf("read policy %q", name), err).
		WithHint("policies must be regular files that only their owner can write, you or root: chmod go-w, chown")
}

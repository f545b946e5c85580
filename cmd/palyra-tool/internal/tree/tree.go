// Package tree reaches the files of an untrusted workspace.
//
// Programs that may be hostile have made everything in a workspace, and may change it while
// we look. A [Tree] is an open folder; nothing outside it can be reached through it,
// whatever is swapped for whatever meanwhile, because every name is resolved by os.Root,
// one element at a time, from descriptors. On top of that:
//
//   - Only [Tree.Open] follows symbolic links, and only those that stay beneath. A [Dir] is
//     reached through folders alone, and its methods follow none: a file approved by name
//     isn't written somewhere else.
//   - Only regular files are ever opened for reading. We look at a file first, open it
//     without waiting, and look again; a FIFO doesn't block us and a device doesn't notice
//     us.
//   - New content goes to a temporary file beside its destination, is flushed, and is put
//     in place by link(2) if nothing may be there, by rename(2) if it replaces a file. So a
//     file is its former self or its new one, at any moment and after any crash, and
//     another name of it (a hard link) keeps the former content.
//
// os.Root uses openat2 nowhere; it works where the filter of a cell refuses it.
//
// The package doesn't protect against another writer of the workspace that changes a file
// between our last look and the rename. The window is a few microseconds, and the change
// that is lost is one that we hadn't seen.
package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Tree is the open folder of a workspace. Close it.
type Tree struct{ root *os.Root }

// Open opens the folder.
func Open(name string) (*Tree, error) {
	r, err := os.OpenRoot(name)
	if err != nil {
		return nil, failure("open workspace", err)
	}
	return &Tree{r}, nil
}

// Close closes the folder.
func (t *Tree) Close() error { return t.root.Close() }

// Kind is the kind of thing that a name stands for.
type Kind string

// The kinds, as results spell them.
const (
	File      Kind = "file"
	Directory Kind = "directory"
	Symlink   Kind = "symlink"
	FIFO      Kind = "fifo"
	Socket    Kind = "socket"
	Device    Kind = "device"
)

// Stat describes a name or an open file.
type Stat struct {
	Kind     Kind
	Size     int64 // bytes
	Perm     fs.FileMode
	SetID    bool  // setuid or setgid
	Links    int64 // names that it has; 1 where the platform does not say
	Modified time.Time

	info    fs.FileInfo
	changed int64 // ctime in ns, 0 where the platform does not say
}

func newStat(fi fs.FileInfo) Stat {
	m := fi.Mode()
	s := Stat{Size: fi.Size(), Perm: m.Perm(), SetID: m&(fs.ModeSetuid|fs.ModeSetgid) != 0, Modified: fi.ModTime(), info: fi}
	s.Links, s.changed = extra(fi)
	switch {
	case m.IsRegular():
		s.Kind = File
	case m.IsDir():
		s.Kind = Directory
	case m&fs.ModeSymlink != 0:
		s.Kind = Symlink
	case m&fs.ModeNamedPipe != 0:
		s.Kind = FIFO
	case m&fs.ModeSocket != 0:
		s.Kind = Socket
	default:
		s.Kind = Device
	}
	return s
}

// Same reports whether both are one file.
func (s Stat) Same(o Stat) bool { return s.info != nil && o.info != nil && os.SameFile(s.info, o.info) }

// Unchanged reports whether both are one file that hasn't changed between the two looks, as
// far as its times and size tell.
func (s Stat) Unchanged(o Stat) bool {
	return s.Same(o) && s.Size == o.Size && s.Modified.Equal(o.Modified) && s.changed == o.changed && s.info.Mode() == o.info.Mode()
}

// Open opens a regular file for reading. It follows links as long as they stay beneath the
// workspace.
func (t *Tree) Open(name string) (*os.File, Stat, error) {
	op := fmt.Sprintf("open %q", name)
	fi, err := t.root.Stat(name)
	if err != nil {
		return nil, Stat{}, failure(op, err)
	}
	if err := regular(op, newStat(fi)); err != nil {
		return nil, Stat{}, err
	}
	f, err := t.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, Stat{}, failure(op, err)
	}
	return opened(op, f)
}

// opened looks at the file that was really opened.
func opened(op string, f *os.File) (*os.File, Stat, error) {
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, Stat{}, failure(op, err)
	}
	s := newStat(fi)
	if err := regular(op, s); err != nil {
		f.Close()
		return nil, Stat{}, err
	}
	return f, s, nil
}

func regular(op string, s Stat) error {
	switch s.Kind {
	case File:
		return nil
	case Directory:
		return fault.New(fault.NotFound, "bad_file", op, errors.New("is a folder"))
	case Symlink:
		return fault.New(fault.NotFound, "bad_file", op, errors.New("is a symbolic link, and no link is followed here"))
	}
	return fault.New(fault.NotFound, "bad_file", op, fmt.Errorf("is a %s, which tools do not open", s.Kind))
}

// Dir opens a folder without following any link on the way.
func (t *Tree) Dir(name string) (*Dir, error) {
	d, err := (&Dir{root: t.root}).sub(".", ".")
	if err != nil || name == "." {
		return d, err
	}
	at := ""
	for e := range strings.SplitSeq(name, "/") {
		at = join(at, e)
		next, err := d.sub(e, at)
		d.Close()
		if err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

func join(dir, name string) string {
	if dir == "" || dir == "." {
		return name
	}
	return dir + "/" + name
}

// Split returns the folder and the last element of a path.
func Split(name string) (dir, base string) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return ".", name
}

// Dir is an open folder. Its methods take single names and follow no link.
type Dir struct {
	root *os.Root
	path string // below the workspace, for messages
}

// Close closes the folder.
func (d *Dir) Close() error { return d.root.Close() }

// Path returns the path of something in the folder, below the workspace.
func (d *Dir) Path(base string) string { return join(d.path, base) }

// Sub opens a folder in the folder.
func (d *Dir) Sub(base string) (*Dir, error) { return d.sub(base, d.Path(base)) }

func (d *Dir) sub(base, path string) (*Dir, error) {
	op := fmt.Sprintf("open folder %q", path)
	fi, err := d.root.Lstat(base)
	if err != nil {
		return nil, failure(op, err)
	}
	switch s := newStat(fi); s.Kind {
	case Directory:
	case Symlink:
		return nil, regular(op, s)
	default:
		return nil, fault.New(fault.NotFound, "bad_file", op, fmt.Errorf("is a %s", s.Kind))
	}
	// "/." makes os.Root open the name itself with O_DIRECTORY, so that a FIFO put there
	// meanwhile doesn't make us wait. Nor does a link put there fool us: the opened file
	// must be the one we looked at.
	r, err := d.root.OpenRoot(base + "/.")
	if err != nil {
		return nil, failure(op, err)
	}
	got, err := r.Stat(".")
	if err == nil && !os.SameFile(fi, got) {
		err = errSwapped
	}
	if err != nil {
		r.Close()
		return nil, failure(op, err)
	}
	return &Dir{r, path}, nil
}

// errSwapped says that a name changed its meaning while we looked.
var errSwapped = errors.New("became something else meanwhile")

// Stat looks at a name.
func (d *Dir) Stat(base string) (Stat, error) {
	fi, err := d.root.Lstat(base)
	if err != nil {
		return Stat{}, failure(fmt.Sprintf("look at %q", d.Path(base)), err)
	}
	return newStat(fi), nil
}

// Target returns where a symbolic link points, as it is written there.
func (d *Dir) Target(base string) (string, error) {
	s, err := d.root.Readlink(base)
	if err != nil {
		return "", failure(fmt.Sprintf("read link %q", d.Path(base)), err)
	}
	return s, nil
}

// Open opens a regular file of the folder for reading.
func (d *Dir) Open(base string) (*os.File, Stat, error) {
	op := fmt.Sprintf("open %q", d.Path(base))
	before, err := d.Stat(base)
	if err != nil {
		return nil, Stat{}, err
	}
	if err := regular(op, before); err != nil {
		return nil, Stat{}, err
	}
	f, err := d.root.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, Stat{}, failure(op, err)
	}
	f, s, err := opened(op, f)
	if err == nil && !s.Same(before) {
		f.Close()
		return nil, Stat{}, failure(op, errSwapped)
	}
	return f, s, err
}

// Names returns the names in the folder, sorted by bytes. If there are more than
// limit, it returns so many of them and says so; which ones is up to the file
// system.
func (d *Dir) Names(limit int) (names []string, more bool, err error) {
	op := fmt.Sprintf("read folder %q", d.path)
	f, err := d.root.Open(".")
	if err != nil {
		return nil, false, failure(op, err)
	}
	defer f.Close()
	for len(names) <= limit {
		some, err := f.Readdirnames(1024)
		names = append(names, some...)
		if len(some) == 0 {
			break
		}
		if err != nil {
			return nil, false, failure(op, err)
		}
	}
	if more = len(names) > limit; more {
		names = names[:limit]
	}
	slices.Sort(names)
	return names, more, nil
}

// failure gives an error of the file system a kind and a reason. The names in
// os's errors are left out: op has them.
func failure(op string, err error) error {
	if fault.ReasonOf(err) != "" {
		return err
	}
	cause := err
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		cause = pe.Err
	} else if le, ok := errors.AsType[*os.LinkError](err); ok {
		cause = le.Err
	}
	kind, reason := fault.Unavailable, "io_error"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind, reason = fault.NotFound, "not_found"
	case errors.Is(err, fs.ErrExist):
		kind, reason = fault.Busy, "exists"
	case errors.Is(err, fs.ErrPermission):
		kind, reason = fault.Refused, "permission_denied"
	case errors.Is(err, errSwapped):
		kind, reason = fault.Busy, "changed"
	case errors.Is(err, syscall.ELOOP):
		kind, reason = fault.NotFound, "bad_file"
	case errors.Is(err, syscall.ENOTDIR):
		kind, reason = fault.NotFound, "bad_file"
	case errors.Is(err, syscall.EISDIR):
		kind, reason = fault.NotFound, "bad_file"
	case errors.Is(err, syscall.ENAMETOOLONG):
		kind, reason = fault.NotFound, "invalid_input"
	case errors.Is(err, syscall.EROFS):
		kind, reason = fault.Refused, "read_only"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		reason = "disk_full"
	case cause.Error() == escapes:
		kind, reason = fault.Refused, "outside_workspace"
		cause = errors.New("a link leads out of the workspace")
	}
	return fault.New(kind, reason, op, cause)
}

// escapes is the text of the error that os.Root returns for a name that leads
// out. The standard library exports no value to compare with.
const escapes = "path escapes from parent"

// IsLeftover reports whether a name is that of a temporary file of ours.
func IsLeftover(base string) bool {
	return strings.HasPrefix(base, tempPrefix) && strings.HasSuffix(base, tempSuffix)
}

// Show spells a path for a result.
func Show(name string) string { return toolproto.Escape(name) }

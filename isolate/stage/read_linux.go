package stage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/internal/sys"
)

// opaque is the attribute by which overlayfs says that a folder of the upper layer hides the
// lower one's content: overlayfs.rst, "userxattr". A program can't set it, because overlayfs
// escapes the name.
const opaque = "user.overlay.opaque"

// Read reads the changes in the upper folder of a layer against the workspace. Both are open
// folders. made is when the layer was made.
func Read(ctx context.Context, upper, workspace *os.File, made time.Time, l Limits) (*List, error) {
	r := &reader{ctx: ctx, left: l.orDefaults(), made: made, buf: make([]byte, 64<<10), list: List{Version: Version, Changes: []Change{}}}
	up, err := sys.OpenBeneath(int(upper.Fd()), ".")
	if err != nil {
		return nil, unreadable(".", err)
	}
	defer sys.Close(up)
	low, err := sys.OpenBeneath(int(workspace.Fd()), ".")
	if err != nil {
		return nil, fault.New(fault.Usage, "workspace_unusable", "read the workspace", err)
	}
	defer sys.Close(low)
	r.namedBy(low, workspace.Name())
	if err := r.folder(up, low, ""); err != nil {
		return nil, err
	}
	r.list.sort()
	if err := r.git(up, low); err != nil {
		return nil, err
	}
	return &r.list, nil
}

const readOp = "read the layer"

func unreadable(name string, err error) error {
	switch {
	case errors.Is(err, syscall.EFBIG):
		return tooLarge("%q: it has more content than is read at once", toolproto.Escape(name))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Canceled, "canceled", readOp, err)
	}
	f := fault.New(fault.Unavailable, "io_error", fmt.Sprintf("%s at %q", readOp, toolproto.Escape(name)), err)
	if errors.Is(err, fs.ErrPermission) { // palyra isn't root, and the program is palyra's user
		return f.WithHint("if a call took its owner's right to read it, another one gives it back: chmod -R u+rwX .; palyra changes discard throws the layer away")
	}
	return f
}

func tooLarge(format string, args ...any) error {
	return fault.New(fault.Usage, "too_large", readOp, fmt.Errorf(format, args...)).
		WithHint("palyra changes discard throws the layer away")
}

type reader struct {
	ctx  context.Context
	left Limits // what may still be looked at
	made time.Time
	buf  []byte
	list List

	named []namedPath // on the host, before the layer is read
}

// each calls f for the names of a folder, in the folder's order.
func (r *reader) each(fd int, f func(name string) error) error {
	for {
		if err := r.ctx.Err(); err != nil {
			return fault.New(fault.Canceled, "canceled", readOp, context.Cause(r.ctx))
		}
		names, err := sys.NextNames(fd, r.buf)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}

// names returns the names of a folder, sorted, and takes them from the limits.
func (r *reader) names(fd int) ([]string, error) {
	var all []string
	err := r.each(fd, func(name string) error {
		if all = append(all, name); len(all) > r.left.Entries {
			return tooLarge("it has more changes than are read at once")
		}
		return nil
	})
	r.left.Entries -= len(all)
	slices.Sort(all)
	return all, err
}

// folder compares a folder of the layer with that of the workspace, -1 for none.
func (r *reader) folder(up, low int, prefix string) error {
	if r.left.Depth--; r.left.Depth < 0 {
		return tooLarge("%q: too many folders within each other", toolproto.Escape(prefix))
	}
	defer func() { r.left.Depth++ }()
	hides, err := sys.Attribute(up, opaque)
	if err != nil {
		return unreadable(prefix, err)
	}
	names, err := r.names(up)
	if err != nil {
		return r.failed(prefix, err)
	}
	first := len(r.list.Changes)
	for _, name := range names {
		if err := r.name(up, low, prefix, name); err != nil {
			return err
		}
	}
	layers, hosts := 0, 0 // the parts of a repository that either has
	for _, name := range names {
		layers |= toolproto.RepositoryPart(name)
	}
	folds := r.folds(first, prefix)
	if low >= 0 {
		// The workspace's own names may be any number, and none is kept.
		err := r.each(low, func(name string) error {
			hosts |= toolproto.RepositoryPart(name)
			if _, both := slices.BinarySearch(names, name); hides != "" && !both {
				return r.deleted(low, prefix, name)
			}
			folds.other(name)
			return nil
		})
		if err != nil {
			return r.failed(prefix, err)
		}
	}
	for i := first; i < len(r.list.Changes); i++ {
		c := &r.list.Changes[i]
		if c.in == len(prefix) && c.Kind == Create && folds.alike(c.raw[c.in:]) {
			c.Marks = append(c.Marks, Mark{MarkCase, toolproto.MarkWhy(MarkCase)})
		}
	}
	// Names that the layer hides may count too much.
	if toolproto.HasRepository(layers | hosts) {
		r.markRepository(first, prefix, !toolproto.HasRepository(hosts))
	}
	return nil
}

// markRepository marks the configuration and hooks of a folder that git takes for a repository,
// and if the layer made it one, what does: its configuration may have come before, when it was
// none.
func (r *reader) markRepository(first int, prefix string, made bool) {
	for i := first; i < len(r.list.Changes); i++ {
		c := &r.list.Changes[i]
		name := c.raw[len(prefix):]
		f, ok := toolproto.PlantedRepository(name)
		if !ok && made && c.New != nil && toolproto.RepositoryPart(name) != 0 && !toolproto.InGit(c.raw) {
			f, ok = toolproto.Flag{Kind: toolproto.PlaceGit, Why: "git takes the folder for a repository, and obeys its configuration and hooks"}, true
		}
		if ok && !slices.ContainsFunc(c.Marks, func(m Mark) bool { return m.Kind == f.Kind }) {
			c.Marks = append(c.Marks, Mark{f.Kind, f.Why})
		}
	}
}

// folds counts the names of a folder that a file system without case takes for those of the
// changes in it.
type folds struct {
	own   map[string]bool
	names map[string]int // by the name in lower case
}

// folds returns the count of the changes from first on that are in the folder prefix.
func (r *reader) folds(first int, prefix string) folds {
	f := folds{make(map[string]bool), make(map[string]int)}
	for i := first; i < len(r.list.Changes); i++ {
		c := &r.list.Changes[i]
		if c.in != len(prefix) {
			continue
		}
		name := c.raw[c.in:]
		f.own[name] = true
		if n := strings.ToLower(name); c.Kind == Delete {
			f.names[n] += 0
		} else {
			f.names[n]++
		}
	}
	return f
}

// other counts a name of the workspace.
func (f folds) other(name string) {
	if f.own[name] {
		return
	}
	if n, known := f.names[strings.ToLower(name)]; known {
		f.names[strings.ToLower(name)] = n + 1
	}
}

func (f folds) alike(name string) bool { return f.names[strings.ToLower(name)] > 1 }

func (r *reader) failed(prefix string, err error) error {
	if fault.KindOf(err) != fault.Internal {
		return err
	}
	return unreadable(prefix, err)
}

// name compares one name of the layer with that of the workspace.
func (r *reader) name(up, low int, prefix, name string) error {
	at := prefix + name
	u, err := sys.EntryAt(up, name)
	if err != nil {
		return unreadable(at, err)
	}
	if u.Whiteout {
		return r.deleted(low, prefix, name)
	}
	var l *sys.Entry
	if low >= 0 {
		e, err := sys.EntryAt(low, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unreadable(at, err)
		}
		if err == nil && !e.Whiteout { // such a device in the workspace hides itself
			l = &e
		}
	}
	bothFolders := l != nil && isFolder(u) && isFolder(*l)
	if l != nil && isFolder(*l) && !isFolder(u) {
		if err := r.emptied(low, at, name); err != nil {
			return err
		}
	}
	now, err := r.node(up, name, u)
	if err != nil {
		return unreadable(at, err)
	}
	var old *Node
	stale := false
	if l != nil {
		if old, err = r.node(low, name, *l); err != nil {
			return unreadable(at, err)
		}
		stale = !bothFolders && l.Changed.After(r.made)
	}
	if err := r.add(at, old, now, stale); err != nil {
		return err
	}
	if !isFolder(u) {
		return nil
	}
	sub, err := sys.OpenBeneath(up, name)
	if err != nil {
		return unreadable(at, err)
	}
	defer sys.Close(sub)
	beneath := -1
	if bothFolders {
		if beneath, err = sys.OpenBeneath(low, name); err != nil {
			return unreadable(at, err)
		}
		defer sys.Close(beneath)
	}
	return r.folder(sub, beneath, at+"/")
}

func isFolder(e sys.Entry) bool { return e.Mode&sys.TypeMask == sys.TypeFolder }

// deleted adds a name of the workspace that the layer hides, and all that lies beneath.
func (r *reader) deleted(low int, prefix, name string) error {
	if low < 0 {
		return nil
	}
	at := prefix + name
	e, err := sys.EntryAt(low, name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && e.Whiteout {
		return nil // the host has deleted it, too
	}
	if err != nil {
		return unreadable(at, err)
	}
	old, err := r.node(low, name, e)
	if err != nil {
		return unreadable(at, err)
	}
	if err := r.add(at, old, nil, !isFolder(e) && e.Changed.After(r.made)); err != nil {
		return err
	}
	if !isFolder(e) {
		return nil
	}
	return r.emptied(low, at, name)
}

// emptied adds all that lies beneath a folder of the workspace as deleted.
func (r *reader) emptied(low int, at, name string) error {
	if r.left.Depth--; r.left.Depth < 0 {
		return tooLarge("%q: too many folders within each other", toolproto.Escape(at))
	}
	defer func() { r.left.Depth++ }()
	sub, err := sys.OpenBeneath(low, name)
	if err != nil {
		return unreadable(at, err)
	}
	defer sys.Close(sub)
	names, err := r.names(sub)
	if err != nil {
		return r.failed(at, err)
	}
	for _, n := range names {
		if err := r.deleted(sub, at+"/", n); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) add(name string, old, now *Node, stale bool) error {
	kind := kindOf(old, now)
	if kind == "" {
		return nil
	}
	c := Change{Path: toolproto.Escape(name), Kind: kind, Old: old, New: now, Stale: stale, raw: name, in: strings.LastIndexByte(name, '/') + 1}
	r.left.Names -= int64(len(c.Path))
	for _, n := range []*Node{old, now} {
		if n != nil {
			r.left.Names -= int64(len(n.Target))
		}
	}
	if r.left.Names < 0 {
		return tooLarge("its names and the targets of its links are longer than is read at once")
	}
	c.Marks = marksOf(name, old, now)
	for _, m := range r.mark(name, now != nil && now.Type == Directory) {
		if !slices.ContainsFunc(c.Marks, func(x Mark) bool { return x.Kind == m.Kind }) {
			c.Marks = append(c.Marks, m)
		}
	}
	r.list.Changes = append(r.list.Changes, c)
	return nil
}

// node describes a name. The content of a file that can't be opened for its mode has no digest.
func (r *reader) node(dir int, name string, e sys.Entry) (*Node, error) {
	n := &Node{Mode: fmt.Sprintf("%04o", e.Mode&0o7777)}
	switch e.Mode & sys.TypeMask {
	case sys.TypeFolder:
		n.Type = Directory
	case sys.TypeLink:
		target, err := sys.LinkBeneath(dir, name)
		if err != nil {
			return nil, err
		}
		n.Type, n.Mode, n.Target = Symlink, "0777", toolproto.Escape(target)
	case sys.TypeFIFO:
		n.Type = FIFO
	case sys.TypeSocket:
		n.Type = Socket
	case sys.TypeFile:
		n.Type = File
		f, err := sys.FileBeneath(dir, name)
		if errors.Is(err, fs.ErrPermission) {
			n.Size = e.Size
			return n, nil
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		h := sha256.New()
		// The size may grow meanwhile: the limit is held by what is read.
		if n.Size, err = io.CopyBuffer(h, &metered{r, f}, r.buf); err != nil {
			return nil, err
		}
		h.Sum(n.Digest[:0])
	default:
		n.Type = Device
	}
	return n, nil
}

// metered is a file that is read on account of the limits.
type metered struct {
	r *reader
	f *os.File
}

func (m *metered) Read(b []byte) (int, error) {
	if err := m.r.ctx.Err(); err != nil {
		return 0, context.Cause(m.r.ctx)
	}
	n, err := m.f.Read(b)
	if m.r.left.Bytes -= int64(n); m.r.left.Bytes < 0 {
		return n, syscall.EFBIG
	}
	return n, err
}

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
	if err := r.folder(up, low, ""); err != nil {
		return nil, err
	}
	r.list.sort()
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
	return fault.New(fault.Unavailable, "layer_unreadable", fmt.Sprintf("%s at %q", readOp, toolproto.Escape(name)), err)
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
}

// names returns the names of a folder, sorted.
func (r *reader) names(fd int) ([]string, error) {
	var all []string
	for {
		if err := r.ctx.Err(); err != nil {
			return nil, fault.New(fault.Canceled, "canceled", readOp, context.Cause(r.ctx))
		}
		names, err := sys.NextNames(fd, r.buf)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			slices.Sort(all)
			return all, nil
		}
		if all = append(all, names...); len(all) > r.left.Entries {
			return nil, tooLarge("it has more changes than are read at once")
		}
	}
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
	if r.left.Entries -= len(names); r.left.Entries < 0 {
		return tooLarge("it has more changes than are read at once")
	}
	first := len(r.list.Changes)
	for _, name := range names {
		if err := r.name(up, low, prefix, name); err != nil {
			return err
		}
	}
	if low < 0 {
		r.markCase(first, prefix, nil)
		r.markRepository(first, prefix, names)
		return nil
	}
	others, err := r.below(low)
	if err != nil {
		return r.failed(prefix, err)
	}
	if hides != "" {
		for _, name := range others {
			if _, both := slices.BinarySearch(names, name); both {
				continue
			}
			if err := r.deleted(low, prefix, name); err != nil {
				return err
			}
		}
	}
	r.markCase(first, prefix, others)
	r.markRepository(first, prefix, append(names, others...))
	return nil
}

// markRepository marks the configuration and hooks of a folder that git takes for a repository.
// names are those of layer and workspace: one that the layer hides may count too much.
func (r *reader) markRepository(first int, prefix string, names []string) {
	if !toolproto.IsRepository(names) {
		return
	}
	for i := first; i < len(r.list.Changes); i++ {
		c := &r.list.Changes[i]
		if f, ok := toolproto.PlantedRepository(strings.TrimPrefix(c.raw, prefix)); ok && !slices.Contains(c.Marks, Mark{f.Kind, f.Why}) {
			c.Marks = append(c.Marks, Mark{f.Kind, f.Why})
		}
	}
}

// below returns the names of a folder of the workspace. They are the workspace's own and cost
// no share of the limits until they are changes.
func (r *reader) below(low int) ([]string, error) {
	left := r.left
	r.left.Entries = 1 << 20
	defer func() { r.left = left }()
	return r.names(low)
}

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
	r.add(at, old, now, stale)
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
	r.add(at, old, nil, !isFolder(e) && e.Changed.After(r.made))
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
	if r.left.Entries -= len(names); r.left.Entries < 0 {
		return tooLarge("it has more changes than are read at once")
	}
	for _, n := range names {
		if err := r.deleted(sub, at+"/", n); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) add(name string, old, now *Node, stale bool) {
	kind := kindOf(old, now)
	if kind == "" {
		return
	}
	r.list.Changes = append(r.list.Changes, Change{Path: toolproto.Escape(name), Kind: kind, Old: old, New: now,
		Stale: stale, Marks: marksOf(name, now), raw: name})
}

// markCase marks new names that a file system without case would take for another name of the
// folder. others are those of the workspace.
func (r *reader) markCase(first int, prefix string, others []string) {
	folded := make(map[string]int)
	seen := make(map[string]bool)
	count := func(name string) {
		if !seen[name] {
			seen[name] = true
			folded[strings.ToLower(name)]++
		}
	}
	for _, name := range others {
		count(name)
	}
	own := func(c *Change) (string, bool) {
		rest, ok := strings.CutPrefix(c.raw, prefix)
		return rest, ok && !strings.Contains(rest, "/")
	}
	for i := first; i < len(r.list.Changes); i++ {
		if name, ok := own(&r.list.Changes[i]); ok {
			count(name)
			if r.list.Changes[i].Kind == Delete {
				folded[strings.ToLower(name)]--
			}
		}
	}
	for i := first; i < len(r.list.Changes); i++ {
		c := &r.list.Changes[i]
		if name, ok := own(c); ok && c.Kind == Create && folded[strings.ToLower(name)] > 1 {
			c.Marks = append(c.Marks, Mark{MarkCase, toolproto.MarkWhy(MarkCase)})
		}
	}
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

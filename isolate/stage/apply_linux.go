package stage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/internal/sys"
)

const (
	pendingFile = "pending.json"
	appliedFile = "applied.json"
	keptPrefix  = "kept-"
	nextName    = "upper.next" // what is left in the upper folder once it is emptied
	doneName    = "upper.done" // the former upper folder
	keptIndex   = "index"      // in a kept folder: the host's former index
)

// Prepare reads the layer's changes with their content. Every change must be one that can be
// applied.
func (l *Layer) Prepare(ctx context.Context) (*Effect, error) {
	list, err := l.Read(ctx, l.Limits)
	if err != nil {
		return nil, err
	}
	if err := list.Appliable(); err != nil {
		return nil, err
	}
	e := &Effect{List: list, Source: l.Source}
	err = l.within(func(upper, workspace *os.File) error {
		var count lineCounter
		skipped, err := list.Patch(ctx, &count, upper, workspace, "", false)
		if err != nil {
			return err
		}
		if e.Lines, e.Bytes = count.lines, count.bytes; slices.ContainsFunc(skipped, func(s Skipped) bool { return s.Why == SkipBinary || s.Why == SkipLong }) {
			e.Lines = -1
		}
		return e.pack(toolproto.ChangesApply, func(c *Change, _ int) ([]byte, error) { return contentBeneath(upper, c.raw, c.New) })
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// PrepareUndo reads the list that takes back what was applied last, with its content.
func (l *Layer) PrepareUndo(ctx context.Context) (*Effect, error) {
	list, was, err := l.undo()
	if err != nil {
		return nil, err
	}
	kept := filepath.Join(l.path, keptPrefix+was.ID)
	e := &Effect{List: list, Lines: -1, Source: l.Source}
	numbers := make(map[string]int)
	for i, c := range was.List.Changes {
		numbers[c.Path] = i
	}
	if err := e.pack(toolproto.ChangesUndo, func(c *Change, _ int) ([]byte, error) {
		b, err := durable.ReadPrivate(filepath.Join(kept, strconv.Itoa(numbers[c.Path])), toolproto.MaxApplied)
		if err == nil && canon.Sum(b) != c.New.Digest {
			err = errors.New("it has another digest")
		}
		if err != nil {
			return nil, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read the former %q", c.Path), err)
		}
		return b, nil
	}); err != nil {
		return nil, err
	}
	return e, nil
}

// Undo reads the list that takes back what was applied last, fault.NotFound if nothing was.
func (l *Layer) Undo() (*List, error) {
	list, _, err := l.undo()
	return list, err
}

func (l *Layer) undo() (*List, *Record, error) {
	was, err := l.record(appliedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("undo layer %q", l.Name), errors.New("nothing was applied from it")).
			WithHint("palyra changes apply " + l.Name + " applies its changes")
	}
	if err != nil {
		return nil, nil, err
	}
	list := inverse(&was.List)
	err = l.within(func(_, workspace *os.File) (err error) {
		list.Git, err = inverseGit(was.List.Git, workspace, l.Limits, func() ([]byte, error) {
			return durable.ReadPrivate(filepath.Join(l.path, keptPrefix+was.ID, keptIndex), toolproto.MaxApplied)
		})
		return err
	})
	if err != nil {
		if fault.ReasonOf(err) == "" {
			err = fault.New(fault.Unavailable, "io_error", fmt.Sprintf("undo layer %q", l.Name), err)
		}
		return nil, nil, err
	}
	return list, was, nil
}

// pack makes the payload.
func (e *Effect) pack(tool string, content func(c *Change, i int) ([]byte, error)) error {
	line, err := e.List.canonical()
	if err != nil {
		return err
	}
	e.Record = Record{Version: Version, ID: rand.Text(), Tool: tool, Digest: canon.Sum(line), List: e.List.plain()}
	var b bytes.Buffer
	b.Grow(e.size(len(line)))
	b.Write(line)
	b.WriteByte('\n')
	for i := range e.List.Changes {
		c := &e.List.Changes[i]
		if c.New == nil || c.New.Type != File || toolproto.InGit(c.raw) {
			continue
		}
		text, err := content(c, i)
		if err != nil {
			return err
		}
		b.Write(text)
	}
	b.Write(e.List.Git.payload())
	e.Payload = b.Bytes()
	return nil
}

// size returns how long the payload is at most, behind a list of so many bytes.
func (e *Effect) size(list int) int {
	n := int64(list + 1)
	for i := range e.List.Changes {
		if c := e.List.Changes[i].New; c != nil && c.Type == File {
			n += c.Size
		}
	}
	if g := e.List.Git; !g.empty() {
		n += int64(len(g.packed) + len(g.index) + len(g.pack))
	}
	return int(min(n, 2*toolproto.MaxApplied))
}

// contentBeneath reads a file that the list describes.
func contentBeneath(dir *os.File, name string, n *Node) ([]byte, error) {
	gone := func(err error) error {
		return fault.New(fault.Unavailable, "changed", fmt.Sprintf("read %q", toolproto.Escape(name)), err).WithHint("run it again")
	}
	parent, base := path.Split(name)
	at, err := sys.FolderBeneath(int(dir.Fd()), path.Join(".", parent))
	if err != nil {
		return nil, gone(err)
	}
	defer at.Close()
	f, err := sys.FileBeneath(int(at.Fd()), base)
	if err != nil {
		return nil, gone(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, n.Size+1))
	if err == nil && canon.Sum(b) != n.Digest {
		err = errors.New("it is not the file that was listed")
	}
	if err != nil {
		return nil, gone(err)
	}
	return b, nil
}

func (l *Layer) step(name string) {
	if l.testOnlyStep != nil {
		l.testOnlyStep(name)
	}
}

// openUnfinished is Open for a layer whose changes may be half applied.
func openUnfinished(state, name string) (*Layer, *Record, error) {
	l, err := locked(state, name)
	if err != nil {
		return nil, nil, err
	}
	if l.Info, err = readInfo(l.path, name); err != nil {
		l.Close()
		return nil, nil, err
	}
	r, err := l.record(pendingFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, nil, nil
	case err == nil && r.Done:
		r, err = nil, l.finish(r)
	}
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, r, nil
}

// OpenUnfinished locks a layer whose changes may be half applied. What is missing is for
// palyra-tool to do, with the Effect, which is nil if nothing is.
func OpenUnfinished(state, name string) (*Layer, *Effect, error) {
	l, r, err := openUnfinished(state, name)
	if err != nil || r == nil {
		return l, nil, err
	}
	line, err := canon.Marshal(&r.List)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, &Effect{Record: *r, Payload: append(line, '\n'), Source: l.Source}, nil
}

// Applied reports whether there is something to undo.
func (l *Layer) Applied() bool {
	r, err := l.record(appliedFile)
	return err == nil && r != nil
}

func (l *Layer) record(file string) (*Record, error) {
	op := fmt.Sprintf("read what was applied from layer %q", l.Name)
	b, err := durable.ReadPrivate(filepath.Join(l.path, file), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var r Record
	if err == nil {
		err = canon.Decode(b, &r, canon.Limits{Bytes: maxRecord, Depth: 8})
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, err).WithHint("palyra changes discard removes it")
	}
	return &r, nil
}

func (l *Layer) write(file string, r *Record) error {
	b, err := canon.Marshal(r)
	if err == nil && len(b) > maxRecord {
		return fault.New(fault.Refused, "too_large", "record the changes", fmt.Errorf("%d bytes, at most %d", len(b), maxRecord))
	}
	if err == nil {
		err = durable.WriteFile(filepath.Join(l.path, file), b, 0o600)
	}
	if err != nil {
		return durable.Fault("record the changes", err)
	}
	return nil
}

// Begin records, durably, that a prepared list is about to be brought to the workspace, with
// the content that it replaces. The layer must still hold exactly this list.
func (l *Layer) Begin(ctx context.Context, e *Effect) error {
	if e.Record.Tool == toolproto.ChangesApply {
		list, err := l.Read(ctx, l.Limits)
		if err != nil {
			return err
		}
		if err := e.List.same(list); err != nil {
			return err
		}
	}
	kept := filepath.Join(l.path, keptPrefix+e.Record.ID)
	if err := os.Mkdir(kept, 0o700); err != nil {
		return durable.Fault("keep what is replaced", err)
	}
	err := l.within(func(_, workspace *os.File) error {
		for i := range e.List.Changes {
			c := &e.List.Changes[i]
			if c.Old == nil || c.Old.Type != File || toolproto.InGit(c.raw) {
				continue
			}
			b, err := contentBeneath(workspace, c.raw, c.Old)
			if err != nil {
				return fault.New(fault.Busy, "changed", fmt.Sprintf("apply %q", c.Path), errors.New("it is not what the list says that it was"))
			}
			if err := durable.WriteFile(filepath.Join(kept, strconv.Itoa(i)), b, 0o600); err != nil {
				return durable.Fault("keep what is replaced", err)
			}
		}
		if g := e.List.Git; g.empty() || g.Index == nil {
			return nil
		}
		b, err := hostIndex(workspace)
		if err == nil && b != nil {
			err = durable.WriteFile(filepath.Join(kept, keptIndex), b, 0o600)
		}
		if err != nil {
			return durable.Fault("keep the index", err)
		}
		return nil
	})
	l.step("kept")
	if err == nil {
		err = l.write(pendingFile, &e.Record)
	}
	if err != nil {
		os.RemoveAll(kept)
	}
	return err
}

// End records what became of the list: it's all in the workspace, or nothing of it is.
func (l *Layer) End(applied bool) error {
	r, err := l.record(pendingFile)
	if err != nil {
		return err
	}
	if !applied {
		if err := os.Remove(filepath.Join(l.path, pendingFile)); err != nil {
			return durable.Fault("forget the changes", err)
		}
		if err := durable.SyncDir(l.path); err != nil {
			return durable.Fault("forget the changes", err)
		}
		return os.RemoveAll(filepath.Join(l.path, keptPrefix+r.ID))
	}
	if !r.Done {
		r.Done = true
		if err := l.write(pendingFile, r); err != nil {
			return err
		}
	}
	l.step("done")
	return l.finish(r)
}

// finish empties a layer whose changes were applied: from then on the workspace's own files are
// seen through it again. Each step can be taken again.
func (l *Layer) finish(r *Record) error {
	if r.Tool == toolproto.ChangesApply {
		if err := l.empty(r); err != nil {
			return fault.New(fault.BadState, "state_io", fmt.Sprintf("empty layer %q", l.Name), err).WithHint("palyra changes discard removes it")
		}
	}
	// What a layer takes from now on isn't stale because of what was applied or undone.
	if r.Tool == toolproto.ChangesApply || l.Empty() {
		l.Made = time.Now().UTC()
		b, err := canon.Marshal(&l.Info)
		if err == nil {
			err = durable.WriteFile(filepath.Join(l.path, infoFile), b, 0o600)
		}
		if err != nil {
			return durable.Fault("empty the layer", err)
		}
	}
	l.step("emptied")
	if err := os.Rename(filepath.Join(l.path, pendingFile), filepath.Join(l.path, appliedFile)); err != nil {
		return durable.Fault("record the changes", err)
	}
	if err := durable.SyncDir(l.path); err != nil {
		return durable.Fault("record the changes", err)
	}
	entries, _ := os.ReadDir(l.path) // what stays takes space until the next time
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), keptPrefix); ok && id != r.ID {
			os.RemoveAll(filepath.Join(l.path, e.Name()))
		}
	}
	return nil
}

// empty replaces the upper folder by one that has git's own names alone. They move first.
func (l *Layer) empty(r *Record) error {
	upper, next, done := filepath.Join(l.path, upperName), filepath.Join(l.path, nextName), filepath.Join(l.path, doneName)
	if _, err := os.Lstat(done); errors.Is(err, fs.ErrNotExist) {
		gits := inverseOf(&r.List).gits(r.List.Git != nil)
		if hidden, err := l.hidesGit(gits); err != nil || hidden {
			return err // the layer stays as it is: it hides git's own names by a folder's mark
		}
		if err := l.fill(next, gits); err != nil {
			return err
		}
		l.step("filled")
		if err := os.Rename(upper, done); err != nil {
			return err
		}
		l.step("moved")
	} else if err != nil {
		return err
	}
	if err := os.Rename(next, upper); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.step("replaced")
	f, err := os.OpenFile(done, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return sys.RemoveTree(done, f)
}

// inverseOf returns a list with the names of a record's.
func inverseOf(was *toolproto.ChangeList) *List {
	l := &List{Version: was.Version}
	for _, c := range was.Changes {
		if raw, err := toolproto.ParsePath(c.Path); err == nil {
			l.Changes = append(l.Changes, Change{Path: c.Path, raw: raw})
		}
	}
	return l
}

// hidesGit reports whether a folder above one of the names hides the workspace's content.
func (l *Layer) hidesGit(gits []string) (bool, error) {
	for _, g := range gits {
		at, err := sys.OpenBeneath(int(l.dir.Fd()), upperName)
		if err != nil {
			return false, err
		}
		for name := range strings.SplitSeq(g, "/") {
			hides, err := sys.Attribute(at, opaque)
			if err != nil || hides != "" {
				sys.Close(at)
				return hides != "", err
			}
			next, err := sys.OpenBeneath(at, name)
			if err != nil {
				break // moved by now, or no folder
			}
			sys.Close(at)
			at = next
		}
		sys.Close(at)
	}
	return false, nil
}

// fill makes the next upper folder, and moves git's own names into it.
func (l *Layer) fill(next string, gits []string) error {
	upper, err := os.OpenRoot(filepath.Join(l.path, upperName))
	if err != nil {
		return err
	}
	defer upper.Close()
	if err := os.Mkdir(next, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	into, err := os.OpenRoot(next)
	if err != nil {
		return err
	}
	defer into.Close()
	if err := likeness(upper, into, "."); err != nil {
		return err
	}
	for _, g := range gits {
		parent, base := path.Split(g)
		parent = path.Join(".", parent)
		at := "."
		for e := range strings.SplitSeq(parent, "/") {
			if at = path.Join(at, e); at == "." {
				continue
			}
			if err := into.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := likeness(upper, into, at); err != nil {
				return err
			}
		}
		from, err := upper.Open(parent)
		if err != nil {
			return err
		}
		to, err := into.Open(parent)
		if err != nil {
			from.Close()
			return err
		}
		err = sys.MoveBeneath(int(from.Fd()), base, int(to.Fd()), base)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // moved by now, or the layer has none of its own
		}
		from.Close()
		to.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// likeness gives a folder the mode and owner that its namesake has.
func likeness(from, to *os.Root, name string) error {
	fi, err := from.Lstat(name)
	if err != nil {
		return err
	}
	is, err := to.Lstat(name)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	has, _ := is.Sys().(*syscall.Stat_t)
	if ok && os.Geteuid() == 0 && (has == nil || has.Uid != st.Uid || has.Gid != st.Gid) { // palyrad has given up the right to
		if err := to.Lchown(name, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	return to.Chmod(name, fi.Mode().Perm())
}

package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
)

// The parts of a layer's folder. Overlayfs writes to the folders, palyra to the file, once.
const (
	infoFile  = "layer.json"
	upperName = "upper"
	workName  = "work"
)

// unfinished begins the name of a layer that is being made. One that a crash left is removed
// by the next maker, once it's older than unfinishedFor.
const (
	unfinished    = ".new-"
	unfinishedFor = time.Hour
)

// Layer is a layer that this process has locked: no other process uses it meanwhile, for two
// overlays over one upper folder are undefined. Calls of this process may share it, since their
// palyra-cell has one overlay for all of them. Close it.
//
// The lock (flock(2)) is on the layer's folder, and palyra-cell gets the same descriptor, so
// it holds as long as either of them uses the layer.
type Layer struct {
	Info
	// Limits bound what Prepare, PrepareUndo, Undo and Begin read.
	Limits Limits

	dir  *os.File
	path string

	testOnlyStep func(name string) // called at each named step of Begin and End
}

// Take locks the layer of a name over a workspace, which it makes if there is none. mode is
// that of the workspace.
func Take(state, name string, source Source, mode fs.FileMode) (*Layer, error) {
	op := fmt.Sprintf("use layer %q", name)
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := source.check(op); err != nil {
		return nil, err
	}
	for range 3 { // another process may make or discard it meanwhile
		l, err := Open(state, name)
		if errors.Is(err, ErrNoLayer) {
			if err = create(state, name, source, mode); err == nil || errors.Is(err, fs.ErrExist) {
				continue
			}
			if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
				return nil, fault.New(fault.Refused, "permission_denied", op, err).
					WithHint("palyrad gives up the right to make files of other users: run it as the workspace's owner, or stage a workspace of root's")
			}
			return nil, fault.New(fault.BadState, "state_io", op, err)
		}
		if err != nil {
			return nil, err
		}
		if err := l.over(op, source); err != nil {
			l.Close()
			return nil, err
		}
		return l, nil
	}
	return nil, Busy(name)
}

// Shared returns nil if a further call of this process may use a layer that it has taken, over a
// workspace: as Take would say.
func (l *Layer) Shared(source Source) error {
	op := fmt.Sprintf("use layer %q", l.Name)
	if err := source.check(op); err != nil {
		return err
	}
	return l.over(op, source)
}

// check refuses a workspace that an overlay doesn't cover whole.
func (s Source) check(op string) error {
	if at, err := mountedIn(s.Path); err != nil {
		return fault.New(fault.Refused, "proc_unavailable", op, err).WithHint("mount proc on /proc")
	} else if at != "" {
		return fault.New(fault.Usage, "workspace_unusable", op, fmt.Errorf("a layer covers one file system, and %q is another's", at)).
			WithHint("name a workspace without mounts in it, or use DIR or DIR:ro")
	}
	return nil
}

func (l *Layer) over(op string, source Source) error {
	if l.Source != source {
		return fault.New(fault.Usage, "workspace_unusable", op, fmt.Errorf("it lies over %q of user %d", l.Source.Path, l.Source.UID)).
			WithHint("use another name, or the workspace that the layer was made for")
	}
	return nil
}

// Open locks an existing layer.
func Open(state, name string) (*Layer, error) {
	l, r, err := openUnfinished(state, name)
	if err == nil && r != nil {
		l.Close()
		return nil, Unfinished(name)
	}
	return l, err
}

// Discard removes a layer, damaged or not, with all that was written. half removes one whose
// changes may be half applied, too: the workspace stays as it is then.
func Discard(state, name string, half bool) error {
	l, err := locked(state, name)
	if err != nil {
		return err
	}
	defer l.Close()
	l.Name = name
	if r, err := l.record(pendingFile); err == nil && !r.Done && !half {
		return Unfinished(name)
	}
	return l.Remove()
}

func locked(state, name string) (*Layer, error) {
	op := fmt.Sprintf("use layer %q", name)
	if err := CheckName(name); err != nil {
		return nil, err
	}
	at := filepath.Join(state, Folder, name)
	dir, err := os.OpenFile(at, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "not_found", op, ErrNoLayer).WithHint("palyra changes ls lists the layers")
	}
	if err != nil {
		return nil, fault.New(fault.BadState, "state_io", op, err)
	}
	l := &Layer{dir: dir, path: at}
	if err := l.lock(); err != nil {
		dir.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			return nil, Busy(name)
		}
		return nil, fault.New(fault.BadState, "state_io", op, err)
	}
	return l, nil
}

// lock locks the folder, and checks that it's still the one of its name.
func (l *Layer) lock() error {
	if err := syscall.Flock(int(l.dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	opened, err := l.dir.Stat()
	if err != nil {
		return err
	}
	now, err := os.Lstat(l.path)
	if err == nil && !os.SameFile(now, opened) {
		err = fs.ErrNotExist
	}
	return err
}

func readInfo(at, name string) (i Info, err error) {
	op := fmt.Sprintf("read layer %q", name)
	b, err := durable.ReadPrivate(filepath.Join(at, infoFile), 1<<16)
	if err == nil {
		err = canon.Decode(b, &i, canon.Limits{Bytes: 1 << 16})
	}
	if err == nil && (i.Version != Version || i.Name != name || !filepath.IsAbs(i.Source.Path)) {
		err = errors.New("it describes another layer")
	}
	if err != nil {
		return i, fault.New(fault.Integrity, "store_corrupt", op, err).WithHint("palyra changes discard removes it")
	}
	return i, nil
}

func create(state, name string, source Source, mode fs.FileMode) error {
	all := filepath.Join(state, Folder)
	if err := os.Mkdir(all, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	sweep(all)
	at, err := os.MkdirTemp(all, unfinished)
	if err != nil {
		return err
	}
	made := func() error {
		for _, part := range []string{upperName, workName} {
			if err := os.Mkdir(filepath.Join(at, part), 0o700); err != nil {
				return err
			}
		}
		if os.Geteuid() == 0 && (source.UID != 0 || source.GID != uint32(os.Getegid())) {
			// Through its id-mapped mount palyra-cell enters no folder of another owner's.
			for _, p := range []string{at, filepath.Join(at, upperName), filepath.Join(at, workName)} {
				if err := os.Chown(p, int(source.UID), int(source.GID)); err != nil {
					return err
				}
			}
		}
		if err := os.Chmod(filepath.Join(at, upperName), mode.Perm()); err != nil {
			return err
		}
		b, err := canon.Marshal(&Info{Version, name, source, time.Now().UTC()})
		if err != nil {
			return err
		}
		if err := durable.WriteFile(filepath.Join(at, infoFile), b, 0o600); err != nil {
			return err
		}
		if _, err := os.Lstat(filepath.Join(all, name)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fs.ErrExist, err)
		}
		return os.Rename(at, filepath.Join(all, name)) // a folder with content is never replaced
	}
	if err := made(); err != nil {
		os.RemoveAll(at)
		if errors.Is(err, syscall.ENOTEMPTY) {
			err = fs.ErrExist
		}
		return err
	}
	return nil
}

// sweep removes what a crash left half made or half removed, in which a program may have nested
// folders.
func sweep(all string) {
	entries, err := os.ReadDir(all)
	if err != nil {
		return
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), unfinished) || time.Since(fi.ModTime()) <= unfinishedFor {
			continue
		}
		at := filepath.Join(all, e.Name())
		if f, err := os.OpenFile(at, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0); err == nil {
			_ = sys.RemoveTree(at, f) // the next one tries again
			f.Close()
		}
	}
}

// Names returns the names of the layers, sorted.
func Names(state string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(state, Folder))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{}, nil
	}
	if err != nil {
		return nil, fault.New(fault.BadState, "state_io", "list layers", err)
	}
	out := []string{}
	for _, e := range entries {
		if e.IsDir() && CheckName(e.Name()) == nil {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}

// Describe returns what a layer's file says, without locking it.
func Describe(state, name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	return readInfo(filepath.Join(state, Folder, name), name)
}

// Dir is the layer's folder, for palyra-cell.
func (l *Layer) Dir() *os.File { return l.dir }

// Read lists the layer's changes against the workspace as it is now.
func (l *Layer) Read(ctx context.Context, limits Limits) (*List, error) {
	var list *List
	err := l.within(func(upper, workspace *os.File) (err error) {
		list, err = Read(ctx, upper, workspace, l.Made, limits)
		return err
	})
	return list, err
}

// Patch writes a list that Read returned as a patch for git apply in the workspace; see
// List.Patch.
func (l *Layer) Patch(ctx context.Context, w io.Writer, list *List, binary bool) (skipped []Skipped, err error) {
	err = l.within(func(upper, workspace *os.File) (err error) {
		skipped, err = list.Patch(ctx, w, upper, workspace, belowTop(l.Source.Path), binary)
		return err
	})
	return skipped, err
}

// belowTop returns the way to a folder from the top of the git repository that it lies in, with
// a slash at the end, "" at the top and where there is none. git apply takes the names of a
// patch to be relative to the top, wherever it runs, and passes over those that lie elsewhere.
func belowTop(folder string) string {
	for at := folder; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			rest := strings.Trim(strings.TrimPrefix(folder, at), "/")
			if rest == "" {
				return ""
			}
			return rest + "/"
		}
		if at == filepath.Dir(at) {
			return ""
		}
	}
}

// within opens both folders.
func (l *Layer) within(f func(upper, workspace *os.File) error) error {
	upper, err := sys.FolderBeneath(int(l.dir.Fd()), upperName)
	if err != nil {
		return unreadable(".", err)
	}
	defer upper.Close()
	workspace, err := sys.OpenDirNoLinks(l.Source.Path)
	if err != nil {
		return fault.New(fault.Usage, "workspace_unusable", fmt.Sprintf("open workspace %q of layer %q", l.Source.Path, l.Name), err)
	}
	defer workspace.Close()
	return f(upper, workspace)
}

// Upper is the folder with what was written to the layer.
func (l *Layer) Upper() string { return filepath.Join(l.path, upperName) }

// Empty reports whether nothing was ever written to the layer.
func (l *Layer) Empty() bool {
	fd, err := sys.OpenBeneath(int(l.dir.Fd()), upperName)
	if err != nil {
		return false
	}
	defer sys.Close(fd)
	names, err := sys.NextNames(fd, make([]byte, 4<<10))
	return err == nil && len(names) == 0
}

// Touches reports whether the layer has something of its own at a path of the workspace, or
// above it: then the path leads to another file than on the host.
func (l *Layer) Touches(rel string) (bool, error) {
	at, err := sys.OpenBeneath(int(l.dir.Fd()), upperName)
	if err != nil {
		return false, err
	}
	defer func() { sys.Close(at) }()
	for name := range strings.SplitSeq(filepath.Clean(rel), "/") {
		e, err := sys.EntryAt(at, name)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil || !isFolder(e) {
			return true, err
		}
		next, err := sys.OpenBeneath(at, name)
		if err != nil {
			return true, err
		}
		sys.Close(at)
		at = next
		if hides, err := sys.Attribute(at, opaque); err != nil || hides != "" {
			return true, err
		}
	}
	return false, nil // a folder that both have
}

// Remove removes the layer with all that was written. The layer must still be closed.
func (l *Layer) Remove() error {
	op := fmt.Sprintf("discard layer %q", l.Name)
	// Under a name that is no layer's first, so that a crash leaves no half of one.
	in, err := os.MkdirTemp(filepath.Dir(l.path), unfinished)
	gone := filepath.Join(in, l.Name)
	if err == nil {
		err = os.Rename(l.path, gone)
	}
	if err == nil {
		err = sys.RemoveTree(gone, l.dir)
	}
	if err == nil {
		err = os.Remove(in)
	}
	if err != nil {
		return fault.New(fault.BadState, "state_io", op, err)
	}
	return nil
}

// Close unlocks the layer.
func (l *Layer) Close() error { return l.dir.Close() }

// mountedIn returns a place beneath a folder where something is mounted, or "".
func mountedIn(folder string) (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	spaces := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			if at := spaces.Replace(f[4]); strings.HasPrefix(at, strings.TrimSuffix(folder, "/")+"/") {
				return at, nil
			}
		}
	}
	return "", nil
}

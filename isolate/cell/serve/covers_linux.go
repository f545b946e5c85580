package serve

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/internal/sys"
)

// covers watches the sealed copies that are mounted over workspace files. A process
// outside that may write to the workspace, which another cell can be, has two ways to
// show the program its own file in their place, and the kernel prevents neither:
//
//   - It unlinks or replaces the file: the mount on it vanishes (kernel 3.18 and
//     later) and does not come back.
//   - It renames the file or a folder above it: the mount goes along, and comes back
//     with it. So inotify watches each component of each path, and of the
//     way there that the arguments take, from before the first
//     copy is mounted. An event ends the run.
//   - It removes a folder that an argument names before a "..", on which nothing is
//     mounted, and puts a link there. Removal is told when the last process has let go of
//     the folder, which may be never. But it cannot be undone.
//
// When the program has ended the cell's mount table and the components are looked at and the
// events are read, in this order: a rename that is not told yet has not returned, so that it
// cannot have been undone when the table was looked at.
//
// That renaming is told is a property of the file system ([sys.TellsOfRenames]); on
// others operands are refused. Renaming another hard link to an operand ends the run,
// too, although it changes nothing.
type covers struct {
	ns      *os.File          // the cell's mount namespace
	mounts  map[uint64]string // where the copies are mounted, "/workspace/in.txt", by mount number
	root    int               // the workspace by the ids of the host, as paths and places; if hold is not nil
	paths   []string          // of what is watched
	places  map[string]sys.Inode
	inotify int          // if hold is not nil
	hold    *budget.Hold // of inotify
	events  uint32       // of inotify, so far
}

// maxWatches is how many files and folders one call may have watched.
const maxWatches = 2048

// watchInstances is how many calls of a palyra-cell have something watched at a time.
// The kernel gives a user 128 instances by default, all programs together.
const watchInstances = 32

const watchOp = "watch sealed operands"

// leadingTo returns what else is on the way of the program to its operands, relative
// to the workspace: the working directory, and folders that an argument names before
// a "..". Were one of them put elsewhere, or a link in its place, the same argument
// would lead to another file. Beyond maxWatches it returns no more: the call is refused.
func leadingTo(spec *isolate.Spec, operands []string) []string {
	folders, view := make(map[string]bool), spec.Workspace.View()+"/"
	if rel, ok := strings.CutPrefix(spec.Cwd, view); ok {
		folders[rel] = true
	}
	for _, arg := range spec.Argv {
		// As the kernel room looks them up.
		names := []string{arg}
		if _, v, ok := strings.Cut(arg, "="); ok {
			names = append(names, v)
		}
		for _, name := range names {
			if len(name) >= syscall.PathMax { // no program opens it, and each element costs
				continue
			}
			if !path.IsAbs(name) {
				name = spec.Cwd + "/" + name
			}
			rel, ok := strings.CutPrefix(path.Clean(name), view)
			if !ok || !slices.Contains(operands, rel) {
				continue
			}
			at := "/"
			for _, part := range strings.Split(name, "/") {
				if at = path.Join(at, part); len(folders) > maxWatches {
					break
				}
				if folder, ok := strings.CutPrefix(at, view); ok && folder != rel && part != ".." {
					folders[folder] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(folders))
}

// arm watches the components of paths, which are relative to the workspace behind
// sealed, which is also that behind clone, the cell's. The first has the ids of the host,
// by which we may read what the second hides from us; what is mounted within the second is
// what the program sees. It is called before anything is mounted on them.
func (c *covers) arm(b *budget.Pool, sealed, clone int, paths []string) error {
	hold, err := b.Take(budget.Owner{Name: "calls"}, 1)
	if err != nil {
		return err
	}
	if c.inotify, err = sys.NewWatch(); err != nil {
		hold.Release()
		return fault.New(fault.Unavailable, "resource_exhausted", watchOp, err).
			WithHint("raise fs.inotify.max_user_instances, or end what holds them")
	}
	c.hold = hold
	places, err := c.look(sealed, paths)
	if err != nil {
		return err
	}
	c.root, c.paths, c.places = sealed, paths, places
	return inPlace(clone, paths, places)
}

// look starts to watch the components of paths, and returns what it found at them.
func (c *covers) look(root int, paths []string) (map[string]sys.Inode, error) {
	seen := make(map[string]sys.Inode)
	return seen, eachComponent(root, paths, func(path string, fd int) error {
		if _, ok := seen[path]; ok {
			return nil
		}
		if len(seen) == maxWatches {
			return fault.New(fault.Usage, "operand_unpinnable", watchOp, fmt.Errorf("more than %d files and folders", maxWatches)).
				WithHint("name fewer files, or copy them into one folder")
		}
		if tells, err := sys.TellsOfRenames(fd); err != nil || !tells {
			return refuse("operand_unpinnable", watchOp, errors.Join(err, fmt.Errorf("the file system of %q does not tell when a file is moved", path))).
				WithHint("copy the files to a local file system (ext4, xfs, btrfs, tmpfs)")
		}
		if err := sys.WatchPlace(c.inotify, fd); err != nil {
			return fault.New(fault.Unavailable, "resource_exhausted", watchOp, fmt.Errorf("%q: %w", path, err)).
				WithHint("it must be readable, and fs.inotify.max_user_watches large enough")
		}
		var err error
		seen[path], err = sys.InodeOf(fd)
		return err
	})
}

// inPlace returns an error unless what is watched is what the paths lead to. It is
// called when all of it is watched, so that every rename from here on is told.
func inPlace(root int, paths []string, places map[string]sys.Inode) error {
	return eachComponent(root, paths, func(path string, fd int) error {
		if now, err := sys.InodeOf(fd); err != nil || now != places[path] {
			return fault.New(fault.Integrity, "operand_moved", watchOp, errors.Join(err, fmt.Errorf("%q was moved meanwhile", path))).
				WithHint(othersHint)
		}
		return nil
	})
}

// eachComponent calls f for each component of each path, "sub" and "sub/in.txt".
func eachComponent(root int, paths []string, f func(path string, fd int) error) error {
	for _, path := range paths {
		dir := root
		for at, name := range strings.Split(path, "/") {
			fd, err := sys.Component(dir, name)
			if dir != root {
				sys.Close(dir)
			}
			sofar := strings.Join(strings.SplitN(path, "/", at+2)[:at+1], "/")
			switch {
			case errors.Is(err, syscall.EXDEV):
				return refuse("operand_unpinnable", watchOp, fmt.Errorf("%q is a mount of its own in the workspace", sofar)).
					WithHint("name the mounted folder as the workspace")
			case err != nil:
				return fault.New(fault.Usage, "changed", watchOp, fmt.Errorf("%q: %w", sofar, err))
			}
			if err := f(sofar, fd); err != nil {
				sys.Close(fd)
				return err
			}
			dir = fd
		}
		if dir != root {
			sys.Close(dir)
		}
	}
	return nil
}

// covered notes that a copy, a detached mount, will be mounted at path.
func (c *covers) covered(copy *os.File, path string) error {
	id, err := sys.MountID(int(copy.Fd()))
	if err != nil {
		return err
	}
	if c.mounts == nil {
		c.mounts = make(map[uint64]string)
	}
	c.mounts[id] = path
	return nil
}

// watch opens the mount namespace of a process that waits at the gate, and looks
// whether something was moved before.
func (c *covers) watch(pid int) error {
	if c.mounts == nil {
		return nil
	}
	var err error
	if c.ns, err = os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt"); err != nil {
		return err
	}
	return c.told()
}

// fd is readable when something was moved; it is -1 if nothing is watched.
func (c *covers) fd() int {
	if c.hold == nil {
		return -1
	}
	return c.inotify
}

const othersHint = "keep others from writing to the workspace while a call runs"

// told returns an Integrity fault if something was moved.
func (c *covers) told() error {
	if c.hold == nil {
		return nil
	}
	now, err := sys.Told(c.inotify)
	if err != nil {
		return fault.New(fault.Integrity, "operand_moved", watchOp, err)
	}
	c.events |= now
	what := "removed"
	if c.events&sys.Renamed != 0 {
		what = "moved"
	}
	if c.events == 0 {
		return nil
	}
	return fault.New(fault.Integrity, "operand_moved", watchOp, fmt.Errorf("a file that was approved, or a folder above it, was %s while the program ran", what)).
		WithHint(othersHint)
}

// check returns an Integrity fault if a copy is no longer where it was, or was not
// all the time. The program has ended.
func (c *covers) check() error {
	if c.ns == nil {
		return nil
	}
	const op = "look for sealed operands after the run"
	table, err := mountsOf(c.ns)
	if err != nil {
		return fault.New(fault.Integrity, "operand_moved", op, err)
	}
	moved := inPlace(c.root, c.paths, c.places)
	if err := c.told(); err != nil {
		return err
	}
	if moved != nil {
		return fault.New(fault.Integrity, "operand_moved", op, moved).WithHint(othersHint)
	}
	for id, path := range c.mounts {
		if table[id] != path {
			return fault.New(fault.Integrity, "operand_moved", op, fmt.Errorf("the copy over %q is gone: the file was replaced while the program ran", path)).
				WithHint(othersHint)
		}
	}
	return nil
}

func (c *covers) close() {
	if c.ns != nil {
		c.ns.Close()
	}
	if c.hold != nil {
		sys.Close(c.inotify)
		c.hold.Release()
		c.hold = nil
	}
}

// mountsOf returns the mount points of a mount namespace by mount number. It enters
// it on a thread that is given up afterwards, and reads through our own /proc, which
// it opens before.
func mountsOf(ns *os.File) (map[uint64]string, error) {
	type result struct {
		table map[uint64]string
		err   error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		table, err := func() (map[uint64]string, error) {
			proc, err := os.OpenRoot("/proc")
			if err != nil {
				return nil, err
			}
			defer proc.Close()
			if err := sys.EnterMounts(ns); err != nil {
				return nil, err
			}
			self := strconv.Itoa(os.Getpid()) + "/task/" + strconv.Itoa(sys.ThreadID())
			b, err := proc.ReadFile(self + "/mountinfo")
			if err != nil {
				return nil, err
			}
			return mountPoints(string(b))
		}()
		done <- result{table, err}
	}()
	r := <-done
	return r.table, r.err
}

// mountPoints returns the first and fifth field of each line of
// proc_pid_mountinfo(5), with the octal escapes undone.
func mountPoints(table string) (map[uint64]string, error) {
	out := make(map[uint64]string)
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 {
			return nil, errors.New("mountinfo has a line of less than six fields")
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo: %w", err)
		}
		out[id] = unescape.Replace(f[4])
	}
	return out, nil
}

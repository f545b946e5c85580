package sys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The calls below are thin: they name themselves in the error and return
// *os.File with O_CLOEXEC set, so that nothing leaks through an exec.

// file wraps a descriptor.
func file(fd int, name string) *os.File { return os.NewFile(uintptr(fd), name) }

// OpenTree clones the mount at dir (O_PATH or directory descriptor), with what
// is mounted beneath it if recursive, as a detached mount: open_tree(2), 5.2.
func OpenTree(dir int, path string, recursive bool) (*os.File, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return nil, fmt.Errorf("open_tree %q: %w", path, err)
	}
	return file(fd, "open_tree:"+path), nil
}

// Mount attributes of mount_setattr(2) and fsmount(2).
const (
	AttrReadOnly = unix.MOUNT_ATTR_RDONLY
	AttrNoSUID   = unix.MOUNT_ATTR_NOSUID
	AttrNoDev    = unix.MOUNT_ATTR_NODEV
	AttrNoExec   = unix.MOUNT_ATTR_NOEXEC
)

// SetAttr adds attributes to a detached mount, recursively: mount_setattr(2), 5.12.
func SetAttr(m *os.File, set uint64) error {
	return mountSetattr(m, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: set, Propagation: unix.MS_PRIVATE})
}

// IDMap gives a detached mount, and those on it, the id mapping of a user namespace:
// MOUNT_ATTR_IDMAP, 5.12; which file systems can is the kernel's table. If one of
// them cannot, none is changed.
func IDMap(m, userns *os.File) error {
	return mountSetattr(m, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())})
}

func mountSetattr(m *os.File, flags uint, a *unix.MountAttr) error {
	if err := unix.MountSetattr(int(m.Fd()), "", flags|unix.AT_EMPTY_PATH, a); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// NewFS makes a detached mount of a new file system instance: fsopen(2),
// fsconfig(2), fsmount(2), 5.2. options are key, value pairs; an empty value sets a flag.
func NewFS(fstype string, attrs int, options ...string) (*os.File, error) {
	ctx, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(ctx)
	for i := 0; i+1 < len(options); i += 2 {
		set := func() error { return unix.FsconfigSetString(ctx, options[i], options[i+1]) }
		if options[i+1] == "" {
			set = func() error { return unix.FsconfigSetFlag(ctx, options[i]) }
		}
		if err := set(); err != nil {
			return nil, fmt.Errorf("fsconfig %s %s: %w", fstype, options[i], err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, fmt.Errorf("fsconfig %s create: %w", fstype, err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("fsmount %s: %w", fstype, err)
	}
	return file(fd, "fsmount:"+fstype), nil
}

// NewOverlay makes a detached overlay of folders on detached mounts, from 6.15 on: lower, which
// stays as it is, and upper, which takes what is written; work is an empty folder beside it.
// Redirects and copies of metadata alone are off in this mode (userxattr), so that the upper
// folder can be read by itself.
func NewOverlay(lower, upper, work *os.File) (*os.File, error) {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen overlay: %w", err)
	}
	defer unix.Close(ctx)
	err = unix.FsconfigSetFlag(ctx, "userxattr")
	for _, o := range [...]struct{ key, value string }{{"index", "off"}, {"xino", "off"}, {"nfs_export", "off"}} {
		if err == nil {
			err = unix.FsconfigSetString(ctx, o.key, o.value)
		}
	}
	for _, o := range [...]struct {
		key string
		dir *os.File
	}{{"lowerdir+", lower}, {"upperdir", upper}, {"workdir", work}} {
		if err == nil {
			err = unix.FsconfigSetFd(ctx, o.key, int(o.dir.Fd()))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("fsconfig overlay: %w", err)
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, fmt.Errorf("fsconfig overlay create: %w", err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, AttrNoSUID|AttrNoDev)
	if err != nil {
		return nil, fmt.Errorf("fsmount overlay: %w", err)
	}
	return file(fd, "fsmount:overlay"), nil
}

// SyncFS writes what the file system of f has in memory to its disk: syncfs(2). It says nothing of
// failures, which the next fsync tells.
func SyncFS(f *os.File) { _ = unix.Syncfs(int(f.Fd())) }

// Refresh has the file system of a mount forget the names that it looked up and no process uses:
// the kernel drops them whenever it reconfigures a file system (reconfigure_super in fs/super.c),
// and this changes nothing else. An overlay in use otherwise keeps showing what lay below it.
func Refresh(m *os.File) error {
	ctx, err := unix.Fspick(int(m.Fd()), "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigReconfigure(ctx); err != nil {
		return fmt.Errorf("fsconfig reconfigure: %w", err)
	}
	return nil
}

// MoveMount attaches a detached mount at path: move_mount(2), 5.2.
func MoveMount(m *os.File, path string) error {
	if err := unix.MoveMount(int(m.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount %q: %w", path, err)
	}
	return nil
}

// Pivot makes the directory dir, which must be a mount point, the root of this
// mount namespace. The old root stays stacked on it, and the working directory
// in it, until DetachOldRoot: the pivot_root(".", ".") of pivot_root(2), NOTES.
func Pivot(dir *os.File) error {
	if err := unix.Fchdir(int(dir.Fd())); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return nil
}

// DetachOldRoot detaches what Pivot left and leaves the calling thread at "/".
func DetachOldRoot() error {
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount2: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("chdir: %w", err)
	}
	return nil
}

// MakePrivate stops mount propagation in the whole namespace.
func MakePrivate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount private: %w", err)
	}
	return nil
}

// UnshareMounts gives the calling thread a mount namespace and a root and
// working directory of its own.
func UnshareMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	return nil
}

// Pipe returns a pipe with both ends closed on exec and blocking.
func Pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("pipe2: %w", err)
	}
	return p[0], p[1], nil
}

// LowFD is above every number at which a child puts its own descriptors: what it
// still needs must not be met there.
const LowFD = 8

// ReserveLow opens /dev/null, for good, at every number below LowFD that is free.
// What is opened after it can be handed to a child as it is.
func ReserveLow() error {
	for {
		fd, err := OpenNull()
		if err != nil {
			return err
		}
		if fd >= LowFD {
			unix.Close(fd)
			return nil
		}
	}
}

// HighFD is the first number that DupHigh hands out.
const HighFD = 64

// DupHigh duplicates fd to a number of at least HighFD, closed on exec.
func DupHigh(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, HighFD)
	if err != nil {
		return -1, fmt.Errorf("fcntl F_DUPFD_CLOEXEC: %w", err)
	}
	return n, nil
}

// Close closes a raw descriptor; a negative one is nothing.
func Close(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// WaitPidfd waits up to timeoutMS milliseconds (-1: without end) until the
// process behind pidfd has ended. It does not reap it.
func WaitPidfd(pidfd int, timeoutMS int) (ended bool, err error) {
	n, err := poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, timeoutMS)
	return n > 0, err
}

// poll is poll(2), whose whole timeout passes whatever signals this thread gets:
// Go's scheduler sends them, and the kernel never restarts this call after one.
func poll(p []unix.PollFd, timeoutMS int) (n int, err error) {
	var began time.Time
	if timeoutMS > 0 {
		began = time.Now()
	}
	for left := timeoutMS; ; {
		n, err := unix.Poll(p, left)
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.EINTR):
			return 0, fmt.Errorf("poll: %w", err)
		case timeoutMS > 0:
			left = max(timeoutMS-int(time.Since(began)/time.Millisecond), 0)
		}
	}
}

// KillPidfd sends SIGKILL; a process that is gone already is no error.
func KillPidfd(pidfd int) error {
	err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("pidfd_send_signal: %w", err)
	}
	return nil
}

// Kill sends a signal by number; ESRCH is no error.
func Kill(pid int, sig int) error {
	err := unix.Kill(pid, unix.Signal(sig))
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill: %w", err)
	}
	return nil
}

// Reap waits for a child and returns its wait status and usage, those of the
// descendants it waited for included.
func Reap(pid int) (unix.WaitStatus, unix.Rusage, error) {
	var ws unix.WaitStatus
	var ru unix.Rusage
	for {
		_, err := unix.Wait4(pid, &ws, unix.WALL, &ru)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, ru, fmt.Errorf("wait4: %w", err)
		}
		return ws, ru, nil
	}
}

// Usage waits until the process behind pidfd, a child, has ended, and returns its
// processor time and that of the descendants it waited for. It does not reap it,
// which takes the kernel several times as long: waitid(2), P_PIDFD, 5.4.
func Usage(pidfd int) (user, system time.Duration, err error) {
	var ru unix.Rusage
	for {
		err := unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, &ru)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("waitid: %w", err)
		}
		return time.Duration(ru.Utime.Nano()), time.Duration(ru.Stime.Nano()), nil
	}
}

// PidfdOpen opens a pidfd for a process that the caller knows to be alive or
// unreaped.
func PidfdOpen(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	return fd, nil
}

// PidfdThread opens a pidfd for a thread: PIDFD_THREAD, 6.9. A kernel before that has one
// for the first thread of a process only, and else reports EINVAL.
func PidfdThread(tid int) (int, error) {
	fd, err := unix.PidfdOpen(tid, unix.O_EXCL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.PidfdOpen(tid, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("pidfd_open of a thread: %w", err)
	}
	return fd, nil
}

// SetDumpable sets the dumpable flag: 0 keeps other processes of the user from
// attaching to this one and from reading its /proc files.
func SetDumpable(v int) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(v), 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_DUMPABLE: %w", err)
	}
	return nil
}

// NoMerging takes this process, and what it will execute, out of the merging of equal
// pages, which prctl(2) PR_SET_MEMORY_MERGE hands down to children and over an exec.
// Where the kernel has none (before 6.4, or without CONFIG_KSM) there is nothing to do.
func NoMerging() error {
	if err := unix.Prctl(unix.PR_SET_MEMORY_MERGE, 0, 0, 0, 0); err != nil && err != unix.EINVAL {
		return fmt.Errorf("prctl PR_SET_MEMORY_MERGE: %w", err)
	}
	return nil
}

// SetSubreaper makes orphaned descendants children of this process.
func SetSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_CHILD_SUBREAPER: %w", err)
	}
	return nil
}

// IgnoredSignals returns the signals that this process ignores: a child of
// CLONE_CLEAR_SIGHAND still ignores them.
func IgnoredSignals(sigIgn string) ([]int, error) {
	v, err := strconv.ParseUint(sigIgn, 16, 64)
	if err != nil {
		return nil, fmt.Errorf("parse SigIgn %q: %v", sigIgn, err)
	}
	var out []int
	for i := range 64 {
		if v&(1<<i) != 0 {
			out = append(out, i+1)
		}
	}
	return out, nil
}

// LastCap returns the number of the highest capability that this kernel knows.
func LastCap() int {
	for c := 63; c > 0; c-- {
		if v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err == nil && v >= 0 {
			return c
		}
	}
	return 0
}

// HasSysAdmin reports whether this thread has CAP_SYS_ADMIN, CAP_SETUID and
// CAP_SETGID effective.
func HasSysAdmin() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	need := uint32(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID)
	return data[0].Effective&need == need
}

// SealedFile copies r into a memfd and seals it against every change.
func SealedFile(name string, r io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := file(fd, name)
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return nil, fmt.Errorf("write memfd: %w", err)
	}
	// EBUSY means that something, reclaim for one, holds a page for a moment; the
	// call itself has then waited for up to 150 ms (memfd_wait_for_pins).
	for tries := 0; ; tries++ {
		_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		if err == nil {
			return f, nil
		}
		if tries == 20 || !errors.Is(err, unix.EBUSY) {
			f.Close()
			return nil, fmt.Errorf("fcntl F_ADD_SEALS: %w", err)
		}
	}
}

// OpenDirNoLinks opens the absolute path as O_PATH without following any
// symbolic or magic link: openat2(2), 5.6.
func OpenDirNoLinks(path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unshaken(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	if err != nil {
		return nil, fmt.Errorf("openat2 %q: %w", path, err)
	}
	return file(fd, path), nil
}

// OpenPath opens path as O_PATH, following links.
func OpenPath(path string) (*os.File, error) {
	fd, err := unshaken(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	return file(fd, path), nil
}

// SameFile reports whether two descriptors are the same inode.
func SameFile(a, b int) (bool, error) {
	var x, y unix.Stat_t
	if err := unix.Fstat(a, &x); err != nil {
		return false, fmt.Errorf("fstat: %w", err)
	}
	if err := unix.Fstat(b, &y); err != nil {
		return false, fmt.Errorf("fstat: %w", err)
	}
	return x.Dev == y.Dev && x.Ino == y.Ino, nil
}

// CloneFlagUser is CLONE_NEWUSER, for a child that only carries an id map.
const CloneFlagUser = unix.CLONE_NEWUSER

// ReadOnlyRoot makes the mount at the calling thread's root read-only.
func ReadOnlyRoot() error {
	a := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &a); err != nil {
		return fmt.Errorf("mount_setattr /: %w", err)
	}
	return nil
}

// CreateAt creates a new file in a directory given by descriptor.
func CreateAt(dir *os.File, name string) (*os.File, error) {
	fd, err := unshaken(func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("openat %q: %w", name, err)
	}
	return file(fd, name), nil
}

// EnsureFolder makes a folder in dir unless the name is there.
func EnsureFolder(dir *os.File, name string) error {
	err := unix.Mkdirat(int(dir.Fd()), name, 0o755)
	if err != nil && err != unix.EEXIST {
		return fmt.Errorf("mkdirat %q: %w", name, err)
	}
	return nil
}

// Detach unmounts path lazily.
func Detach(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount2 %q: %w", path, err)
	}
	return nil
}

// WaitExit waits until the process behind pidfd, a child, has ended. It does not
// reap it: waitid(2), P_PIDFD, 5.4.
func WaitExit(pidfd int) error {
	for {
		err := unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("waitid: %w", err)
		}
		return nil
	}
}

// ReadMark reads one byte from a pipe, or returns 0 if the process behind pidfd
// ended, or timeoutMS milliseconds passed, before there was one.
func ReadMark(pipe, pidfd, timeoutMS int) (byte, error) {
	p := []unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
	if _, err := poll(p, timeoutMS); err != nil {
		return 0, err
	}
	if p[0].Revents&unix.POLLIN == 0 {
		return 0, nil
	}
	var b [1]byte
	if _, err := unix.Read(pipe, b[:]); err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	return b[0], nil
}

// EnterMounts moves the calling thread, which must be locked and given up
// afterwards, into a mount namespace: setns(2).
func EnterMounts(ns *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return nil
}

// ThreadID returns the calling thread's id.
func ThreadID() int { return unix.Gettid() }

// ThreadTime returns how long the calling thread, which must be locked, has had a processor:
// clock_gettime(2), CLOCK_THREAD_CPUTIME_ID.
func ThreadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // the clock is there: it can't fail
	return time.Duration(t.Nano())
}

// TryReap reaps a child if it has ended, and does not wait for it.
func TryReap(pid int) {
	unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
}

// Nice lowers the calling thread, which must be locked, to a nice value, unless it is lower: then
// a user may not raise it (EACCES).
func Nice(value int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, value); err != nil && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("setpriority: %w", err)
	}
	return nil
}

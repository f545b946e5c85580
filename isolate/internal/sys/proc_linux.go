package sys

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The calls below read /proc relative to a descriptor and into a buffer of the
// caller's: what is read there stands between a cell and its program.

// OpenDirAt opens a directory beneath dir as O_PATH. dir may be AtCWD.
func OpenDirAt(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_PATH|unix.O_DIRECTORY)
}

// AtCWD is the working directory where a call takes a directory descriptor.
const AtCWD = unix.AT_FDCWD

func openAt(dir int, name string, flags int) (int, error) {
	fd, err := unshaken(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, fmt.Errorf("openat %q: %w", name, err)
	}
	return fd, nil
}

// ReadRecordAt is ReadAt for a file of /proc that is one record: seq_file makes all
// of it for the first read, which brings as much as there is room for. So one that
// left room needs no second read, for the end.
func ReadRecordAt(dir int, name string, buf *[]byte) ([]byte, error) {
	return readAt(dir, name, buf, true)
}

// ReadAt reads a whole file beneath dir into buf, which it replaces by a larger
// one where that is too small, and returns what it read as a part of buf.
func ReadAt(dir int, name string, buf *[]byte) ([]byte, error) {
	return readAt(dir, name, buf, false)
}

func readAt(dir int, name string, buf *[]byte, record bool) ([]byte, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for n := 0; ; {
		if n == len(*buf) {
			if n >= 64<<20 {
				return nil, fmt.Errorf("read %q: %w", name, io.ErrShortBuffer)
			}
			*buf = append(*buf, make([]byte, max(4096, n))...)
		}
		m, err := unix.Read(fd, (*buf)[n:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("read %q: %w", name, err)
		case m == 0:
			return (*buf)[:n], nil
		default:
			n += m
			if record && n < len(*buf) {
				return (*buf)[:n], nil
			}
		}
	}
}

// ReadlinkAt reads a link beneath dir into buf and returns the target as a part
// of buf. A target as long as buf is an error: it may have been cut. No such link is
// ENOENT itself.
func ReadlinkAt(dir int, name string, buf []byte) ([]byte, error) {
	n, err := unix.Readlinkat(dir, name, buf)
	if err == nil && n == len(buf) {
		err = unix.ENAMETOOLONG
	}
	if err == unix.ENOENT {
		return nil, err // an answer like another, so without the cost of a text
	}
	if err != nil {
		return nil, fmt.Errorf("readlinkat %q: %w", name, err)
	}
	return buf[:n], nil
}

// SizeAt returns the size of a file beneath dir as stat(2) has it.
func SizeAt(dir int, name string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, 0); err != nil {
		return 0, fmt.Errorf("newfstatat %q: %w", name, err)
	}
	return st.Size, nil
}

// OwnerAt returns the owner of a file beneath dir, as seen in our user namespace.
func OwnerAt(dir int, name string) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, 0); err != nil {
		return 0, fmt.Errorf("newfstatat %q: %w", name, err)
	}
	return st.Uid, nil
}

// NamespaceInode returns the inode number of a namespace of the process behind
// pidfd, by ioctl(2) PIDFD_GET_*_NAMESPACE (6.11), which asks for the same
// permission as the links of /proc/<pid>/ns and makes no entry there that would
// have to be torn down with the process. The kinds are named as those links
// are. NoNamespaceIoctl tells errors of a kernel
// that cannot answer from others.
func NamespaceInode(pidfd int, kind string) (uint64, error) {
	fd, err := namespace(pidfd, kind)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return st.Ino, nil
}

// namespace opens a namespace as NamespaceInode names them.
func namespace(pidfd int, kind string) (int, error) {
	var request uint
	switch kind {
	case "cgroup":
		request = unix.PIDFD_GET_CGROUP_NAMESPACE
	case "ipc":
		request = unix.PIDFD_GET_IPC_NAMESPACE
	case "mnt":
		request = unix.PIDFD_GET_MNT_NAMESPACE
	case "net":
		request = unix.PIDFD_GET_NET_NAMESPACE
	case "pid":
		request = unix.PIDFD_GET_PID_NAMESPACE
	case "time_for_children":
		request = unix.PIDFD_GET_TIME_FOR_CHILDREN_NAMESPACE
	case "user":
		request = unix.PIDFD_GET_USER_NAMESPACE
	case "uts":
		request = unix.PIDFD_GET_UTS_NAMESPACE
	default:
		return -1, fmt.Errorf("ioctl pidfd: no namespace %q", kind)
	}
	fd, err := unix.IoctlRetInt(pidfd, request)
	if err != nil {
		return -1, fmt.Errorf("ioctl pidfd %s: %w", kind, err)
	}
	return fd, nil
}

// UserNamespaceOwner returns the user who made the user namespace of a process, as seen
// in our own: ioctl_nsfs(2) NS_GET_OWNER_UID. dir is the process's folder of proc, for
// kernels without the ioctl of NamespaceInode.
func UserNamespaceOwner(pidfd, dir int) (uint32, error) {
	fd, err := namespace(pidfd, "user")
	if NoNamespaceIoctl(err) {
		fd, err = openAt(dir, "ns/user", unix.O_RDONLY)
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	uid, err := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
	if err != nil {
		return 0, fmt.Errorf("ioctl NS_GET_OWNER_UID: %w", err)
	}
	return uid, nil
}

// NoNamespaceIoctl reports whether err of NamespaceInode means that this kernel
// does not know the request, or has no such kind of namespace.
func NoNamespaceIoctl(err error) bool {
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// ListAt lists the names in a directory beneath dir, in no order.
func ListAt(dir int, name string) ([]string, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := file(fd, name)
	defer f.Close()
	return f.Readdirnames(-1)
}

// MountNamespace opens the mount namespace of the process behind pidfd, or
// returns -1 where the kernel cannot (before 6.11).
func MountNamespace(pidfd int) int {
	fd, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_MNT_NAMESPACE)
	if err != nil {
		return -1
	}
	return fd
}

// DropEntries drops the entries and inodes that the kernel keeps of the file
// system instance whose root fd refers to, as far as nobody has them open: to
// reconfigure an instance begins with that (reconfigure_super in fs/super.c), and
// nothing else of it changes. fspick(2), fsconfig(2), 5.2.
func DropEntries(fd int) error {
	ctx, err := unix.Fspick(fd, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigReconfigure(ctx); err != nil {
		return fmt.Errorf("fsconfig reconfigure: %w", err)
	}
	return nil
}

// WriteAt writes text to a file beneath dir, which must exist, in one call.
func WriteAt(dir int, name, text string) error {
	fd, err := openAt(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	return nil
}

// MountsChanged reports whether the mounts of the namespace whose mountinfo fd refers to
// have changed since it last said so, or was opened: proc_pid_mountinfo(5), by poll(2).
func MountsChanged(fd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
	n, err := unshaken(func() (int, error) { return unix.Poll(p, 0) })
	if err != nil {
		return false, fmt.Errorf("poll: %w", err)
	}
	return n > 0 && p[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0, nil
}

// WaitsWith returns the system call in which the thread behind dir, /proc/pid/task/tid, waits if
// that holds files whatever becomes of their descriptors: sending says that the call may have any
// number of them (sendmsg), else it has the one behind the descriptor fd; -1 for none.
func WaitsWith(dir string, buf *[]byte) (sending bool, fd int) {
	b, err := ReadRecordAt(AtCWD, dir+"/syscall", buf)
	if err != nil {
		return false, -1
	}
	f := strings.Fields(string(b)) // "running", or the number and six arguments
	if len(f) < 3 {
		return false, -1
	}
	number, err := strconv.Atoi(f[0])
	arg := f[1]
	switch {
	case err != nil:
		return false, -1
	case number == unix.SYS_SENDMSG || number == unix.SYS_SENDMMSG:
		return true, -1
	case number == unix.SYS_SENDFILE:
		arg = f[2]
	case number != unix.SYS_FLOCK && number != unix.SYS_FCNTL:
		return false, -1
	}
	n, err := strconv.ParseUint(arg, 0, 64)
	if err != nil {
		return false, -1
	}
	return false, int(uint32(n) & math.MaxInt32)
}

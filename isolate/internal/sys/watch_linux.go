package sys

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// NewWatch makes an inotify instance, which nothing is waited for on: inotify(7).
func NewWatch() (int, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("inotify_init1: %w", err)
	}
	return fd, nil
}

// WatchPlace has watch tell when the file or folder behind fd, which may be O_PATH,
// is renamed or removed. A watch belongs to the inode: renaming another link to the
// same file is told, too.
func WatchPlace(watch, fd int) error {
	// IN_IGNORED, IN_UNMOUNT and IN_Q_OVERFLOW are told unasked.
	if _, err := unix.InotifyAddWatch(watch, "/proc/self/fd/"+strconv.Itoa(fd), unix.IN_MOVE_SELF|unix.IN_DELETE_SELF); err != nil {
		return fmt.Errorf("inotify_add_watch: %w", err)
	}
	return nil
}

// Renamed is the bit of Told that says so; the others say that something is gone, or
// that it could not be told what happened.
const Renamed uint32 = unix.IN_MOVE_SELF

// Told reads all that watch has to tell and returns the masks of all events together.
func Told(watch int) (mask uint32, err error) {
	var buf [4096]byte
	for {
		n, err := unix.Read(watch, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return mask, nil
		case err != nil:
			return mask, fmt.Errorf("read inotify: %w", err)
		}
		// struct inotify_event: wd, mask, cookie, len, and a name of len bytes.
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask |= binary.NativeEndian.Uint32(b[4:])
			b = b[min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
		}
	}
}

// Component opens one component of a path, a file or folder in dir, as O_PATH. A
// link is ELOOP, a mount EXDEV.
func Component(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unshaken(func() (int, error) { return unix.Openat2(dir, name, &how) })
	if err != nil {
		return -1, fmt.Errorf("openat2: %w", err)
	}
	// With O_NOFOLLOW a link is opened itself, whatever RESOLVE_NO_SYMLINKS says.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		unix.Close(fd)
		return -1, fmt.Errorf("openat2: %w", cmp.Or(err, error(unix.ELOOP)))
	}
	return fd, nil
}

// Inode identifies a file while something holds it.
type Inode struct{ Dev, Ino uint64 }

// InodeOf returns that of fd.
func InodeOf(fd int) (Inode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Inode{}, fmt.Errorf("fstat: %w", err)
	}
	return Inode{uint64(st.Dev), st.Ino}, nil
}

// Place is where something is: a file on a mount, while something holds both.
type Place struct {
	Inode Inode
	Mount uint64 // as MountID has it
}

// PlaceOf returns that of fd.
func PlaceOf(fd int) (Place, error) { return placeAt(fd, "", unix.AT_EMPTY_PATH) }

// WorkingPlace returns that of the working directory of the process whose folder of
// proc dir is. It follows the link cwd as the kernel does, by no path.
func WorkingPlace(dir int) (Place, error) { return placeAt(dir, "cwd", 0) }

func placeAt(dir int, name string, flags int) (Place, error) {
	var st unix.Statx_t
	flags |= unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(dir, name, flags, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
		return Place{}, fmt.Errorf("statx %q: %w", name, err)
	}
	if st.Mask&unix.STATX_INO == 0 || st.Mask&unix.STATX_MNT_ID == 0 {
		return Place{}, fmt.Errorf("statx %q: no inode or mount number: %w", name, unix.ENOTSUP)
	}
	return Place{Inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, st.Mnt_id}, nil
}

// FolderBeneath opens a folder beneath dir as O_PATH, through no link of any kind.
func FolderBeneath(dir int, path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unshaken(func() (int, error) { return unix.Openat2(dir, path, &how) })
	if err != nil {
		return nil, fmt.Errorf("openat2 %q: %w", path, err)
	}
	return file(fd, path), nil
}

// MountID returns the number of the mount that fd is on, as
// proc_pid_mountinfo(5) has it: STATX_MNT_ID, 5.8.
func MountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("statx: %w", err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, fmt.Errorf("statx: no mount number: %w", unix.ENOTSUP)
	}
	return st.Mnt_id, nil
}

// TellsOfRenames reports whether the file system of fd is one of which nothing is
// renamed but through this kernel, which then tells inotify. On a network's, FUSE's
// or 9p's a server renames, and the kernel moves what it has cached, with what is
// mounted on it, without a word (d_splice_alias in fs/dcache.c).
func TellsOfRenames(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, fmt.Errorf("fstatfs: %w", err)
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, zfsMagic, bcachefsMagic:
		return true, nil
	}
	return false, nil
}

// Those that linux/magic.h does not have, or not for long.
const (
	zfsMagic      = 0x2fc12fc1
	bcachefsMagic = 0xca451a4e
)

// WaitPidfdOr is WaitPidfd that ends also when other, unless that is -1, can be read.
func WaitPidfdOr(pidfd, other, timeoutMS int) (ended, ready bool, err error) {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: int32(other), Events: unix.POLLIN}}
	_, err = poll(p, timeoutMS)
	return p[0].Revents != 0, p[1].Revents != 0, err
}

package sys

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// The calls below look through a folder that somebody else changes meanwhile. They
// name one component at a time in the descriptor of its folder: what was put in the
// place of a folder, a link or a mount, is not entered, and nothing but folders is
// opened, so that no FIFO is waited for and no device is woken.

// OpenBeneath opens the folder name of dir for reading, which may be "." for dir
// itself. A link is ELOOP or ENOTDIR, a mount EXDEV. The folder's time of access doesn't
// tell that it was read, where it's the caller's own.
func OpenBeneath(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unshaken(func() (int, error) {
		how.Flags |= unix.O_NOATIME
		fd, err := unix.Openat2(dir, name, &how)
		if errors.Is(err, unix.EPERM) {
			how.Flags &^= unix.O_NOATIME
			fd, err = unix.Openat2(dir, name, &how)
		}
		return fd, err
	})
	if err != nil {
		return -1, fmt.Errorf("openat2 %q: %w", name, err)
	}
	return fd, nil
}

// NextNames reads the next names of the folder behind fd, as many as fit into buf. At
// the end there are none.
func NextNames(fd int, buf []byte) ([]string, error) {
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("getdents64: %w", err)
		}
		if n <= 0 {
			return nil, nil
		}
		// "." and ".." are left out, which may be all of it.
		if _, _, names := unix.ParseDirent(buf[:n], -1, nil); len(names) > 0 {
			return names, nil
		}
	}
}

// Allocated returns how much a file of dir takes on disk, in bytes, and whether it is
// a folder. It follows no link.
func Allocated(dir int, name string) (bytes int64, folder bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return 0, false, fmt.Errorf("newfstatat %q: %w", name, err)
	}
	return st.Blocks * 512, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// Unlock gives us, its owner, all rights to the folder name of dir, which its mode may
// have kept from us. It follows no link.
func Unlock(dir int, name string) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unshaken(func() (int, error) { return unix.Openat2(dir, name, &how) })
	if err != nil {
		return fmt.Errorf("openat2 %q: %w", name, err)
	}
	defer unix.Close(fd)
	// fchmod(2) takes no O_PATH descriptor, and fchmodat2(2) is of 6.6.
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700); err != nil {
		return fmt.Errorf("chmod %q: %w", name, err)
	}
	return nil
}

// RemoveBeneath removes a name of dir, an empty folder if folder says so.
func RemoveBeneath(dir int, name string, folder bool) error {
	flags := 0
	if folder {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(dir, name, flags); err != nil {
		return fmt.Errorf("unlinkat %q: %w", name, err)
	}
	return nil
}

// MoveBeneath moves a name from one folder to another, where it must be new.
func MoveBeneath(from int, name string, to int, as string) error {
	if err := unix.Renameat2(from, name, to, as, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("renameat2 %q: %w", name, err)
	}
	return nil
}

// ExchangeBeneath has two names of a folder change places.
func ExchangeBeneath(dir int, a, b string) error {
	if err := unix.Renameat2(dir, a, dir, b, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("renameat2 %q: %w", a, err)
	}
	return nil
}

// OpenFile is what FileBehind tells.
type OpenFile struct {
	Inode   Inode
	Bytes   int64
	Removed bool // it is a plain file in no folder any more
	Folder  bool
}

// FileBehind looks at the file that a link of /proc/pid/fd leads to. It asks no server of a file
// system on the network, or in a process, which may never answer.
func FileBehind(link string) (f OpenFile, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		return f, fmt.Errorf("statx: %w", err)
	}
	kind := st.Mode & unix.S_IFMT
	return OpenFile{Inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, int64(st.Blocks) * 512, kind == unix.S_IFREG && st.Nlink == 0, kind == unix.S_IFDIR}, nil
}

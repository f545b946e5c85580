package sys

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// File types of Entry.Mode, stat(2).
const (
	TypeMask   = unix.S_IFMT
	TypeFile   = unix.S_IFREG
	TypeFolder = unix.S_IFDIR
	TypeLink   = unix.S_IFLNK
	TypeFIFO   = unix.S_IFIFO
	TypeSocket = unix.S_IFSOCK
	TypeChar   = unix.S_IFCHR
)

// Entry describes a name in a folder.
type Entry struct {
	Mode     uint32 // with its type
	Size     int64
	Whiteout bool // a character device 0/0, by which overlayfs says that a name is gone
	Changed  time.Time
}

// EntryAt describes the name in a folder, through no link: statx(2).
func EntryAt(dir int, name string) (Entry, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_SYNC_AS_STAT,
		unix.STATX_BASIC_STATS, &st)
	if err != nil {
		return Entry{}, fmt.Errorf("statx %q: %w", name, err)
	}
	return Entry{Mode: uint32(st.Mode), Size: int64(st.Size), Changed: time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec)),
		Whiteout: st.Mode&TypeMask == TypeChar && st.Rdev_major == 0 && st.Rdev_minor == 0}, nil
}

// FileBeneath opens a regular file beneath a folder for reading, through no link and over no
// mount. A FIFO isn't waited for and a device isn't woken: their openers get ErrNotFile.
func FileBeneath(dir int, path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	at, err := unshaken(func() (int, error) { return unix.Openat2(dir, path, &how) })
	if err != nil {
		return nil, fmt.Errorf("openat2 %q: %w", path, err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, fmt.Errorf("fstat %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("open %q: %w", path, ErrNotFile)
	}
	// The very file that was looked at: the link leads to no name.
	fd, err := unshaken(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	return file(fd, path), nil
}

// ErrNotFile says that a name leads to something other than a regular file.
var ErrNotFile = errors.New("not a regular file")

// LinkBeneath returns the target of the symbolic link at a path beneath a folder, which only
// the last element may be.
func LinkBeneath(dir int, path string) (string, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	at, err := unshaken(func() (int, error) { return unix.Openat2(dir, path, &how) })
	if err != nil {
		return "", fmt.Errorf("openat2 %q: %w", path, err)
	}
	defer unix.Close(at)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, "", buf)
	if err != nil {
		return "", fmt.Errorf("readlinkat %q: %w", path, err)
	}
	return string(buf[:n]), nil
}

// Attribute returns an extended attribute of an open file, "" if it has none of the name, or
// the file system knows none.
func Attribute(fd int, name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Fgetxattr(fd, name, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("fgetxattr %s: %w", name, err)
	}
	return string(buf[:n]), nil
}

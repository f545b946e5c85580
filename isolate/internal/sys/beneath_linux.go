package sys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The calls below look through a folder that somebody else changes meanwhile. They
// name one component at a time in the descriptor of its folder: what was put in the
// place of a folder, a link or a mount, is not entered, and nothing but folders is
// opened, so that no FIFO is waited for and no device is woken.

// OpenBeneath opens the folder name of dir for reading, which may be "." for dir
// itself. A link is ELOOP or ENOTDIR, a mount EXDEV.
func OpenBeneath(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unshaken(func() (int, error) { return unix.Openat2(dir, name, &how) })
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

package planted

import (
	"os"

	"golang.org/x/sys/unix"
)

// stampsInOrder reports whether all stamps of the file system of dir come from the
// functions of the kernel that keep them in order (inode_set_ctime_current): those
// file systems have multigrain timestamps from 6.13 on. Others may stamp by a clock
// that is a tick behind, and an overlay does not tell what it lies over.
func stampsInOrder(dir *os.File) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(int(dir.Fd()), &st) != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// edge returns a moment that what was changed before has an earlier stamp than, and
// what is changed later has not; before 6.13 that is the tick's beginning, and
// where it cannot be had it is fallback.
//
// A change of a file whose times were looked at since the last one gets a stamp of
// its own, in nanoseconds, and no later change on the machine an earlier one
// (Documentation/filesystems/multigrain-ts.rst). So a file in memory is looked at,
// changed and looked at again.
func edge(fallback moment) moment {
	fd, err := unix.MemfdCreate("palyra-edge", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		return fallback
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	look := func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_CTIME, &st) }
	for try := 0; ; try++ {
		if look() != nil {
			return fallback
		}
		before := read(unix.CLOCK_BOOTTIME)
		if unix.Fchmod(fd, 0o600) != nil || look() != nil {
			return fallback
		}
		if read(unix.CLOCK_BOOTTIME)-before < step/10 || try == 10 { // nobody came between
			return moment{nano(st.Ctime), before}
		}
	}
}

package main

import (
	"math"
	"syscall"

	"palyra/internal/fault"
)

// setUmask keeps palyrad's files from all other users.
func setUmask() { syscall.Umask(0o077) }

// maxFiles returns how many descriptors this process may have. Go has raised the
// soft limit to the hard one by now.
func maxFiles() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(l.Cur)
}

// freeBytes returns the space that this user can still fill on the file system
// of dir.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fault.New(fault.Unavailable, "io_error", "read free space", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

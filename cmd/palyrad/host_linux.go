package main

import (
	"syscall"

	"palyra/internal/fault"
)

// setUmask keeps what palyrad makes from everybody else.
func setUmask() { syscall.Umask(0o077) }

// freeBytes returns the space that this user can still fill on the file system
// of dir.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fault.New(fault.Unavailable, "statfs", "read free space", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

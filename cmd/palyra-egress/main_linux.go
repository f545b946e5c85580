package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// dieTogether kills a child with its parent.
func dieTogether() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// closeInherited closes what palyra got from its own parent and passed on without knowing. It runs
// before anything is opened here; what the runtime has is anonymous.
func closeInherited() error {
	const own = "/proc/self/fd/"
	dir, err := os.ReadDir(own)
	if err != nil {
		return err
	}
	for _, e := range dir {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n <= control {
			continue
		}
		if to, err := os.Readlink(own + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			syscall.Close(n)
		}
	}
	return nil
}

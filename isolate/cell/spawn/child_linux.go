package spawn

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"palyra/isolate/internal/sys"
)

// Room is a descriptor that palyra-cell is born with and closes at once. It makes the kernel
// give the process a descriptor table large enough for its cells. A table that grows while
// threads share it waits for an RCU grace period (expand_fdtable, fs/file.c), up to 15 ms,
// which the first call would otherwise pay.
const Room = sys.HighFD

// Child is a palyra-cell that we started. os.Process won't do: before its first use it forks a
// process to see whether pidfds work.
type Child struct {
	pid int

	mu    sync.Mutex
	pidfd int // guarded by mu; -1 when the process has been reaped
}

// startChild executes the palyra-cell at path with theirs as descriptor 3, in the folder /. The
// environment holds only GOMAXPROCS, with Go's own default: without it the runtime first reads
// all mounts and the cgroup's limits, even if package main has settings that ignore them. Call
// it on the thread that the parent-death signal is to be tied to.
func startChild(path string, theirs *os.File, attr *syscall.SysProcAttr) (*Child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	env := []string{"GOMAXPROCS=" + strconv.Itoa(runtime.NumCPU())}
	none := ^uintptr(0)
	files := slices.Repeat([]uintptr{none}, Room+1)
	copy(files, []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd(), theirs.Fd()})
	files[Room] = null.Fd()
	c := &Child{pidfd: -1}
	attr.PidFD = &c.pidfd
	c.pid, err = syscall.ForkExec(path, []string{"palyra-cell"}, &syscall.ProcAttr{Dir: "/", Env: env, Files: files, Sys: attr})
	runtime.KeepAlive(theirs)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	return c, nil
}

// Kill kills the process; wait then reaps it.
func (c *Child) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd < 0 {
		return os.ErrProcessDone
	}
	sys.KillPidfd(c.pidfd)
	return nil
}

func (c *Child) wait() {
	_ = sys.WaitExit(c.pidfd)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, _ = sys.Reap(c.pid)
	sys.Close(c.pidfd)
	c.pidfd = -1
}

package cell

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"palyra/isolate/internal/sys"
)

// room is a descriptor that palyra-cell is born with and closes at once. With it
// the kernel gives the process a descriptor table that holds those of its cells.
// A table that has to grow while threads share it waits for an RCU grace period
// (expand_fdtable, fs/file.c), up to 15 ms, which otherwise the first call would.
const room = sys.HighFD

// child is a palyra-cell that we started. os.Process will not do: before the
// first one it forks a process to see whether pidfds work.
type child struct {
	pid int

	mu    sync.Mutex
	pidfd int // guarded by mu; -1 once the process was reaped
}

// startChild executes the palyra-cell at path with theirs as descriptor 3, in the
// folder / and with an environment that only holds GOMAXPROCS, with the number that
// Go would choose: else it reads all mounts and its cgroup's limits first, even
// where package main has settings that ignore them. It must be called on the thread
// that the parent-death signal is to be tied to.
func startChild(path string, theirs *os.File, attr *syscall.SysProcAttr) (*child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	env := []string{"GOMAXPROCS=" + strconv.Itoa(runtime.NumCPU())}
	none := ^uintptr(0)
	files := slices.Repeat([]uintptr{none}, room+1)
	copy(files, []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd(), theirs.Fd()})
	files[room] = null.Fd()
	c := &child{pidfd: -1}
	attr.PidFD = &c.pidfd
	c.pid, err = syscall.ForkExec(path, []string{"palyra-cell"}, &syscall.ProcAttr{Dir: "/", Env: env, Files: files, Sys: attr})
	runtime.KeepAlive(theirs)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	return c, nil
}

// Kill implements killer.
func (c *child) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd < 0 {
		return os.ErrProcessDone
	}
	sys.KillPidfd(c.pidfd)
	return nil
}

// wait reaps the process when it has ended.
func (c *child) wait() {
	_ = sys.WaitExit(c.pidfd)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, _ = sys.Reap(c.pid)
	sys.Close(c.pidfd)
	c.pidfd = -1
}

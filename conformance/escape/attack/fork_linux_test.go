package main

import (
	"encoding/binary"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// runThenFork holds the processor for far longer than the scheduler lets a
// goroutine, without a point at which it could yield, and then forks. The child
// ends through functions that the compiler gave prologues.
//
//go:norace
//go:nosplit
func runThenFork(ts uintptr) (int, syscall.Errno) {
	for range 8 { // each may be cut short by the request to yield
		syscall.RawSyscall(unix.SYS_NANOSLEEP, ts, 0, 0)
	}
	pid, errno := rawFork(0)
	if errno == 0 && pid == 0 {
		exit(asChild())
	}
	return pid, errno
}

//go:norace
//go:noinline
func asChild() syscall.Errno {
	_, errno := call(unix.SYS_GETPID, 0, 0, 0, 0, 0)
	return errno
}

// A child that is forked while the scheduler wants its goroutine to yield must not follow
// the request: no thread would ever wake it.
func TestForkWhileAskedToYield(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	roomyStack()
	var ts [16]byte // struct timespec: seconds, nanoseconds
	binary.NativeEndian.PutUint64(ts[8:], uint64(10*time.Millisecond))
	b := ts[:]
	for i := range 10 {
		pid, errno := runThenFork(address(b))
		keep(b)
		if errno != 0 {
			t.Fatal(failed("fork", errno))
		}
		late := time.AfterFunc(20*time.Second, func() { unix.Kill(pid, unix.SIGKILL) })
		p, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		state, err := p.Wait()
		late.Stop()
		if err != nil || !state.Success() {
			t.Fatalf("child %d ended as %v, %v, want success", i, state, err)
		}
	}
}

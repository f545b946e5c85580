package main

import (
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// probes returns every probe by name.
func probes() map[string]probe {
	all := make(map[string]probe)
	for _, m := range []map[string]probe{fileProbes, inheritProbes, processProbes, ipcProbes, netProbes,
		namespaceProbes, kernelProbes, abiProbes, ttyProbes, bombProbes, limitProbes, gateProbes, hostProbes, markProbes, handProbes, environProbes, screenProbes, operandProbes, memoryProbes, sessionProbes, egressProbes, reachProbes, spendProbes(), naiveProbes} {
		for name := range m {
			if all[name] != nil {
				panic("attack: internal error: two probes named " + name)
			}
		}
		maps.Copy(all, m)
	}
	return all
}

// prepare makes the process as small and still as a Go process gets: forked
// children have no runtime, so nothing may collect or preempt, and what is done
// to the thread (ptrace, keyrings, namespaces) must stay with it.
func prepare() {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
	runtime.LockOSThread()
	roomyStack()
}

// roomyStack leaves the calling goroutine with a stack that a forked child need
// not grow. Only the collector shrinks it again.
//
//go:noinline
func roomyStack() byte {
	var room [64 << 10]byte
	for i := range room {
		room[i] = byte(i)
	}
	return room[len(room)/2]
}

func errnoName(e syscall.Errno) string {
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("E%d", int(e))
}

// failed names the call that ended an attempt.
func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", op, err)
}

// raw is a system call by number; a zero errno is a nil error.
func raw(op string, nr uintptr, a ...uintptr) (uintptr, error) {
	var v [6]uintptr
	copy(v[:], a)
	r, _, errno := unix.Syscall6(nr, v[0], v[1], v[2], v[3], v[4], v[5])
	if errno != 0 {
		return 0, failed(op, errno)
	}
	return r, nil
}

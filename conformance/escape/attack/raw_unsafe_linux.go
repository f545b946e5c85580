package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// address returns where b begins. It is valid while the caller keeps b alive,
// which each does with runtime.KeepAlive or by using b later; the collector of
// Go does not move heap memory, and these all escape to the heap.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// cstring returns s with a NUL.
func cstring(s string) []byte { return append([]byte(s), 0) }

// fork makes clone(2) with flags and no stack of its own, and gives the child a
// goroutine that is not asked to yield; see fork_linux_amd64.s.
func fork(flags uintptr) (pid uintptr)

// rawFork is fork(2) with clone(2) flags and without exec. The child has one
// thread and a Go runtime that must not be used: raw system calls only, no
// allocation, no growing stack.
//
//go:norace
//go:nosplit
func rawFork(flags uintptr) (int, syscall.Errno) {
	r := int(fork(flags | uintptr(syscall.SIGCHLD)))
	if r < 0 {
		return -1, syscall.Errno(-r)
	}
	return r, 0
}

// exit ends the process without the runtime.
func exit(status syscall.Errno) {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(status), 0, 0)
	}
}

// park sleeps for ever in ppoll(2).
func park() {
	for {
		syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// inChild runs f in a forked child, which has one thread, and returns the errno
// that f returned: what unshare(CLONE_NEWUSER) and some keyrings insist on.
func inChild(f func() syscall.Errno) error {
	pid, errno := rawFork(0)
	if errno != 0 {
		return failed("fork", errno)
	}
	if pid == 0 {
		exit(f())
	}
	return reap(pid)
}

// reap waits for a child and returns its exit status as an errno; a child that
// was killed is reported as such.
func reap(pid int) error {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return failed("wait4", err)
		}
		break
	}
	if ws.Signaled() {
		// Die of the same: the battery then sees what killed the attempt.
		unix.Kill(unix.Getpid(), ws.Signal())
		unix.Kill(unix.Getpid(), unix.SIGKILL)
	}
	if e := syscall.Errno(ws.ExitStatus()); e != 0 {
		return e
	}
	return nil
}

// call is a raw system call for a forked child.
func call(nr uintptr, a0, a1, a2, a3, a4 uintptr) (uintptr, syscall.Errno) {
	r, _, errno := syscall.RawSyscall6(nr, a0, a1, a2, a3, a4, 0)
	return r, errno
}

// victimMemory maps a page, puts s in it and returns its address.
func victimMemory(s string) ([]byte, uintptr, error) {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, 0, failed("mmap", err)
	}
	copy(page, s)
	return page, address(page), nil
}

// remote describes n bytes of another process to process_vm_readv(2).
func remote(addr uintptr, n int) []unix.RemoteIovec {
	return []unix.RemoteIovec{{Base: addr, Len: n}}
}

// keep holds values alive until here.
func keep(v ...any) { runtime.KeepAlive(v) }

const seccompAllow = 0x7fff0000 // SECCOMP_RET_ALLOW

// prctlFilter installs a seccomp filter on this thread, as programs did before
// seccomp(2).
func prctlFilter(f []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return failed("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	keep(&prog, f)
	return failed("prctl PR_SET_SECCOMP", err)
}

// installFilter installs a seccomp filter on every thread of this process.
func installFilter(f []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return failed("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	_, err := raw("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	keep(&prog, f)
	return err
}

// tryGate makes the gated execveat(2) with each of the numbers, and returns the
// last errno. It may run in a forked child.
func tryGate(fd int, empty uintptr, argv []*byte, words []uint64) syscall.Errno {
	const emptyPath = 0x1000
	var last syscall.Errno
	for _, w := range words {
		_, _, last = syscall.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd), empty, uintptr(unsafe.Pointer(&argv[0])),
			// The environment is the NULL at the end of argv.
			uintptr(unsafe.Pointer(&argv[len(argv)-1])), emptyPath, uintptr(w))
	}
	return last
}

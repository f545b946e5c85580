package sys

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InstalledFilter reads back the seccomp program that is in force in a process:
//
//	PTRACE_SEIZE → PTRACE_INTERRUPT → wait4 → PTRACE_SECCOMP_GET_FILTER → PTRACE_DETACH
//
// The process is stopped in between; a system call it waits in is restarted. It
// needs CAP_SYS_ADMIN in the initial user namespace and a kernel with
// CONFIG_CHECKPOINT_RESTORE (ptrace(2)). instrs is how many instructions are
// expected at most; the result is the sock_filter array.
func InstalledFilter(pid, instrs int) ([]byte, error) {
	// All requests must come from one thread, the tracer.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := ptrace(unix.PTRACE_SEIZE, pid, 0, 0); err != nil {
		return nil, fmt.Errorf("ptrace PTRACE_SEIZE: %w", err)
	}
	ended := false // it was waited for as one that has ended: nobody is traced any more
	defer func() {
		// One that is killed meanwhile cannot be let go of, and until its tracer has
		// waited for it, it is a zombie that its parent cannot reap.
		for !ended && ptrace(unix.PTRACE_DETACH, pid, 0, 0) != nil {
			ended = awaitTraced(pid) != nil
		}
	}()
	if err := ptrace(unix.PTRACE_INTERRUPT, pid, 0, 0); err != nil {
		return nil, fmt.Errorf("ptrace PTRACE_INTERRUPT: %w", err)
	}
	if err := awaitTraced(pid); err != nil {
		ended = true
		return nil, err
	}
	// The kernel says how many instructions there are if the buffer is null.
	n, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid), 0, 0, 0, 0)
	if e != 0 {
		return nil, fmt.Errorf("ptrace PTRACE_SECCOMP_GET_FILTER: %w", e)
	}
	if int(n) > instrs || n == 0 {
		return nil, fmt.Errorf("ptrace PTRACE_SECCOMP_GET_FILTER: %d instructions, at most %d expected", n, instrs)
	}
	buf := make([]byte, n*8)
	// buf has room for exactly n instructions and is kept alive by the return.
	_, _, e = unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid), 0, uintptr(unsafe.Pointer(&buf[0])), 0, 0)
	if e != 0 {
		return nil, fmt.Errorf("ptrace PTRACE_SECCOMP_GET_FILTER: %w", e)
	}
	return buf, nil
}

// awaitTraced returns when a traced process has stopped. An error says that it
// has ended, or is not ours to wait for.
func awaitTraced(pid int) error {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait4: %w", err)
		case !ws.Stopped():
			return fmt.Errorf("wait4: the process ended instead of stopping: %#x", uint32(ws))
		default:
			return nil
		}
	}
}

func ptrace(req, pid int, addr, data uintptr) error {
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, uintptr(req), uintptr(pid), addr, data, 0, 0); e != 0 {
		return e
	}
	return nil
}

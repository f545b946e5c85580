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
	if err := ptrace(unix.PTRACE_INTERRUPT, pid, 0, 0); err != nil {
		return nil, fmt.Errorf("ptrace PTRACE_INTERRUPT: %w", err)
	}
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return nil, fmt.Errorf("wait4: %w", err)
		}
	}
	if !ws.Stopped() {
		return nil, fmt.Errorf("wait4: the process ended instead of stopping: %#x", uint32(ws))
	}
	defer ptrace(unix.PTRACE_DETACH, pid, 0, 0)
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

func ptrace(req, pid int, addr, data uintptr) error {
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, uintptr(req), uintptr(pid), addr, data, 0, 0); e != 0 {
		return e
	}
	return nil
}

package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// installFilter is seccomp(SECCOMP_SET_MODE_FILTER, 0, &prog). The kernel
// copies the program during the call; both pointers live until it returns. The
// size was checked by the caller: 1 to 4096 whole instructions. A []byte may
// be unaligned for sock_filter, which is why it is copied.
func installFilter(filter []byte) unix.Errno {
	insns := make([]unix.SockFilter, len(filter)/int(unsafe.Sizeof(unix.SockFilter{})))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&insns[0])), len(filter)), filter)
	prog := unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, SeccompSetModeFilter, 0, uintptr(unsafe.Pointer(&prog)))
	return e
}

// seccompAction is seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &action).
func seccompAction(action uint32) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, SeccompGetAction, 0, uintptr(unsafe.Pointer(&action)))
	return e
}

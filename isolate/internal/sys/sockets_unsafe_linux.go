package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// meminfo is what SO_MEMINFO gives, linux/sock_diag.h; kernel 4.12.
type meminfo struct {
	received, receiveBuffer, sent, sendBuffer, forward, queued, options, backlog, drops uint32
}

// heldBy returns how many bytes of the kernel's memory take what waits in the queues of a
// socket, whatever it is of: received, sent and not acknowledged, or about to be either.
func heldBy(fd int) (int, error) {
	var m meminfo
	size := uint32(unsafe.Sizeof(m))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&size)), 0) // both live on the stack until the call returns
	if e != 0 {
		return 0, fmt.Errorf("getsockopt SO_MEMINFO: %w", e)
	}
	return int(m.received) + int(max(m.sent, m.queued)) + int(m.options) + int(m.backlog), nil
}

package kernel

import (
	"os"
	"syscall"
)

// pipe is os.Pipe with one end that is ours, 0 to read or 1 to write, and one
// that is the program's. Only ours is made for waiting with a deadline: the
// other would be registered with the poller, and wake it, to be closed unused,
// and the program would find it in a mode that it does not expect.
func pipe(ours int) (r, w *os.File, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := syscall.SetNonblock(fds[ours], true); err != nil {
		syscall.Close(fds[0])
		syscall.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "|0"), os.NewFile(uintptr(fds[1]), "|1"), nil
}

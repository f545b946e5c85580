package kernel

import (
	"os"
	"syscall"
)

// pipe makes a pipe with one end that is ours, 0 to read or 1 to write, and one for the
// program. Only our end doesn't block and is registered with the poller. The program's end
// would wake the poller when it's closed unused, and the program doesn't expect a non-blocking
// end.
func pipe(ours int) (r, w *os.File, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// F_SETFL can't change the access mode and ignores it (fcntl(2)).
	if _, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fds[ours]), syscall.F_SETFL, syscall.O_NONBLOCK); e != 0 {
		syscall.Close(fds[0])
		syscall.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", e)
	}
	return os.NewFile(uintptr(fds[0]), "|0"), os.NewFile(uintptr(fds[1]), "|1"), nil
}

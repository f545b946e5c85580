package sys

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// execFile passes vectors of C strings; argv and env as built here are kept
// alive by the slices until the call returns, which it does only on failure.
func execFile(fd int, argv, env []string) (unix.Errno, error) {
	empty, err := unix.BytePtrFromString("")
	if err != nil {
		return 0, err
	}
	av, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		return 0, err
	}
	ev, err := syscall.SlicePtrFromStrings(env)
	if err != nil {
		return 0, err
	}
	_, _, e := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(empty)),
		uintptr(unsafe.Pointer(&av[0])), uintptr(unsafe.Pointer(&ev[0])), unix.AT_EMPTY_PATH, 0)
	return e, nil
}

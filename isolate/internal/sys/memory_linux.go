package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Dumpable returns the dumpable flag.
func Dumpable() (int, error) {
	v, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return 0, fmt.Errorf("prctl PR_GET_DUMPABLE: %w", err)
	}
	return v, nil
}

// UnshareIPC gives the calling thread an IPC namespace of its own.
func UnshareIPC() error {
	if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("unshare IPC namespace: %w", err)
	}
	return nil
}

// Queued returns how many bytes of the kernel's memory what was sent through a socket
// of the process behind pidfd, and not received yet, takes.
func Queued(pidfd, fd int) (int, error) {
	return asked(pidfd, fd, unix.TIOCOUTQ) // SIOCOUTQ, unix(7)
}

// Untold returns how many bytes a read of all events of an inotify instance of the
// process behind pidfd would give.
func Untold(pidfd, fd int) (int, error) {
	return asked(pidfd, fd, unix.TIOCINQ) // FIONREAD
}

// asked has a descriptor of another process answer an ioctl with a number.
func asked(pidfd, fd int, request uint) (int, error) {
	own, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return 0, fmt.Errorf("pidfd_getfd: %w", err)
	}
	defer unix.Close(own)
	n, err := unix.IoctlGetInt(own, request)
	if err != nil {
		return 0, fmt.Errorf("ioctl %#x: %w", request, err)
	}
	return n, nil
}

// Major and Minor are the parts of a device number.
func Major(dev uint64) uint32 { return unix.Major(dev) }

// Minor is the lower part of a device number.
func Minor(dev uint64) uint32 { return unix.Minor(dev) }

// kcmpVM is KCMP_VM of kcmp(2).
const kcmpVM = 1

// SameMemory reports whether a process has our own memory: CLONE_VM. A kernel without
// kcmp(2) cannot tell.
func SameMemory(pid int) bool {
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(unix.Getpid()), uintptr(pid), kcmpVM, 0, 0, 0)
	return e == 0 && r == 0
}

package durable

import (
	"os"
	"syscall"
)

// Datasync makes the content of f durable, and as much of its metadata as is
// needed to read it back: its size, not its times (fdatasync(2)).
func Datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

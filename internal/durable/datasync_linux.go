package durable

import (
	"os"
	"syscall"
)

// StartWriting has the disk begin with n bytes of f from off that are in memory
// only, and does not wait for it (sync_file_range(2)). It promises nothing: what
// is to be durable is flushed all the same, which then takes less time.
func StartWriting(f *os.File, off, n int64) {
	const begin = 2                                       // SYNC_FILE_RANGE_WRITE
	_ = syscall.SyncFileRange(int(f.Fd()), off, n, begin) // an error comes again with the flush
}

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

package durable

import (
	"os"
	"syscall"
)

// StartWriting has the disk begin to write n bytes of f from off that are in memory only,
// and doesn't wait (sync_file_range(2)). It promises nothing: the caller still flushes,
// which then takes less time.
func StartWriting(f *os.File, off, n int64) {
	const begin = 2                                       // SYNC_FILE_RANGE_WRITE
	_ = syscall.SyncFileRange(int(f.Fd()), off, n, begin) // the flush repeats an error
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

package selfbench

import (
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// seal copies r into a sealed memory file and opens that for reading, as a kernel hands a
// program to a cell.
func seal(r io.Reader) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("noop", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3 don't know MFD_EXEC
		fd, err = unix.MemfdCreate("noop", flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	w := os.NewFile(uintptr(fd), "noop")
	defer w.Close()
	if _, err := io.Copy(w, r); err != nil {
		return nil, err
	}
	if err := w.Chmod(0o555); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return nil, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(w.Fd())))
}

package kernel

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNothingYet says that a pipe is empty and somebody may still write to it.
var errNothingYet = errors.New("nothing there yet")

// intake is our end of a pipe that a program writes to. Most are read when the
// program is gone: a file that can be waited for is made of it only if somebody
// has to wait, since that registers it with the poller.
type intake struct {
	fd   int             // -1 if it is closed
	file *os.File        // of fd, after poll
	conn syscall.RawConn // of file
}

// newIntake makes a pipe. The program's end is in the mode that it expects.
func newIntake() (*intake, *os.File, error) {
	fds, err := pipe(0)
	if err != nil {
		return nil, nil, err
	}
	return &intake{fd: fds[0]}, os.NewFile(uintptr(fds[1]), "|1"), nil
}

// ReadNow reads what is there. The error is errNothingYet if nothing is.
func (i *intake) ReadNow(b []byte) (int, error) {
	for {
		n, err := syscall.Read(i.fd, b)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return 0, errNothingYet
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Unread returns how many bytes are there to be read (pipe(7): FIONREAD, which is TIOCINQ), as far
// as that can be told.
func (i *intake) Unread() int64 {
	n, err := unix.IoctlGetInt(i.fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return int64(n)
}

// poll makes i one for Wait and SetReadDeadline.
func (i *intake) poll() (err error) {
	if i.file != nil || i.fd < 0 {
		return nil
	}
	i.file = os.NewFile(uintptr(i.fd), "|0")
	i.conn, err = i.file.SyscallConn()
	return err
}

// Wait calls try, and again whenever more may be there, until that returns true or
// the deadline is past.
func (i *intake) Wait(try func() bool) error { return i.conn.Read(func(uintptr) bool { return try() }) }

// SetReadDeadline bounds all waiting of Read, if there is any.
func (i *intake) SetReadDeadline(t time.Time) {
	if i.file != nil {
		_ = i.file.SetReadDeadline(t) // pipes have deadlines
	}
}

// Close may be called again.
func (i *intake) Close() {
	if i.file != nil {
		i.file.Close()
	} else if i.fd >= 0 {
		syscall.Close(i.fd)
	}
	i.fd = -1
}

// feedPipe makes the pipe of a program's input, which the program reads from r.
func feedPipe() (r, w *os.File, err error) {
	fds, err := pipe(1)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "|0"), os.NewFile(uintptr(fds[1]), "|1"), nil
}

// pipe makes one with one end that is ours, 0 to read or 1 to write, and one that
// is the program's. Only ours does not block: the program's would be registered
// with the poller, and wake it, to be closed unused, and the program would find it
// in a mode that it does not expect.
func pipe(ours int) (fds [2]int, err error) {
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return fds, os.NewSyscallError("pipe2", err)
	}
	// The access mode among the flags cannot be changed and is ignored (fcntl(2)).
	if _, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fds[ours]), syscall.F_SETFL, syscall.O_NONBLOCK); e != 0 {
		syscall.Close(fds[0])
		syscall.Close(fds[1])
		return fds, os.NewSyscallError("fcntl", e)
	}
	return fds, nil
}

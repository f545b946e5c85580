package sys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is a new pseudo-terminal in a devpts of its own (pts(4), devpts in the kernel's
// Documentation/filesystems). Both sides are closed on exec, and become no process's controlling
// terminal by being opened.
type Terminal struct {
	Mount  *os.File // of the devpts, detached
	Device uint64   // the devpts as st_dev has it: no number of a terminal tells it from another
	Master int      // doesn't block
	Slave  int
}

// NewTerminal makes one whose devpts holds at most most terminals, this one included, that belong
// to a user and a group.
func NewTerminal(uid, gid uint32, most int, rows, columns uint16) (_ *Terminal, err error) {
	t := &Terminal{Master: -1, Slave: -1}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	// Each devpts is another one since 4.7, so there is no option for it.
	t.Mount, err = NewFS("devpts", AttrNoSUID|AttrNoExec, "uid", strconv.FormatUint(uint64(uid), 10), "gid", strconv.FormatUint(uint64(gid), 10),
		"mode", "0600", "ptmxmode", "0666", "max", strconv.Itoa(most))
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(t.Mount.Fd()), &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	t.Device = st.Dev
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	if t.Master, err = unshaken(func() (int, error) { return unix.Openat(int(t.Mount.Fd()), "ptmx", flags|unix.O_NONBLOCK, 0) }); err != nil {
		return nil, fmt.Errorf("openat ptmx: %w", err)
	}
	if err := unix.IoctlSetPointerInt(t.Master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, fmt.Errorf("ioctl TIOCSPTLCK: %w", err)
	}
	if err := unix.IoctlSetWinsize(t.Master, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		return nil, fmt.Errorf("ioctl TIOCSWINSZ: %w", err)
	}
	// With O_CLOEXEC here /proc would say so of each copy, for ever.
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(t.Master), unix.TIOCGPTPEER, flags&^unix.O_CLOEXEC)
	if e != 0 {
		return nil, fmt.Errorf("ioctl TIOCGPTPEER: %w", e)
	}
	t.Slave = int(fd)
	unix.CloseOnExec(t.Slave)
	return t, nil
}

// Close closes what is still there. It may be called again.
func (t *Terminal) Close() {
	if t.Mount != nil {
		t.Mount.Close()
	}
	t.CloseMaster()
	Close(t.Slave)
	t.Slave = -1
}

// CloseMaster closes that side alone.
func (t *Terminal) CloseMaster() {
	Close(t.Master)
	t.Master = -1
}

// DeviceAt returns the file system and the device number of a file beneath dir, links followed.
func DeviceAt(dir int, name string) (dev, rdev uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, 0); err != nil {
		return 0, 0, fmt.Errorf("newfstatat %q: %w", name, err)
	}
	return st.Dev, st.Rdev, nil
}

// Pair returns both ends of a SOCK_SEQPACKET connection, closed on exec. Only ours doesn't block.
func Pair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		CloseAll(fds[:])
		return nil, nil, fmt.Errorf("fcntl F_SETFL: %w", err)
	}
	return file(fds[0], name), file(fds[1], name), nil
}

// ReceiveFile waits for a message with one descriptor, which doesn't block, and makes it a file.
// The end of the connection is io.EOF.
func ReceiveFile(from *os.File, name string) (*os.File, error) {
	conn, err := from.SyscallConn()
	if err != nil {
		return nil, err
	}
	var got []int
	var n int
	cerr := conn.Read(func(fd uintptr) bool {
		n, got, err = ReceivePacket(int(fd), make([]byte, 1), make([]byte, RightsSpace(1)))
		return !errors.Is(err, syscall.EAGAIN)
	})
	switch {
	case cerr != nil:
		return nil, cerr
	case err != nil:
		return nil, err
	case n == 0:
		return nil, io.EOF
	case len(got) != 1:
		return nil, fmt.Errorf("a message with %d descriptors, want one", len(got))
	}
	return file(got[0], name), nil
}

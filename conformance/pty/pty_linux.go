package pty

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// open returns both sides of a new pseudo-terminal (pts(4)).
func open() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	conn, err := master.SyscallConn()
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	// Control, not Fd: Fd would make the descriptor blocking and Hangup could
	// then not interrupt a read.
	var n int
	var opErr error
	err = conn.Control(func(fd uintptr) {
		if opErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); opErr == nil {
			n, opErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
			if opErr == nil { // a screen that a card fits on
				opErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 60, Col: 200})
			}
		}
	})
	if err == nil {
		err = opErr
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open pseudo-terminal: %w", err)
	}
	return master, slave, nil
}

// attr makes the child lead a session whose terminal is its descriptor fd.
func attr(fd int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: fd}
}

// on calls do with the descriptor, and leaves that as it is.
func on(f *os.File, do func(fd int) error) (err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := c.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

func resize(master *os.File, rows, columns int) error {
	return on(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)})
	})
}

// modes are those of the other side: the master has none (tty_ioctl(4)).
func modes(master *os.File) (s string, err error) {
	err = on(master, func(fd int) error {
		m, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			s = fmt.Sprintf("%+v", *m)
		}
		return err
	})
	return s, err
}

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

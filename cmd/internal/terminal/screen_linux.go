package terminal

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// modes are a terminal's (termios(3)).
type modes = unix.Termios

func modesOf(tty *os.File) (m modes, err error) {
	cerr := callOn(tty, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			m = *t
		}
		return err
	})
	return m, cerr
}

// setModes doesn't wait for output, of which a stopped terminal takes none.
func setModes(tty *os.File, m modes) error {
	return callOn(tty, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, &m) })
}

// callOn is control for a call that may fail.
func callOn(tty *os.File, do func(fd int) error) (err error) {
	c, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := c.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// single returns m, but for keys that come one by one and without echo. Those for signals
// and flow control stay, and so does what output becomes.
func single(m modes) modes {
	m.Lflag &^= unix.ICANON | unix.ECHO
	m.Lflag |= unix.ISIG
	m.Cc[unix.VMIN], m.Cc[unix.VTIME] = 1, 0
	return m
}

// through returns m, but for each key as it is, and for output that becomes nothing else.
func through(m modes) modes {
	m.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	m.Oflag &^= unix.OPOST
	m.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	m.Cc[unix.VMIN], m.Cc[unix.VTIME] = 1, 0
	return m
}

// sameTerminal reports whether two files are one terminal.
func sameTerminal(a, b *os.File) bool {
	x, ok := isTerminal(a)
	y, same := isTerminal(b)
	return ok && same && x == y && x != 0
}

// reopen opens a terminal anew, as a description of our own.
func reopen(f *os.File) (own *os.File, err error) {
	control(f, func(fd int) { own, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR|noctty, 0) })
	if own == nil && err == nil {
		err = os.ErrInvalid
	}
	return own, err
}

// screenSignals are those that a Screen takes.
var screenSignals = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGQUIT}

func deed(sig os.Signal) int {
	switch sig {
	case syscall.SIGQUIT:
		return ends
	case syscall.SIGTSTP:
		return stops
	case syscall.SIGCONT:
		return goesOn
	}
	return redraws
}

// halt stops the process as SIGTSTP would, and returns when it goes on: at once where no
// shell would wake it, in an orphaned process group (setpgid(2)). SIGTTOU has the same
// default, and is at it: Go doesn't give back that of a signal that it took (sigdisable in
// Go's runtime). The signal is this thread's, so it is delivered before tgkill returns.
func halt() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTTOU) // it is our own thread
}

// foreground reports whether the terminal's keys are for this process's group.
func foreground(tty *os.File) bool {
	group := -1
	err := callOn(tty, func(fd int) (err error) {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return err != nil || group == unix.Getpgrp() // another's terminal has no such group
}

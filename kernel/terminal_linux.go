package kernel

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// errEnded is what reading the master says when no process has the other side (pty(7)).
const errEnded = syscall.EIO

// setSize makes the terminal another size and tells its programs: SIGWINCH. palyrad's own filter
// refuses it.
func setSize(master *os.File, size [2]uint16) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := conn.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size[0], Col: size[1]})
	}); cerr != nil {
		return cerr
	}
	return err
}

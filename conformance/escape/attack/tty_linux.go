package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ttyProbes are cases 68 and 70: typing on another user's terminal.
var ttyProbes = map[string]probe{
	"tiocsti":    pushInput,
	"ioctl":      reachIoctl,
	"tty-write":  writeTerminal,
	"tty-flood":  manyTerminals,
	"tty-master": findMaster,
}

// onOwnTerminal requires descriptors 0 to 2 to be one terminal, that of this process's session.
func onOwnTerminal() error {
	for fd := range 3 {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			return fmt.Errorf("descriptor %d is no terminal: %w", fd, err)
		}
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("no terminal controls this session: open /dev/tty: %w", err)
	}
	return unix.Close(fd)
}

// writeTerminal draws on a terminal.
func writeTerminal(a args) (string, error) {
	fd, err := unix.Open(a.str("path"), unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", failed("open", err)
	}
	_, err = unix.Write(fd, []byte(a.str("token")+"\n"))
	return "", failed("write", err)
}

// manyTerminals opens terminals until there is none, or enough.
func manyTerminals(a args) (string, error) {
	for n := range a.num("enough") {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			return fmt.Sprintf("after %d", n), failed("open", err)
		}
		if _, err := unix.IoctlGetInt(fd, unix.TIOCGPTN); err != nil {
			return "", failed("TIOCGPTN", err)
		}
	}
	return "", nil
}

// findMaster looks for the other side of a terminal among its descriptors, and types there.
func findMaster(a args) (string, error) {
	for fd := range 1024 {
		if n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN); err == nil {
			return fmt.Sprintf("descriptor %d is the master of terminal %d", fd, n), nil
		}
	}
	return "", failed("TIOCGPTN", unix.EBADF)
}

// pushInput types text on the controlling terminal. shift is added to the
// request: bits above 32 are not looked at by the kernel, but by a filter that
// compares 64 (CVE-2019-10063).
func pushInput(a args) (string, error) {
	request := uintptr(unix.TIOCSTI)
	if a.word["high"] != "" {
		request |= 1 << 32
	}
	// Never a terminal by another name: outside, root could type on any user's.
	candidates := []int{0, 1, 2}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY, 0); err == nil {
		candidates = append([]int{fd}, candidates...)
	}
	last := error(unix.ENOTTY)
	for _, fd := range candidates {
		done := true
		for _, c := range []byte(a.str("token") + "\n") {
			b := []byte{c}
			_, err := raw("ioctl TIOCSTI", unix.SYS_IOCTL, uintptr(fd), request, address(b))
			keep(b)
			if err != nil {
				last, done = err, false
				break
			}
		}
		if done {
			return fmt.Sprintf("typed on descriptor %d", fd), nil
		}
	}
	return "", last
}

// reachIoctl makes a request that means nothing on a pipe: ENOTTY is the
// kernel's answer, EPERM a filter's.
func reachIoctl(a args) (string, error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return "", failed("pipe", err)
	}
	request, err := strconv.ParseUint(a.str("request"), 0, 64)
	if err != nil {
		return "", err
	}
	_, err = raw("ioctl", unix.SYS_IOCTL, uintptr(p[0]), uintptr(request), 0)
	if errnoOf(err) == unix.ENOTTY || errnoOf(err) == unix.EINVAL {
		return "reached: " + err.Error(), nil
	}
	return "", err
}

// onTTY runs a command that leads a session on a new terminal, and then tells the
// terminal's input: only the command typed there.
func onTTY(a args) (string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return "", failed("TIOCSPTLCK", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return "", failed("TIOCGPTN", err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	status, err := runAttached(a.command, slave)
	if err != nil {
		return "", err
	}
	fd := int(slave.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		return "", failed("fcntl", err)
	}
	s, err := slurpFD(fd)
	if err == nil {
		emit(result{Case: "on-tty", Outcome: "TYPED", Detail: s})
	}
	os.Exit(status)
	return "", nil
}

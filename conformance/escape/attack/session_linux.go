package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// sessionProbes are case 116, the other call of a session, and 115/steal.
var sessionProbes = map[string]probe{
	"sit":   sit,
	"steal": stealTerminal,
}

// sit is what a call could be robbed of while it runs: a secret in its memory, its command line and
// its files in /tmp and /dev/shm, its life, and sockets: a TCP port, abstract ones and such in
// /tmp. It says its port and where the secret is, and repeats what it hears. Where unix sockets are
// refused it does without.
func sit(a args) (string, error) {
	secret := a.str("secret")
	_, addr, err := victimMemory(secret)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"/tmp/", "/dev/shm/"} {
		if err := os.WriteFile(dir+a.str("file"), []byte(secret), 0o644); err != nil {
			return "", err
		}
	}
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", failed("socket", err)
	}
	if err := unix.Listen(tcp, 8); err != nil { // which binds it to a port
		return "", failed("listen", err)
	}
	at, err := unix.Getsockname(tcp)
	if err != nil {
		return "", failed("getsockname", err)
	}
	fds := []unix.PollFd{{Fd: int32(tcp), Events: unix.POLLIN}}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		for _, prefix := range []string{"@", "/tmp/socket-"} {
			fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
			if err != nil {
				continue
			}
			name := fmt.Sprintf("%s%s-%d", prefix, a.str("name"), kind)
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
				return "", failed("bind", err)
			}
			if kind == unix.SOCK_STREAM {
				if err := unix.Listen(fd, 8); err != nil {
					return "", failed("listen", err)
				}
			}
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	emit(result{Case: "sit", Outcome: "READY", Detail: fmt.Sprint(at.(*unix.SockaddrInet4).Port, " ", addr)})
	for {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return "", failed("poll", err)
		}
		for _, p := range fds {
			if p.Revents != 0 {
				hear(int(p.Fd))
			}
		}
	}
}

// hear repeats what comes to a socket: of a caller, or a datagram.
func hear(fd int) {
	b := make([]byte, 256)
	from := fd
	if c, _, err := unix.Accept(fd); err == nil {
		defer unix.Close(c)
		from = c
	}
	if n, err := unix.Read(from, b); err == nil && n > 0 {
		emit(result{Case: "sit", Outcome: "HEARD", Detail: string(b[:n])})
	}
}

// stealTerminal has a child take the controlling terminal for a session of its own: TIOCSCTTY with
// 1 takes it from the session that has it, tty_ioctl(4).
func stealTerminal(args) (string, error) {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", failed("open", err)
	}
	return "", failed("ioctl TIOCSCTTY", inChild(func() syscall.Errno {
		if _, errno := call(unix.SYS_SETSID, 0, 0, 0, 0, 0); errno != 0 {
			return errno
		}
		_, errno := call(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSCTTY, 1, 0, 0)
		return errno
	}))
}

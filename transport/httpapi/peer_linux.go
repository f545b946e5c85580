package httpapi

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"palyra/internal/fault"
)

// peerCredentials returns user and process at the other end of a unix socket, as
// they were when it connected (unix(7), SO_PEERCRED).
func peerCredentials(c any) (uid uint32, pid int32, err error) {
	u, ok := c.(syscall.Conn)
	if !ok {
		return 0, 0, fault.New(fault.Internal, "internal", "read peer credentials", fmt.Errorf("%T", c))
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, fault.New(fault.Unavailable, "resource_exhausted", "read peer credentials", err)
	}
	var cred *syscall.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); e != nil {
		err = e
	}
	if err != nil {
		return 0, 0, fault.New(fault.Unavailable, "resource_exhausted", "getsockopt SO_PEERCRED", err)
	}
	return cred.Uid, cred.Pid, nil
}

// bound bounds what the kernel keeps for a client: of answers that it doesn't read, by the
// buffer and over TCP, where the kernel keeps them after a close, by the time; over TCP of
// what we don't read, too.
func bound(c net.Conn, patience time.Duration) {
	switch v := c.(type) {
	case *net.UnixConn:
		_ = v.SetWriteBuffer(sendBuffer)
	case *net.TCPConn:
		_ = v.SetWriteBuffer(sendBuffer)
		_ = v.SetReadBuffer(receiveBuffer)
		if raw, err := v.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
			})
		}
	}
}

// unsent returns how many bytes of the kernel's memory a client hasn't read yet.
func unsent(c *net.UnixConn) (n int) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }) // SIOCOUTQ, unix(7)
	}
	return n
}

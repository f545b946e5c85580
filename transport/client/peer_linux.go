package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"palyra/internal/fault"
)

// listensForUs returns nil if a process of this user or of root listens at the other end of a
// connection. The kernel noted who it was at listen(2) (unix(7), SO_PEERCRED), so neither who made
// the file nor a file that was swapped since decides. A service manager's is the manager's.
func listensForUs(c net.Conn) error {
	const op = "look who listens"
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fault.New(fault.Internal, "internal", op, fmt.Errorf("%T", c))
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", op, err)
	}
	var cred *syscall.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); e != nil || err != nil {
		return fault.New(fault.Unavailable, "resource_exhausted", "getsockopt SO_PEERCRED", errors.Join(e, err))
	}
	return ours(cred.Uid, os.Geteuid())
}

func ours(uid uint32, me int) error {
	if uid == 0 || int(uid) == me {
		return nil
	}
	return fault.New(fault.Denied, "permission_denied", "look who listens", fmt.Errorf("a process of uid %d, neither this user's nor root's", uid)).
		WithHint("a palyrad of another user is asked only if it's named: --socket PATH; palyra exec --no-daemon makes the call itself")
}

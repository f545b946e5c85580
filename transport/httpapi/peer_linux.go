package httpapi

import (
	"fmt"
	"net"
	"syscall"

	"palyra/internal/fault"
)

// peerCredentials returns user and process at the other end of a unix socket, as
// they were when it connected (unix(7), SO_PEERCRED).
func peerCredentials(c net.Conn) (uid uint32, pid int32, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, 0, fault.New(fault.Internal, "not_unix", "read peer credentials", fmt.Errorf("%T", c))
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, fault.New(fault.Unavailable, "peer_unknown", "read peer credentials", err)
	}
	var cred *syscall.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); e != nil {
		err = e
	}
	if err != nil {
		return 0, 0, fault.New(fault.Unavailable, "peer_unknown", "getsockopt SO_PEERCRED", err)
	}
	return cred.Uid, cred.Pid, nil
}

package httpapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"palyra/internal/fault"
)

// Owners asks the kernel whose TCP connections of this machine are, over one netlink socket, which
// is opened before the process confines itself (sock_diag(7), NETLINK_SOCK_DIAG). It knows those of
// the network namespace in which it was opened. Make one with OpenOwners.
type Owners struct {
	mu  sync.Mutex
	fd  int    // guarded by mu
	seq uint32 // of the newest question; guarded by mu
}

// ownerWait bounds the wait for an answer, which the kernel gives at once.
const ownerWait = time.Second

// OpenOwners opens the socket. Where the host or a service's unit doesn't permit that it returns
// fault.Unsupported "platform_unsupported".
func OpenOwners() (*Owners, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fault.New(fault.Unsupported, "platform_unsupported", "open console", fmt.Errorf("socket NETLINK_SOCK_DIAG: %w", err))
	}
	wait := unix.NsecToTimeval(ownerWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		unix.Close(fd)
		return nil, fault.New(fault.Unsupported, "platform_unsupported", "open console", fmt.Errorf("setsockopt SO_RCVTIMEO: %w", err))
	}
	return &Owners{fd: fd}, nil
}

// The messages of the kernel's linux/inet_diag.h: a header of netlink, then inet_diag_req_v2 or
// inet_diag_msg.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	diagHead     = 16 // struct nlmsghdr
	diagRequest  = diagHead + 56
	diagAnswer   = diagHead + 72
	established  = 1 // TCP_ESTABLISHED
)

// of returns the user of the process that holds the end at peer of a connection to own. An end that
// is closed belongs to no user.
func (o *Owners) of(peer, own netip.AddrPort) (uid uint32, err error) {
	const op = "find the owner of a connection"
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seq++
	var b [diagRequest]byte
	e := binary.NativeEndian
	e.PutUint32(b[0:], diagRequest)
	e.PutUint16(b[4:], diagByFamily)
	e.PutUint16(b[6:], unix.NLM_F_REQUEST)
	e.PutUint32(b[8:], o.seq)
	from, to := peer.Addr().Unmap(), own.Addr().Unmap()
	b[diagHead] = unix.AF_INET
	if from.Is6() {
		b[diagHead] = unix.AF_INET6
	}
	b[diagHead+1] = unix.IPPROTO_TCP
	e.PutUint32(b[diagHead+4:], 1<<established) // states
	id := b[diagHead+8:]
	binary.BigEndian.PutUint16(id[0:], peer.Port())
	binary.BigEndian.PutUint16(id[2:], own.Port())
	copy(id[4:20], from.AsSlice())
	copy(id[20:36], to.AsSlice())
	e.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	if err := unix.Sendto(o.fd, b[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fault.New(fault.Unavailable, "resource_exhausted", op, os.NewSyscallError("sendto", err))
	}
	var a [4096]byte
	for {
		n, sender, err := unix.Recvfrom(o.fd, a[:], 0)
		if err != nil {
			return 0, fault.New(fault.Unavailable, "resource_exhausted", op, os.NewSyscallError("recvfrom", err))
		}
		if k, ok := sender.(*unix.SockaddrNetlink); !ok || k.Pid != 0 || n < diagHead+4 || e.Uint32(a[8:]) != o.seq {
			continue // not the kernel's, or the answer to a question that was given up
		}
		if e.Uint16(a[4:]) != diagByFamily || n < diagAnswer {
			return 0, fault.New(fault.Denied, "unauthenticated", op, fmt.Errorf("sock_diag: %w", unix.Errno(-int32(e.Uint32(a[diagHead:])))))
		}
		m := a[diagHead:n]
		if m[1] != established || e.Uint32(m[68:]) == 0 { // without an inode no process holds it, and its uid is 0
			return 0, fault.New(fault.Denied, "unauthenticated", op, errors.New("its end is closed"))
		}
		return e.Uint32(m[64:]), nil
	}
}

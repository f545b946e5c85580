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

// Owners asks the kernel whose TCP connections of this machine are, over sockets that are opened
// before the process confines itself (sock_diag(7), rtnetlink(7)). They know the connections and
// addresses of the network namespace in which they were opened. Make one with OpenOwners.
type Owners struct {
	mu    sync.Mutex
	diag  int    // NETLINK_SOCK_DIAG; guarded by mu
	route int    // NETLINK_ROUTE; guarded by mu
	seq   uint32 // of the newest question; guarded by mu
}

// ownerWait bounds the wait for an answer, which the kernel gives at once.
const ownerWait = time.Second

// OpenOwners opens the sockets, or takes those that a service manager opened in the network
// namespace of the listeners; the caller leaves them open. Where the host or a service's unit
// doesn't permit that it returns fault.Unsupported "platform_unsupported".
func OpenOwners(passed ...*os.File) (*Owners, error) {
	o := &Owners{diag: -1, route: -1}
	if err := o.open(passed); err != nil {
		for _, fd := range []int{o.diag, o.route} {
			if fd >= 0 && len(passed) == 0 {
				unix.Close(fd)
			}
		}
		return nil, fault.New(fault.Unsupported, "platform_unsupported", "open console", err)
	}
	return o, nil
}

// open is for OpenOwners, which holds no lock: no other has the Owners yet.
func (o *Owners) open(passed []*os.File) error {
	for _, f := range passed {
		fd := int(f.Fd())
		protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		switch {
		case err != nil:
			return fmt.Errorf("getsockopt SO_PROTOCOL: %w", err)
		case protocol == unix.NETLINK_SOCK_DIAG:
			o.diag = fd
		case protocol == unix.NETLINK_ROUTE:
			o.route = fd
		}
	}
	for _, s := range []struct {
		fd       *int
		protocol int
		name     string
	}{{&o.diag, unix.NETLINK_SOCK_DIAG, "NETLINK_SOCK_DIAG"}, {&o.route, unix.NETLINK_ROUTE, "NETLINK_ROUTE"}} {
		var err error
		if *s.fd < 0 {
			if len(passed) > 0 { // one of its own could know another network
				return fmt.Errorf("the service manager passed no %s", s.name)
			}
			if *s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, s.protocol); err != nil {
				return fmt.Errorf("socket %s: %w", s.name, err)
			}
		}
		if err := unix.SetNonblock(*s.fd, false); err != nil { // as systemd makes them
			return fmt.Errorf("fcntl O_NONBLOCK: %w", err)
		}
		wait := unix.NsecToTimeval(ownerWait.Nanoseconds())
		if err := unix.SetsockoptTimeval(*s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			return fmt.Errorf("setsockopt SO_RCVTIMEO: %w", err)
		}
		for err == nil { // answers to a palyrad before this one, which counted from 1 as well
			_, _, err = unix.Recvfrom(*s.fd, make([]byte, 1), unix.MSG_DONTWAIT)
		}
	}
	return nil
}

// The messages of the kernel's linux/inet_diag.h and linux/rtnetlink.h: a header of netlink, then
// inet_diag_req_v2 or inet_diag_msg, or rtmsg with attributes.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	head         = 16 // struct nlmsghdr
	diagRequest  = head + 56
	diagAnswer   = head + 72
	routeRequest = head + 12
	established  = 1 // TCP_ESTABLISHED
)

const findOwner = "find the owner of a connection"

// askLocked sends a question, whose header it writes, and returns the answer. A refusal of the
// kernel's is fault.Denied with its errno.
func (o *Owners) askLocked(fd int, kind, answer uint16, size int, b []byte) ([]byte, error) {
	o.seq++
	e := binary.NativeEndian
	e.PutUint32(b[0:], uint32(len(b)))
	e.PutUint16(b[4:], kind)
	e.PutUint16(b[6:], unix.NLM_F_REQUEST)
	e.PutUint32(b[8:], o.seq)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fault.New(fault.Unavailable, "resource_exhausted", findOwner, os.NewSyscallError("sendto", err))
	}
	a := make([]byte, 4096)
	for {
		n, sender, err := unix.Recvfrom(fd, a, 0)
		if err != nil {
			return nil, fault.New(fault.Unavailable, "resource_exhausted", findOwner, os.NewSyscallError("recvfrom", err))
		}
		if k, ok := sender.(*unix.SockaddrNetlink); !ok || k.Pid != 0 || n < head+4 || e.Uint32(a[8:]) != o.seq {
			continue // not the kernel's, or the answer to a question that was given up
		}
		if e.Uint16(a[4:]) != answer || n < size {
			return nil, fault.New(fault.Denied, "unauthenticated", findOwner, fmt.Errorf("netlink: %w", unix.Errno(-int32(e.Uint32(a[head:])))))
		}
		return a[head:n], nil
	}
}

// of returns the user of the process that holds the end at peer of a connection to own. An end that
// is closed belongs to no user.
func (o *Owners) of(peer, own netip.AddrPort) (uid uint32, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b [diagRequest]byte
	e := binary.NativeEndian
	from, to := peer.Addr().Unmap(), own.Addr().Unmap()
	b[head] = family(from)
	b[head+1] = unix.IPPROTO_TCP
	e.PutUint32(b[head+4:], 1<<established) // states
	id := b[head+8:]
	binary.BigEndian.PutUint16(id[0:], peer.Port())
	binary.BigEndian.PutUint16(id[2:], own.Port())
	copy(id[4:20], from.AsSlice())
	copy(id[20:36], to.AsSlice())
	e.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	m, err := o.askLocked(o.diag, diagByFamily, diagByFamily, diagAnswer, b[:])
	if err != nil {
		return 0, err
	}
	if m[1] != established || e.Uint32(m[68:]) == 0 { // without an inode no process holds it, and its uid is 0
		return 0, fault.New(fault.Denied, "unauthenticated", findOwner, errors.New("its end is closed"))
	}
	return e.Uint32(m[64:]), nil
}

func family(a netip.Addr) byte {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// foreign reports that peer is another machine's address, as seen from this one, whose own is own.
// That a connection isn't known says less: its end on this machine may have been reset since.
func (o *Owners) foreign(peer, own netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	here, err := o.isLocalLocked(own) // otherwise the sockets know another network namespace
	there, e := o.isLocalLocked(peer)
	return err == nil && e == nil && here && !there
}

// isLocalLocked reports whether the kernel keeps to itself what is sent to an address.
func (o *Owners) isLocalLocked(a netip.Addr) (bool, error) {
	a = a.Unmap()
	to := a.AsSlice()
	b := make([]byte, routeRequest, routeRequest+4+len(to))
	b[head], b[head+1] = family(a), byte(8*len(to))
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(to)))
	b = append(binary.NativeEndian.AppendUint16(b, unix.RTA_DST), to...)
	m, err := o.askLocked(o.route, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, routeRequest, b)
	return err == nil && m[7] == unix.RTN_LOCAL, err
}

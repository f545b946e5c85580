package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// HasIPv6 reports whether the loopback interface of the calling thread's network namespace, which
// is up, has an address of IPv6. The host may lack it, or have turned it off for new interfaces.
func HasIPv6() (bool, error) {
	b, err := os.ReadFile("/proc/thread-self/net/if_inet6")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	return strings.Contains(string(b), " lo\n"), nil
}

// InetSocket makes a TCP or UDP socket of a family and a kind in the calling thread's network
// namespace. One of IPv6 can be bound to an address that a route alone makes local: ipv6(7),
// IPV6_FREEBIND.
func InetSocket(family, kind int, name string) (*os.File, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("setsockopt IPV6_FREEBIND: %w", err)
		}
	}
	return file(fd, name), nil
}

// AddLocal makes all addresses of each prefix those of the loopback interface of the calling
// thread's network namespace: "ip route add local PREFIX dev lo", rtnetlink(7).
func AddLocal(prefixes []netip.Prefix) error {
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, lo); err != nil {
		return fmt.Errorf("ioctl SIOCGIFINDEX lo: %w", err)
	}
	for i, p := range prefixes {
		if err := ask(fd, uint32(i+1), localRoute(uint32(i+1), p, lo.Uint32())); err != nil {
			return fmt.Errorf("add the route of %s: %w", p, err)
		}
	}
	return nil
}

// localRoute is a request for a route: struct nlmsghdr, struct rtmsg, and two attributes.
func localRoute(number uint32, p netip.Prefix, device uint32) []byte {
	family := byte(unix.AF_INET)
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	n := binary.NativeEndian
	attribute := func(b []byte, kind uint16, value []byte) []byte { // both are multiples of four bytes long
		b = n.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
		return append(n.AppendUint16(b, kind), value...)
	}
	b := n.AppendUint32(nil, 0) // the length; see below
	b = n.AppendUint16(b, unix.RTM_NEWROUTE)
	b = n.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b = n.AppendUint32(b, number)
	b = n.AppendUint32(b, 0) // our port; the kernel knows it
	// dst_len, src_len, tos, table, protocol, scope, type
	b = append(b, family, byte(p.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL)
	b = n.AppendUint32(b, 0) // flags
	b = attribute(b, unix.RTA_DST, p.Addr().AsSlice())
	b = attribute(b, unix.RTA_OIF, n.AppendUint32(nil, device))
	n.PutUint32(b, uint32(len(b)))
	return b
}

// ask sends a request over a netlink socket and waits for its acknowledgement, struct nlmsgerr:
// netlink(7). The kernel answers such a request before the write returns.
func ask(fd int, number uint32, request []byte) error {
	if _, err := unix.Write(fd, request); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	b := make([]byte, 4<<10)
	m, err := unix.Read(fd, b)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	n := binary.NativeEndian
	if m < unix.SizeofNlMsghdr+unix.SizeofNlMsgerr || n.Uint16(b[4:]) != unix.NLMSG_ERROR || n.Uint32(b[8:]) != number {
		return errors.New("the kernel answers another request")
	}
	if e := int32(n.Uint32(b[unix.SizeofNlMsghdr:])); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}

// NetworkCookie returns the number of the network namespace that a socket was made in: no other has
// had or will have it until the host boots. For a negative fd it's the calling thread's. socket(7),
// SO_NETNS_COOKIE, 5.14.
func NetworkCookie(fd int) (uint64, error) {
	if fd < 0 {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return 0, fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
	}
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("getsockopt SO_NETNS_COOKIE: %w", err)
	}
	return n, nil
}

// CheckFresh returns an error unless fd is a TCP or UDP socket of a family and a kind that isn't
// bound, listens nowhere and is connected to nothing.
func CheckFresh(fd, family, kind int) error {
	protocol := unix.IPPROTO_TCP
	if kind == unix.SOCK_DGRAM {
		protocol = unix.IPPROTO_UDP
	}
	for _, o := range [...]struct {
		name      string
		opt, want int
	}{{"SO_DOMAIN", unix.SO_DOMAIN, family}, {"SO_TYPE", unix.SO_TYPE, kind}, {"SO_PROTOCOL", unix.SO_PROTOCOL, protocol}, {"SO_ACCEPTCONN", unix.SO_ACCEPTCONN, 0}} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.opt)
		if err != nil {
			return fmt.Errorf("getsockopt %s: %w", o.name, err)
		}
		if got != o.want {
			return fmt.Errorf("its %s is %d, want %d", o.name, got, o.want)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	free := false
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		free = a.Port == 0 && a.Addr == [4]byte{}
	case *unix.SockaddrInet6:
		free = a.Port == 0 && a.Addr == [16]byte{}
	}
	if _, err := unix.Getpeername(fd); !free || !errors.Is(err, unix.ENOTCONN) {
		return errors.New("it's bound or connected")
	}
	return nil
}

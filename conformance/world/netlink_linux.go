package world

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// vethPeer is VETH_INFO_PEER of linux/veth.h.
const vethPeer = 1

// attr is a netlink attribute: length, type, data, filled up to four bytes.
func attr(typ int, data ...[]byte) []byte {
	n := 4
	for _, d := range data {
		n += len(d)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(n))
	b = binary.NativeEndian.AppendUint16(b, uint16(typ))
	for _, d := range data {
		b = append(b, d...)
	}
	return append(b, make([]byte, (4-n%4)%4)...)
}

func number(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

func text(s string) []byte { return append([]byte(s), 0) }

// ask sends one request of rtnetlink from the thread's network namespace, and waits for its answer.
func ask(what string, typ, flags int, body ...[]byte) error {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: socket: %w", err)
	}
	defer syscall.Close(fd)
	m := make([]byte, syscall.NLMSG_HDRLEN)
	for _, b := range body {
		m = append(m, b...)
	}
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], uint16(typ))
	binary.NativeEndian.PutUint16(m[6:], uint16(flags|syscall.NLM_F_REQUEST|syscall.NLM_F_ACK))
	if err := syscall.Sendto(fd, m, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return fmt.Errorf("%s: send: %w", what, err)
	}
	b := make([]byte, os.Getpagesize())
	n, _, err := syscall.Recvfrom(fd, b, 0)
	switch {
	case err != nil:
		return fmt.Errorf("%s: receive: %w", what, err)
	case n < 20 || binary.NativeEndian.Uint16(b[4:]) != syscall.NLMSG_ERROR:
		return fmt.Errorf("%s: no answer of netlink", what)
	}
	if e := -int32(binary.NativeEndian.Uint32(b[16:])); e != 0 {
		return fmt.Errorf("%s: %w", what, syscall.Errno(e))
	}
	return nil
}

// pair makes two joined devices: near in the thread's namespace, far in the one of peer.
func pair(near, far string, peer *os.File) error {
	device := make([]byte, syscall.SizeofIfInfomsg)
	return ask("make veth", syscall.RTM_NEWLINK, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL, device, attr(syscall.IFLA_IFNAME, text(near)),
		attr(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, text("veth")),
			attr(unix.IFLA_INFO_DATA, attr(vethPeer, device, attr(syscall.IFLA_IFNAME, text(far)), attr(unix.IFLA_NET_NS_FD, number(int(peer.Fd())))))))
}

// up switches a device on.
func up(name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	device := make([]byte, syscall.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(device[4:], uint32(i.Index))
	binary.NativeEndian.PutUint32(device[8:], syscall.IFF_UP)
	binary.NativeEndian.PutUint32(device[12:], syscall.IFF_UP)
	return ask("switch on "+name, syscall.RTM_NEWLINK, 0, device)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return syscall.AF_INET
	}
	return syscall.AF_INET6
}

// address gives a device an address, which counts at once.
func address(name, prefix string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	p := netip.MustParsePrefix(prefix)
	a := p.Addr().AsSlice()
	m := append([]byte{family(p.Addr()), byte(p.Bits()), unix.IFA_F_NODAD, 0}, number(i.Index)...)
	return ask("add "+prefix, syscall.RTM_NEWADDR, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL, m, attr(syscall.IFA_LOCAL, a), attr(syscall.IFA_ADDRESS, a))
}

// local makes each address of prefix one of this namespace's own.
func local(prefix string) error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	p := netip.MustParsePrefix(prefix)
	m := []byte{family(p.Addr()), byte(p.Bits()), 0, 0, syscall.RT_TABLE_LOCAL, syscall.RTPROT_BOOT, syscall.RT_SCOPE_HOST, syscall.RTN_LOCAL, 0, 0, 0, 0}
	return ask("route local "+prefix, syscall.RTM_NEWROUTE, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL, m,
		attr(syscall.RTA_DST, p.Addr().AsSlice()), attr(syscall.RTA_OIF, number(lo.Index)))
}

// outward routes all else to a gateway.
func outward(gateway string) error {
	a := netip.MustParseAddr(gateway)
	m := []byte{family(a), 0, 0, 0, syscall.RT_TABLE_MAIN, syscall.RTPROT_BOOT, syscall.RT_SCOPE_UNIVERSE, syscall.RTN_UNICAST, 0, 0, 0, 0}
	return ask("route to "+gateway, syscall.RTM_NEWROUTE, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL, m, attr(syscall.RTA_GATEWAY, a.AsSlice()))
}

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// netProbes are cases 40 to 46 and 106: the network, and socket families that are there
// for other things.
var netProbes = map[string]probe{
	"tcp":      tcp,
	"listen":   listen,
	"udp":      udp,
	"socket":   socket,
	"families": families,
	"option":   option,
}

func sockaddr(a args) (int, unix.Sockaddr) {
	if to, err := netip.ParseAddr(a.word["to"]); err == nil && to.Is4() { // instead of the loopback's
		return unix.AF_INET, &unix.SockaddrInet4{Port: a.num("port"), Addr: to.As4()}
	}
	if a.str("ip") == "6" {
		return unix.AF_INET6, &unix.SockaddrInet6{Port: a.num("port"), Addr: [16]byte{15: 1}}
	}
	return unix.AF_INET, &unix.SockaddrInet4{Port: a.num("port"), Addr: [4]byte{127, 0, 0, 1}}
}

// tcp sends token to a listener on the host's loopback. Fast open sends with
// the connection request and never calls connect; MPTCP is TCP to the other
// side and another protocol to Landlock.
func tcp(a args) (string, error) {
	family, addr := sockaddr(a)
	how, token, proto := a.str("how"), []byte(a.str("token")), 0
	if how == "mptcp" {
		proto = unix.IPPROTO_MPTCP
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM, proto)
	if err != nil {
		return "", failed("socket", err)
	}
	timeout := unix.Timeval{Sec: 2}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	op, call := "connect", func() error { return unix.Connect(fd, addr) }
	if how == "fastopen" {
		op, call = "sendto MSG_FASTOPEN", func() error { return unix.Sendto(fd, token, unix.MSG_FASTOPEN, addr) }
	}
	err = again(call)
	// Connected is what an interrupted call may leave the new socket.
	if err != nil && err != unix.EISCONN || err == nil && how == "fastopen" {
		return "", failed(op, err)
	}
	return "", failed("write", again(func() error { _, err := unix.Write(fd, token); return err }))
}

// again makes a call again for as long as a signal interrupts it. Of a socket
// with SO_SNDTIMEO the kernel restarts none: signal(7).
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// listen waits for a connection from the host, and answers with the token.
func listen(a args) (string, error) {
	family, addr := sockaddr(a)
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", failed("socket", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return "", failed("setsockopt", err)
	}
	if a.word["bind"] != "no" {
		if err := unix.Bind(fd, addr); err != nil {
			return "", failed("bind", err)
		}
	}
	if err := unix.Listen(fd, 1); err != nil {
		return "", failed("listen", err)
	}
	if a.word["once"] == "listening" {
		return "listening", nil
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if n, _ := unix.Poll(p, 100); n > 0 {
			conn, _, err := unix.Accept(fd)
			if err != nil {
				return "", failed("accept", err)
			}
			if err := again(func() error { _, err := unix.Write(conn, []byte(a.str("token"))); return err }); err != nil {
				return "", failed("write", err)
			}
			// Stay until the caller has gone, or it sees a reset and not us.
			stay := []unix.PollFd{{Fd: int32(conn), Events: unix.POLLIN}}
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
				if _, err := unix.Poll(stay, 500); err != unix.EINTR {
					break
				}
			}
			return "called", nil
		}
	}
	return "", failed("accept", unix.ETIMEDOUT)
}

// udp sends token without connecting.
func udp(a args) (string, error) {
	family, addr := sockaddr(a)
	proto := 0
	if a.str("how") == "udplite" {
		proto = unix.IPPROTO_UDPLITE
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, proto)
	if err != nil {
		return "", failed("socket", err)
	}
	if a.str("how") == "connect" {
		if err := unix.Connect(fd, addr); err != nil {
			return "", failed("connect", err)
		}
		_, err = unix.Write(fd, []byte(a.str("token")))
		return "", failed("write", err)
	}
	return "", failed("sendto", unix.Sendto(fd, []byte(a.str("token")), 0, addr))
}

// socket makes a socket of the given numbers.
func socket(a args) (string, error) {
	_, err := unix.Socket(a.num("family"), a.num("type"), a.num("proto"))
	return "", failed("socket", err)
}

// option sets an option of a socket that adds code to the kernel's way, or leads elsewhere.
func option(a args) (string, error) {
	kind := unix.SOCK_STREAM
	if a.str("type") == "dgram" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind, 0)
	if err != nil {
		return "", failed("socket", err)
	}
	defer unix.Close(fd)
	accept := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}}
	program := unix.SockFprog{Len: 1, Filter: &accept[0]}
	switch how := a.str("how"); how {
	case "attach-filter":
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	case "reuseport-cbpf":
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return "", failed("setsockopt SO_REUSEPORT", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return "", failed("bind", err)
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program)
	case "bind-device":
		err = unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo")
	case "zerocopy":
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1)
	case "fastopen":
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
	case "maxseg":
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 88)
	case "ip-options":
		err = unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x00")
	case "membership":
		err = unix.SetsockoptIPMreq(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreq{Multiaddr: [4]byte{239, 1, 2, 3}, Interface: [4]byte{127, 0, 0, 1}})
	case "encap":
		err = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_ENCAP, 2) // UDP_ENCAP_ESPINUDP
	default:
		return "", fmt.Errorf("no option named %q", how)
	}
	return "", failed("setsockopt", err)
}

// families tries every family but those of the network and of unix sockets,
// with each type: what is left is reachable kernel code that nothing needs.
func families(args) (string, error) {
	var open []string
	last := error(unix.EAFNOSUPPORT)
	for family := range 64 {
		switch family {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6:
			continue
		}
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET, unix.SOCK_RDM} {
			fd, err := unix.Socket(family, kind, 0)
			if err == nil {
				unix.Close(fd)
				open = append(open, fmt.Sprintf("family %d type %d", family, kind))
			} else {
				last = err
			}
		}
	}
	if len(open) == 0 {
		return "", failed("socket of every family", last)
	}
	return strings.Join(open, ", "), nil
}

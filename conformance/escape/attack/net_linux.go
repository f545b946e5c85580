package main

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// netProbes are cases 40 to 46: the network, and socket families that are there
// for other things.
var netProbes = map[string]probe{
	"tcp":      tcp,
	"listen":   listen,
	"udp":      udp,
	"socket":   socket,
	"families": families,
}

func sockaddr(a args) (int, unix.Sockaddr) {
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

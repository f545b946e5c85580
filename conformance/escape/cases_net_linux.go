package main

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// ipcCases are 32 to 38: rendezvous that no file permission guards.
func ipcCases() []attackCase {
	out := []attackCase{
		{number: 32, variant: "search", name: "keyctl-user-keyring", attack: "find a host key in the user's keyring", stopped: both(filtered...),
			stage: func(s *stage) (scene, error) { return keyScene(s, "key-search") }},
		{number: 32, variant: "request", name: "keyctl-user-keyring", attack: "find it with request_key", stopped: both(filtered...),
			stage: func(s *stage) (scene, error) { return keyScene(s, "key-request") }},
		{number: 32, variant: "list", name: "keyctl-user-keyring", attack: "read its name in /proc/keys", stopped: at(fenced, []string{"ENOKEY"}),
			stage: func(s *stage) (scene, error) {
				_, err := s.plant("key", s.nonce)
				return scene{probe: "key-list", args: []string{"desc=" + s.nonce}}, err
			}},
		call(33, "add", "add-key", "create a key", both(filtered...), "key-add", "desc=palyra"),
		call(34, "", "keyctl-session-to-parent", "give the parent a new session keyring (CVE-2024-42318)", both(filtered...), "key-parent"),
		{number: 35, name: "sysv-shm-host", attack: "attach the host's shared memory segment", stopped: both("ENOENT", "EPERM", "ENOSYS", "SIGSYS"),
			stage: func(s *stage) (scene, error) {
				key := number31()
				secret, err := s.plant("shm", key)
				return scene{probe: "shm", args: []string{"key=" + key}, canary: leaked(secret)}, err
			}},
		{number: 36, variant: "open", name: "posix-mq", attack: "take a message from a host queue", stopped: both("ENOENT", "EPERM", "ENOSYS", "SIGSYS", "EACCES"),
			stage: func(s *stage) (scene, error) {
				secret, err := s.plant("mq", s.nonce)
				return scene{probe: "mq", args: []string{"name=" + s.nonce}, canary: leaked(secret)}, err
			}},
		{number: 36, variant: "create", name: "posix-mq", attack: "create a queue that a host process can open", stopped: both("OPEN", "EPERM", "ENOSYS", "SIGSYS", "EACCES"),
			note: "OPEN: it is in a private IPC namespace",
			stage: func(s *stage) (scene, error) {
				return scene{probe: "mq-create", args: []string{"name=" + s.nonce}, canary: func(*outcome) (bool, string) {
					_, _, err := s.hand(nil, "", "exists", "mq="+s.nonce)
					return err == nil, "the host has the queue"
				}}, nil
			}},
	}
	refusedPeer := []string{"ECONNREFUSED", "EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "SIGSYS"}
	for _, kind := range []string{"stream", "dgram"} {
		out = append(out,
			attackCase{number: 37, variant: kind, name: "abstract-unix", attack: "reach a host's abstract socket", stopped: both(refusedPeer...),
				stage: func(s *stage) (scene, error) { return unixScene(s, kind, "@"+s.nonce, "") }},
			attackCase{number: 38, variant: kind, name: "pathname-unix", attack: "reach a socket in the host's files",
				stopped: at(refusedPeer, join(notThere, refusedPeer)), stage: func(s *stage) (scene, error) {
					return unixScene(s, kind, filepath.Join(s.dir, "sock"), "")
				}},
			attackCase{number: 38, variant: "workspace-" + kind, name: "pathname-unix", attack: "… in the workspace",
				stopped: both(refusedPeer...), stage: func(s *stage) (scene, error) {
					ws, err := s.workspace()
					if err != nil {
						return scene{}, err
					}
					return unixScene(s, kind, filepath.Join(ws, "sock"), ws)
				}})
	}
	return out
}

func keyScene(s *stage, probe string) (scene, error) {
	secret, err := s.plant("key", s.nonce)
	return scene{probe: probe, args: []string{"desc=" + s.nonce}, canary: leaked(secret)}, err
}

// number31 is a random key for shmget.
func number31() string {
	var b [4]byte
	rand.Read(b[:])
	return strconv.Itoa(int(binary.BigEndian.Uint32(b[:])>>1) | 1)
}

func unixScene(s *stage, kind, path, ws string) (scene, error) {
	network := "unix"
	if kind == "dgram" {
		network = "unixgram"
	}
	l, _, err := s.listen(network, path)
	if err != nil {
		return scene{}, err
	}
	if ws != "" { // by a name that is the same inside and outside: the working directory
		path = filepath.Base(path)
	}
	return scene{probe: "unix", args: []string{"type=" + kind, "path=" + path, "token=" + s.nonce},
		opt: options{workspace: ws}, canary: l.heard(s.nonce)}, nil
}

// netCases are 40 to 46, 105 and 106: the network and other socket families.
func netCases() []attackCase {
	var out []attackCase
	for _, v := range []struct{ variant, ip, how, attack string }{
		{"v4", "4", "connect", "connect to the host's loopback"}, {"v6", "6", "connect", "… over IPv6"},
		{"fastopen", "4", "fastopen", "… with MSG_FASTOPEN"}, {"mptcp", "4", "mptcp", "… with MPTCP, which isn't TCP to Landlock"},
	} {
		out = append(out, attackCase{number: 40, variant: v.variant, name: "tcp-loopback-host", attack: v.attack,
			stopped: both(join(noNetwork, []string{"ENOTSUP"})...), note: "ENOTSUP: the network has no fast open",
			stage: func(s *stage) (scene, error) { return tcpScene(s, v.ip, v.how) }})
	}
	out = append(out,
		attackCase{number: 40, variant: "listen", name: "tcp-loopback-host", attack: "listen on a port that the host calls",
			stopped: both(join(noNetwork, []string{"ETIMEDOUT"})...), note: "ETIMEDOUT: where the host can't call", stage: listenScene},
		attackCase{number: 40, variant: "listen-unbound", name: "tcp-loopback-host", attack: "… on a port of the kernel's choice, without bind",
			stopped: map[string][]string{"b": noNetwork}, absent: map[string]string{"c": "its own network namespace"},
			stage: func(*stage) (scene, error) {
				return scene{probe: "listen", args: []string{"ip=4", "port=0", "bind=no", "once=listening"}}, nil
			}})
	out = append(out, attackCase{number: 40, variant: "address", name: "tcp-loopback-host", attack: "connect to another address of the host's", stopped: both(noNetwork...),
		stage: func(s *stage) (scene, error) {
			to := ownAddress()
			l, addr, err := s.listen("tcp4", to+":0")
			if err != nil {
				return scene{}, err
			}
			return scene{probe: "tcp", args: []string{"ip=4", "how=connect", "to=" + to, fmt.Sprintf("port=%d", addr.(*net.TCPAddr).Port), "token=" + s.nonce}, canary: l.heard(s.nonce)}, nil
		}})
	for _, v := range []struct{ variant, ip, how, attack string }{
		{"v4", "4", "sendto", "send a datagram without connect"}, {"v6", "6", "sendto", "… over IPv6"},
		{"connected", "4", "connect", "… with connect"}, {"udplite", "4", "udplite", "… with UDP-Lite"},
	} {
		out = append(out, attackCase{number: 41, variant: v.variant, name: "udp-exfil", attack: v.attack,
			stopped: both(join(noNetwork, []string{"OPEN"})...), note: "OPEN: sent to the cell's own loopback",
			stage: func(s *stage) (scene, error) { return udpScene(s, v.ip, v.how) }})
	}
	sockets := []struct {
		number              int
		variant, name       string
		family, kind, proto int
	}{
		{42, "icmp", "raw-packet-icmp", syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP},
		{42, "icmp6", "raw-packet-icmp", syscall.AF_INET6, syscall.SOCK_RAW, syscall.IPPROTO_ICMPV6},
		{42, "ping", "raw-packet-icmp", syscall.AF_INET, syscall.SOCK_DGRAM, syscall.IPPROTO_ICMP},
		{42, "packet", "raw-packet-icmp", syscall.AF_PACKET, syscall.SOCK_RAW, 0},
		{43, "route", "af-netlink", syscall.AF_NETLINK, syscall.SOCK_RAW, 0},
		{43, "sock-diag", "af-netlink", syscall.AF_NETLINK, syscall.SOCK_RAW, 4},
		{43, "netfilter", "af-netlink", syscall.AF_NETLINK, syscall.SOCK_RAW, 12},
		{43, "uevent", "af-netlink", syscall.AF_NETLINK, syscall.SOCK_RAW, 15},
		{43, "generic", "af-netlink", syscall.AF_NETLINK, syscall.SOCK_DGRAM, 16},
		{44, "", "af-alg", 38, syscall.SOCK_SEQPACKET, 0},
		{45, "stream", "af-vsock", 40, syscall.SOCK_STREAM, 0},
		{45, "seqpacket", "af-vsock", 40, syscall.SOCK_SEQPACKET, 0},
		{46, "rxrpc", "af-rxrpc-key-xfrm", 33, syscall.SOCK_DGRAM, syscall.AF_INET},
		{46, "key", "af-rxrpc-key-xfrm", 15, syscall.SOCK_RAW, 2},
		{46, "xfrm", "af-rxrpc-key-xfrm", syscall.AF_NETLINK, syscall.SOCK_RAW, 6},
	}
	for _, k := range sockets {
		out = append(out, call(k.number, k.variant, k.name, fmt.Sprintf("socket(%d,%d,%d)", k.family, k.kind, k.proto),
			both(noFamily...), "socket", fmt.Sprintf("family=%d", k.family), fmt.Sprintf("type=%d", k.kind), fmt.Sprintf("proto=%d", k.proto)))
	}
	for _, o := range []struct{ how, kind, attack string }{
		{"attach-filter", "dgram", "run a program of one's own in the kernel, for each packet"},
		{"reuseport-cbpf", "dgram", "… to choose the socket of a packet"},
		{"bind-device", "stream", "choose the interface"},
		{"zerocopy", "stream", "have the kernel send from one's own pages"},
		{"fastopen", "stream", "send with the request for a connection"},
		{"maxseg", "stream", "have segments of 88 bytes, each with its overhead"},
		{"ip-options", "dgram", "write options into IP headers"},
		{"membership", "dgram", "join a group"},
		{"encap", "dgram", "have packets taken for IPsec"},
	} {
		out = append(out, call(106, o.how, "socket-option", o.attack, both("EPERM", "ENOPROTOOPT", "EAFNOSUPPORT", "SIGSYS"), "option", "how="+o.how, "type="+o.kind))
	}
	out = append(out, attackCase{number: 105, name: "other-cell", attack: "connect to what listens on another cell's loopback", stopped: both(noNetwork...),
		stage: func(s *stage) (scene, error) {
			port, heard, err := s.peer(s.nonce)
			return scene{probe: "tcp", args: []string{"ip=4", "how=connect", "port=" + port, "token=" + s.nonce}, canary: heard}, err
		}})
	return append(out, call(46, "families", "af-rxrpc-key-xfrm", "a socket of any family but UNIX, INET and INET6", both(noFamily...), "families"))
}

// ownAddress returns an address of the host's other interfaces, or 127.0.0.1 if it has none.
// Packets to it don't leave the host.
func ownAddress() string {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); err == nil && ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

func loopback(ip string) string {
	if ip == "6" {
		return "[::1]:0"
	}
	return "127.0.0.1:0"
}

func tcpScene(s *stage, ip, how string) (scene, error) {
	l, addr, err := s.listen("tcp"+ip, loopback(ip))
	if err != nil {
		return scene{}, err
	}
	return scene{probe: "tcp", args: []string{"ip=" + ip, "how=" + how, fmt.Sprintf("port=%d", addr.(*net.TCPAddr).Port), "token=" + s.nonce}, canary: l.heard(s.nonce)}, nil
}

func udpScene(s *stage, ip, how string) (scene, error) {
	if how == "udplite" {
		// No program here speaks it: the host can only see that the datagram left.
		return scene{probe: "udp", args: []string{"ip=" + ip, "how=" + how, "port=9", "token=" + s.nonce}}, nil
	}
	l, addr, err := s.listen("udp"+ip, loopback(ip))
	if err != nil {
		return scene{}, err
	}
	return scene{probe: "udp", args: []string{"ip=" + ip, "how=" + how, fmt.Sprintf("port=%d", addr.(*net.UDPAddr).Port), "token=" + s.nonce}, canary: l.heard(s.nonce)}, nil
}

// listenScene calls the probe from the host while it listens. The listener must know the
// token: the port is free until the probe has it, and the host may give it to another
// listener.
func listenScene(s *stage) (scene, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return scene{}, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	sc := scene{probe: "listen", args: []string{"ip=4", fmt.Sprintf("port=%d", port), "token=" + s.nonce}}
	var called atomic.Bool
	stop := make(chan struct{})
	s.later(func() { close(stop) })
	go func() {
		for {
			if answered(port, s.nonce) {
				called.Store(true)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	sc.canary = func(*outcome) (bool, string) {
		s.seen(called.Load)
		return called.Load(), fmt.Sprintf("called from the host: %t", called.Load())
	}
	return sc, nil
}

// answered calls a port of the loopback and reports whether the token comes back.
func answered(port int, token string) bool {
	c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", port), pause)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Second)) // a connection has deadlines
	got := make([]byte, len(token))
	_, err = io.ReadFull(c, got)
	return err == nil && string(got) == token
}

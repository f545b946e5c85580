package seccomp

const (
	afUnix, afInet, afInet6 = 1, 2, 10

	sockStream, sockDgram, sockSeqpacket = 1, 2, 5
	sockType                             = 0xf // SOCK_TYPE_MASK; the rest is SOCK_CLOEXEC and SOCK_NONBLOCK

	protoTCP, protoUDP = 6, 17

	solIP, solSocket, solTCP, solIPv6 = 0, 1, 6, 41

	sendBuffer    = 7 // SO_SNDBUF
	receiveBuffer = 8 // SO_RCVBUF
	unchanged     = 0 // success: the kernel, too, gives less than it's asked for

	zeroCopy = 35 // TCP_ZEROCOPY_RECEIVE
)

// The options of sockets of the Internet's families that programs use; asm-generic/socket.h,
// linux/tcp.h, linux/in.h, linux/in6.h. Each sets a number or a time. The others fail as if
// the kernel lacked them: programs in the kernel, keys, protocols above TCP, groups of
// multicast, other queues, other devices, pages of the program in the kernel's queues.
var (
	// SO_REUSEADDR, DONTROUTE, BROADCAST, SNDBUF, RCVBUF, KEEPALIVE, OOBINLINE, LINGER,
	// REUSEPORT, PASSCRED, RCVLOWAT, RCVTIMEO, SNDTIMEO, and the last two with longer times
	socketOptions = []uint64{2, 5, 6, sendBuffer, receiveBuffer, 9, 10, 13, 15, 16, 18, 20, 21, 66, 67}
	// TCP_NODELAY, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT, SYNCNT, LINGER2, DEFER_ACCEPT,
	// WINDOW_CLAMP, QUICKACK, USER_TIMEOUT, NOTSENT_LOWAT
	tcpOptions = []uint64{1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 18, 25}
	// IP_TOS, TTL, PKTINFO, MTU_DISCOVER, RECVERR, RECVTTL, RECVTOS, BIND_ADDRESS_NO_PORT,
	// MULTICAST_TTL, MULTICAST_LOOP, MULTICAST_ALL
	ipOptions = []uint64{1, 2, 8, 10, 11, 12, 13, 24, 33, 34, 49}
	// IPV6_UNICAST_HOPS, MULTICAST_HOPS, MULTICAST_LOOP, MTU_DISCOVER, RECVERR, V6ONLY,
	// MULTICAST_ALL, RECVPKTINFO, RECVHOPLIMIT, RECVTCLASS, TCLASS
	ipv6Options = []uint64{16, 18, 19, 23, 25, 26, 29, 49, 51, 66, 67}
)

// socketRules allow address families by name: what is not named does not exist
// (AF_ALG, AF_VSOCK, AF_NETLINK, AF_PACKET, AF_KEY, AF_RXRPC, ...).
func socketRules(noPair, namespaces, inet, unix, uncounted bool) []Rule {
	options := Rule{Calls: []string{"setsockopt"}, Else: Allow,
		Clauses: []Clause{
			// SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF
			when(Errno(EPERM), is(1, solSocket), is(2, 26, 50, 51, 52)),
			when(Errno(EPERM), is(1, solTCP), is(2, 31)), // TCP_ULP: kTLS and friends
		},
		Why: "options, but no programs in the kernel and no protocols on top of TCP"}
	read := allow("options", "getsockopt")
	if !uncounted {
		options.Clauses = append(options.Clauses, when(Errno(unchanged), is(1, solSocket), is(2, sendBuffer)))
		options.Why += "; and no larger queues, whose owner a sample can't see"
	}
	if inet {
		if !uncounted {
			options.Clauses = append(options.Clauses, when(Errno(unchanged), is(1, solSocket), is(2, receiveBuffer)))
		}
		options.Clauses = append(options.Clauses, when(Allow, is(1, solSocket), is(2, socketOptions...)), when(Allow, is(1, solTCP), is(2, tcpOptions...)),
			when(Allow, is(1, solIP), is(2, ipOptions...)), when(Allow, is(1, solIPv6), is(2, ipv6Options...)))
		options.Else = Errno(ENOPROTOOPT)
		options.Why += "; of those of TCP and UDP, the ones that programs use"
		read.Clauses = []Clause{when(Errno(ENOPROTOOPT), is(1, solTCP), is(2, zeroCopy))}
		read.Why += "; but one maps the queue of a connection into the program"
	}
	socket := Rule{Calls: []string{"socket"}, Else: Errno(EAFNOSUPPORT),
		Why: "only families and types that the cell's own namespaces make harmless"}
	pair := Rule{Calls: []string{"socketpair"}, Else: Errno(EAFNOSUPPORT),
		Why: "two ends of one connection"}
	// A datagram pair could be reconnected, or send, to any socket in reach.
	pair.Clauses = []Clause{when(Allow, is(0, afUnix), masked(1, sockType, sockStream, sockSeqpacket))}
	if noPair {
		pair.Clauses = nil
		return []Rule{options, read, socket, pair,
			deny(EPERM, "only sockets that the program was given exist here", "connect", "bind", "listen", "accept", "accept4")}
	}
	if !namespaces {
		return []Rule{options, read, socket, pair,
			deny(EPERM, "no socket of this tier has anything to connect to",
				"connect", "bind", "listen", "accept", "accept4")}
	}
	if unix {
		each := when(Allow, is(0, afUnix), masked(1, sockType, sockStream, sockDgram, sockSeqpacket))
		pair.Clauses = []Clause{each}
		socket.Clauses = []Clause{each}
	}
	if !inet && !unix {
		return []Rule{options, read, socket, pair,
			deny(EPERM, "no socket that can be made here has anything to connect to", "connect", "bind", "listen", "accept", "accept4")}
	}
	if inet {
		socket.Clauses = append(socket.Clauses,
			when(Allow, is(0, afInet, afInet6), masked(1, sockType, sockStream), is(2, 0, protoTCP)),
			when(Allow, is(0, afInet, afInet6), masked(1, sockType, sockDgram), is(2, 0, protoUDP)),
			when(Errno(EPROTONOSUPPORT), is(0, afInet, afInet6), masked(1, sockType, sockStream, sockDgram)))
	}
	return []Rule{options, read, socket, pair,
		allow("who is in reach is decided by the network namespace, mounts and Landlock",
			"connect", "bind", "listen", "accept", "accept4")}
}

const fastOpen = 0x20000000 // MSG_FASTOPEN

// sendRules allow sending on sockets that exist. The flag is in the fourth argument, of sendmsg in
// the third. As on a kernel without it (EOPNOTSUPP, here ENOTSUP) programs connect first.
func sendRules(noFastOpen bool) []Rule {
	const why = "send on sockets that exist"
	if !noFastOpen {
		return []Rule{allow(why, "sendto", "sendmsg", "sendmmsg")}
	}
	refuse := func(arg int, calls ...string) Rule {
		return Rule{Calls: calls, Clauses: []Clause{when(Errno(ENOTSUP), anyBit(arg, fastOpen))}, Else: Allow,
			Why: why + ", but not with a request for a connection, which Landlock doesn't see"}
	}
	return []Rule{refuse(3, "sendto", "sendmmsg"), refuse(2, "sendmsg")}
}

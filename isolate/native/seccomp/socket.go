package seccomp

const (
	afUnix, afInet, afInet6 = 1, 2, 10

	sockStream, sockDgram, sockSeqpacket = 1, 2, 5
	sockType                             = 0xf // SOCK_TYPE_MASK; the rest is SOCK_CLOEXEC and SOCK_NONBLOCK

	protoTCP, protoUDP = 6, 17

	solSocket, solTCP = 1, 6

	sendBuffer = 7 // SO_SNDBUF
	unchanged  = 0 // success: the kernel, too, gives less than it's asked for
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
	if !uncounted {
		options.Clauses = append(options.Clauses, when(Errno(unchanged), is(1, solSocket), is(2, sendBuffer)))
		options.Why += "; and no larger queues, whose owner a sample can't see"
	}
	socket := Rule{Calls: []string{"socket"}, Else: Errno(EAFNOSUPPORT),
		Why: "only families and types that the cell's own namespaces make harmless"}
	pair := Rule{Calls: []string{"socketpair"}, Else: Errno(EAFNOSUPPORT),
		Why: "two ends of one connection"}
	// A datagram pair could be reconnected, or send, to any socket in reach.
	pair.Clauses = []Clause{when(Allow, is(0, afUnix), masked(1, sockType, sockStream, sockSeqpacket))}
	if noPair {
		pair.Clauses = nil
		return []Rule{options, socket, pair,
			deny(EPERM, "only sockets that the program was given exist here", "connect", "bind", "listen", "accept", "accept4")}
	}
	if !namespaces {
		return []Rule{options, socket, pair,
			deny(EPERM, "no socket of this tier has anything to connect to",
				"connect", "bind", "listen", "accept", "accept4")}
	}
	if unix {
		each := when(Allow, is(0, afUnix), masked(1, sockType, sockStream, sockDgram, sockSeqpacket))
		pair.Clauses = []Clause{each}
		socket.Clauses = []Clause{each}
	}
	if !inet && !unix {
		return []Rule{options, socket, pair,
			deny(EPERM, "no socket that can be made here has anything to connect to", "connect", "bind", "listen", "accept", "accept4")}
	}
	if inet {
		socket.Clauses = append(socket.Clauses,
			when(Allow, is(0, afInet, afInet6), masked(1, sockType, sockStream), is(2, 0, protoTCP)),
			when(Allow, is(0, afInet, afInet6), masked(1, sockType, sockDgram), is(2, 0, protoUDP)),
			when(Errno(EPROTONOSUPPORT), is(0, afInet, afInet6), masked(1, sockType, sockStream, sockDgram)))
	}
	return []Rule{options, socket, pair,
		allow("who is in reach is decided by the network namespace, mounts and Landlock",
			"connect", "bind", "listen", "accept", "accept4")}
}

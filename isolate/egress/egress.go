// Package egress is palyra-egress: it resolves and connects for calls, and nothing else does.
//
//	err := egress.Serve(ctx, conn, egress.Config{}) // until palyra closes its side of conn
//
// A call has an order (isolate/egress/wire): canonical rules and limits. palyra-cell hands over
// sockets of the call's network namespace (isolate/egress/handover), in which two ranges of
// addresses lead to the loopback interface. The server binds them there:
//
//   - a resolver, which gives each allowed name an address of its own in these ranges
//   - for each such name and each port of its rules a listening socket at the name's address, once
//     the name was asked for: a connection's local address says which name it is for
//   - one at each address literal of the rules, and two proxies for programs that insist
//
// # What is checked
//
// A name is looked up once in a call, when the program first asks for it, and its addresses are
// kept to the call's end. If one of them lies where names may not lead (call/egress/reach) and no
// rule names its network with the port, all are refused for that port. Connections go to the kept
// addresses and never look up again: a name that changes between the check and the connection, or
// between two connections, changes nothing. CNAMEs on the way don't count: the rule is about the
// name that was asked for, the check about the addresses at the end.
//
// # What is inspected
//
// Connections to hosts with rules about requests, or with uses of secrets, are led through
// isolate/egress/inspect. In a call with uses, placeholders are looked for in all that the program
// sends: questions of the DNS, heads for the proxies, and the bytes of connections that pass,
// before they're passed on. One that is found ends the session, with its place in the evidence.
//
// # What bounds a call
//
// Each connection belongs to a session, counts against its limits, its owner's share and the
// process's bounds, and ends with it. One owner's calls have at most half of the process's
// sessions, connections, descriptors and lookups, and one call an eighth of the lookups. What one
// side sends is read when the other side can take it: up to one buffer of 64 KiB for each direction
// is on its way, or of 1 MiB for 32 of them that have more to pass, besides what the kernel holds
// for both sockets, of which the window that a host may fill is clamped. An end of one direction is
// passed on as such, a reset as a reset.
//
// # What it does not protect against
//
// An allowed host gets what the program sends. Whether a name's addresses are its owner's is up to
// the resolver. The program sees a connection made before the host's is: a host that refuses looks
// like one that accepts and resets. The process judges bytes of strangers (DNS answers, greetings
// of TLS, proxy requests, requests and answers of inspected hosts); one that takes it over has the
// network, the values and authorities of the calls that it serves, and nothing else of the host.
package egress

import (
	"crypto/x509"
	"net/netip"

	"palyra/isolate/egress/wire"
)

// Config says where names are looked up, and bounds the process. Its zero value is the host's
// resolver and default bounds.
type Config struct {
	// Nameserver is asked in place of those in /etc/resolv.conf. Names in /etc/hosts come first.
	Nameserver netip.AddrPort
	// Sessions is how many calls may have one at once. Default: 256.
	Sessions int
	// Open is how many connections all calls may have open at once. Default: 1536, of which each may
	// hold 128 KiB that its slower side has yet to take: under half of the unit's MemoryMax.
	Open int
	// Descriptors is how many all calls may hold. Default: three quarters of RLIMIT_NOFILE.
	Descriptors int
	// Lookups is how many names may be asked for at once. Default: 64.
	Lookups int
	// Roots are what the certificates of inspected hosts are checked with. Default: none is good.
	Roots *x509.CertPool
	// Log is told what went wrong with a message or a session, without names or bytes of calls.
	// Default: nobody is.
	Log func(string)
}

// Order is what a session is opened with.
type Order = wire.Order

// Package world is a small Internet for tests: names, addresses and servers, in network namespaces
// of its own. No packet leaves the machine, and the test needs no privilege but user namespaces.
//
//	var place world.Place
//
//	func TestMain(m *testing.M) { os.Exit(place.Main(m)) }
//
//	func TestX(t *testing.T) {
//		w := place.Here(t)
//		w.Set("packages.example", world.Addrs("192.31.196.140"))
//		// programs that are started now reach https://packages.example/, and nothing else
//	}
//
// # How it is made
//
// Main starts the test binary again in a new mount and network namespace, with the same user id,
// and for users but root in a user namespace, too: that network namespace is the host. A second
// one, which a pair of virtual Ethernet devices joins to it, is the Internet. The sockets of the
// servers are made there and served by the test's own process, so a test changes the world by
// calling a function, and sees what arrived: [World.Connections], [World.Queries],
// [World.Requests]. Before the tests run, all capabilities are dropped, unless the user is root.
// /etc/resolv.conf and /etc/ssl/certs/ca-certificates.crt are the world's, for the processes of the
// test alone.
//
// # What is where
//
// Every address of 192.31.196.128/25 and 2620:4f:8000:1::/64 is the Internet's, and answers. These
// are blocks of AS112 (RFC 7535, 7534): global by the registries of special-purpose addresses, so
// that names may lead there, and without hosts of their own. For names that lie, 10.0.0.0/8,
// 169.254.169.254, fd00:1::/64 and the prefixes that carry IPv4 addresses (NAT64, 6to4, Teredo)
// answer, too. [Dead] is an address that swallows packets. Ports:
//
//	53    names; Resolver is the server, with TCP as well
//	80    HTTP: / says who was asked and where, /bytes/N, /forever, /sum of what is put, /to?URL redirects,
//	      /hold answers when the test says so; DNS at /dns-query; servers of MCP at /mcp (mcp.go)
//	      and what means no good to a client: /hops/N, /again, /stories, /tomorrow, /bomb, /echo (pages.go)
//	443   the same as HTTPS, HTTP/1.1 and HTTP/2, for every name below example; git at /repo.git,
//	      Go modules at /mod, a Python package at /simple; below /private the same, an npm registry,
//	      a server of MCP, a model and an echo, for those with the token of [World.Want]
//	7     echoes what it read once the client has closed its side: half-closed connections
//	9     accepts, and never speaks
//	19    speaks for ever
//	11    resets
//	13    keeps what it hears for [World.Heard], and says "heard"; so do, silently, UDP at 443, ICMP,
//	      SCTP and 53
//	5432  says "ready" and ends
//
// A program that isn't a test has a world by [Lend]: it serves the world where it is, and starts
// programs in it.
//
// What it does not show: the Internet's latency and loss, and firewalls of the host.
package world

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// The addresses of the world.
const (
	Resolver = "192.31.196.130"     // its DNS server
	Web      = "192.31.196.140"     // one of many: every address serves the same
	Web6     = "2620:4f:8000:1::40" //
	Dead     = "192.175.48.20"      // swallows packets
	Dead6    = "2620:4f:8000:3::20" //
	Private  = "10.0.0.5"           // an intranet's host
	Private6 = "fd00:1::5"          //
	Metadata = "169.254.169.254"    // a cloud's metadata: answers, so that a refusal shows something
)

// answering are the ranges that the Internet's servers answer in.
var answering = []string{"192.31.196.128/25", "2620:4f:8000:1::/64", "10.0.0.0/8", Metadata + "/32", "fd00:1::/64",
	"64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10"}

// A Reply is what the world's DNS server says to one question. The zero Reply is that the name
// exists and has nothing of the type.
type Reply struct {
	Addrs  []netip.Addr // those of the type that was asked for count
	CNAME  string       // the name that the addresses are of; it's looked up as well if Addrs is nil
	Fails  bool         // SERVFAIL
	Silent bool         // nothing is said, ever
	Other  bool         // the answer is to another question
}

// A Name says what the server replies to the n-th question for a name and a type ("A"), from 0.
type Name func(typ string, n int) Reply

// Addrs is a name that always has these addresses.
func Addrs(addrs ...string) Name {
	var as []netip.Addr
	for _, a := range addrs {
		as = append(as, netip.MustParseAddr(a))
	}
	return func(string, int) Reply { return Reply{Addrs: as} }
}

// Alias is a name that leads to another one.
func Alias(to string) Name {
	return func(string, int) Reply { return Reply{CNAME: to} }
}

// Then is a name that is first for one question of each type, and next from then on: rebinding.
func Then(first, next Name) Name {
	return func(typ string, n int) Reply {
		if n == 0 {
			return first(typ, n)
		}
		return next(typ, n-1)
	}
}

// Replies is a name that always gets the same reply.
func Replies(r Reply) Name { return func(string, int) Reply { return r } }

// Query is a question that arrived.
type Query struct {
	Name string // as asked, without the root's dot
	Type string // "A"
}

// Connection is a connection that a server of the world accepted.
type Connection struct {
	Local         netip.AddrPort // where the client connected to
	Read, Written int64          // bytes so far, of this side
	Closed        bool           // by either side
	ServerName    string         // what TLS was asked for
	TLSVersion    uint16
	Protocol      string // "h2"
}

// World is the Internet of a test process.
type World struct {
	Dir string // has ca.pem, the certificate of the world's authority

	certificate tls.Certificate // of the servers

	mu       sync.Mutex
	names    map[string]Name         // guarded by mu, as all that follows
	asked    map[[2]string]int       // how often, by name and type
	queries  []Query                 //
	conns    []*counted              // in the order of accept
	requests []*Request              // in the order of arrival
	held     chan struct{}           // closed when requests for /hold are answered; nil until Hold
	holding  int                     // requests that wait for it
	heard    []said                  // in the order of arrival
	sessions sessions                // of the servers of MCP
	token    string                  // what is private wants it; "" for none
	handlers map[string]http.Handler // by name
	changed  chan struct{}           // closed and made anew at each change
}

// Set says what a name is from now on. It's lower case, without the root's dot.
func (w *World) Set(name string, n Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = n
	for k := range w.asked {
		if k[0] == name {
			delete(w.asked, k)
		}
	}
}

// Serve has h answer the HTTP requests for a name, in place of the world's own pages.
func (w *World) Serve(name string, h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handlers == nil {
		w.handlers = make(map[string]http.Handler)
	}
	w.handlers[name] = h
}

func (w *World) handlerOf(host string) http.Handler {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.handlers[host]
}

// Forget drops what arrived so far, and all names.
func (w *World) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.names)
	clear(w.asked)
	clear(w.handlers)
	w.queries, w.conns, w.requests, w.heard, w.token = nil, nil, nil, nil, ""
}

// Queries returns the questions that arrived for a name or the names below it, each once, in order
// of arrival. All of them if name is "".
func (w *World) Queries(name string) (out []Query) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queries {
		n := strings.ToLower(q.Name)
		if (name == "" || n == name || strings.HasSuffix(n, "."+name)) && !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}

// Asked returns how often a name was asked for with a type, "A".
func (w *World) Asked(name, typ string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[[2]string{name, typ}]
}

// Connections returns the connections that arrived at a port of an address.
func (w *World) Connections(addr string, port uint16) (out []Connection) {
	want := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if c.local == want {
			out = append(out, c.seen())
		}
	}
	return out
}

// All returns every connection that arrived.
func (w *World) All() (out []Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		out = append(out, c.seen())
	}
	return out
}

// Heard returns where text was heard, in the order of arrival. Packets have no address.
func (w *World) Heard(text string) (out []netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.heard {
		if strings.Contains(h.text, text) {
			out = append(out, h.at)
		}
	}
	return out
}

// Until waits until ok is true of the world. It's asked at each change.
func (w *World) Until(ok func() bool) {
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		if ok() {
			return
		}
		<-changed
	}
}

// changedLocked wakes those that wait in Until.
func (w *World) changedLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

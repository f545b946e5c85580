package egress

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/proxy"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// TestName: a name of a rule gets addresses in the cell, over IPv4 and IPv6, and they lead to the
// host. Bytes are counted as they passed, and nothing is left after the end.
func TestName(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1", "2a05:5555::1"}, "six.example": {"2a05:5555::2"}})
	serveTCP(t, "5.5.0.1:443", echo)
	serveTCP(t, "[2a05:5555::2]:443", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443", "six.example:443")
	var want int64
	for i, kind := range []dns.Type{dns.A, dns.AAAA, dns.A} {
		name := []string{"a.example", "a.example", "six.example"}[i]
		at := netip.AddrPortFrom(netip.MustParseAddr(c.address(name, kind)), 443)
		conn := c.mustDial(at.String())
		text := bytes.Repeat([]byte("hello "), 100_000)
		want += int64(len(text))
		go func() {
			conn.Write(text)
			conn.CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, text) {
			t.Fatalf("%s: %d bytes of %d, %v", name, len(got), len(text), err)
		}
		conn.Close()
	}
	e := c.end()
	if e.Sent != want || e.Received != want || e.Queries != 3 || len(e.Denied) != 0 || len(e.Connections) != 3 {
		t.Errorf("%+v", e)
	}
	for i, x := range e.Connections {
		if x.Outcome != evidence.ConnClosed || x.Sent != 600_000 || x.Received != 600_000 || x.Port != 443 || x.DurationNS <= 0 {
			t.Errorf("%+v", x)
		}
		if want := []string{"5.5.0.1", "5.5.0.1", "2a05:5555::2"}[i]; x.Address != want {
			t.Errorf("connected %s, want %s", x.Address, want)
		}
	}
	if n := ns.times("a.example"); n != 2 { // A and AAAA, once
		t.Errorf("the world was asked %d times for a.example", n)
	}
	if left := goroutines(); left != "" {
		t.Errorf("left after the end:\n%s", left)
	}
}

// TestDenied: each thing that isn't given is denied by its name.
func TestDenied(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "private.example": {"10.9.0.1"}, "half.example": {"5.5.0.1", "10.9.0.1"},
		"mapped.example": {"64:ff9b::a09:1"}, "self.example": {"127.0.0.1"}, "cell.example": {"198.18.0.1"}, "broken.example": {"0.0.0.1"}})
	reached := make(chan string, 10)
	serveTCP(t, "10.9.0.1:443", func(c *net.TCPConn) { reached <- "10.9.0.1" })
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(20, wire.Limits{}, "a.example:443", "private.example:443", "half.example:443", "mapped.example:443", "self.example:443",
		"cell.example:443", "gone.example:443", "broken.example:443", "*.sub.example:443")
	const ok, failed, noName = 0, 2, 3
	for _, q := range []struct {
		name string
		kind dns.Type
		code int
	}{
		{"b.example", dns.A, noName}, {"b.example", dns.AAAA, noName}, {"xa.example", dns.A, noName}, {"a.example.evil.example", dns.A, noName},
		{"sub.example", dns.A, noName}, {"private.example", dns.A, noName}, {"half.example", dns.A, noName}, {"mapped.example", dns.AAAA, noName},
		{"self.example", dns.A, noName}, {"cell.example", dns.A, noName}, {"a.example", 16, ok}, {"a.example", 65, ok},
		{"gone.example", dns.A, noName}, {"broken.example", dns.A, failed}, {"*.a.example", dns.A, noName}, {"1.0.18.198.in-addr.arpa", 12, noName},
	} {
		if code, addrs := c.ask(q.name, q.kind); code != q.code || len(addrs) != 0 {
			t.Errorf("%s %s: code %d, %v, want code %d", q.name, q.kind, code, addrs, q.code)
		}
	}
	at := c.address("a.example", dns.A)
	if _, err := c.dial(at + ":80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another port: %v", err)
	}
	if _, err := c.dial("5.5.0.1:443"); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("the address itself: %v", err)
	}
	e := c.end()
	var got []string
	for _, d := range e.Denied {
		got = append(got, fmt.Sprintf("%s %d", d, d.Times))
	}
	want := []string{"b.example (not_listed) 2", "xa.example (not_listed) 1", "a.example.evil.example (not_listed) 1", "sub.example (not_listed) 1",
		"private.example:443 (forbidden) 1", "half.example:443 (forbidden) 1", "mapped.example:443 (forbidden) 1", "self.example:443 (forbidden) 1",
		"cell.example:443 (forbidden) 1", "a.example TXT (record_type) 1", "gone.example (no_name) 1", "broken.example (no_answer) 1", "*.a.example. (malformed) 1"}
	if !slices.Equal(got, want) {
		t.Errorf("denied\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, name := range []string{"b.example", "sub.example", "a.example.evil.example"} {
		if n := ns.times(name); n != 0 {
			t.Errorf("the world was asked %d times for %s", n, name)
		}
	}
	select {
	case where := <-reached:
		t.Errorf("%s was reached", where)
	default:
	}
}

// TestPinned: the name server's second answer changes nothing, whether it comes between look-up and
// connection or after it. A name that leads into a private network does so with a rule for that.
func TestPinned(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "db.example": {"10.9.0.1"}})
	said := func(text string) func(*net.TCPConn) {
		return func(c *net.TCPConn) { io.WriteString(c, text) }
	}
	serveTCP(t, "5.5.0.1:443", said("first"))
	serveTCP(t, "10.9.0.1:443", said("private"))
	serveTCP(t, "5.5.0.2:443", said("second"))
	b := newBroker(t, Config{Nameserver: ns.at})
	read := func(c *call, name string) string {
		t.Helper()
		got, err := io.ReadAll(c.mustDial(c.address(name, dns.A) + ":443"))
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	c := b.begin(9, wire.Limits{}, "a.example:443", "db.example:443", "10.9.0.0/16:443", "10.9.0.0/16:5432")
	if got := read(c, "a.example"); got != "first" {
		t.Errorf("got %q", got)
	}
	ns.set("a.example", "10.9.0.1") // rebinding
	if got := read(c, "a.example"); got != "first" {
		t.Errorf("after rebinding: %q", got)
	}
	if got := read(c, "db.example"); got != "private" {
		t.Errorf("got %q", got)
	}
	c.end()
	ns.set("a.example", "5.5.0.2")
	d := b.begin(9, wire.Limits{}, "a.example:443", "db.example:443", "10.9.0.0/16:5432")
	if got := read(d, "a.example"); got != "second" {
		t.Errorf("the next call: %q", got)
	}
	if code, _ := d.ask("db.example", dns.A); code == 0 {
		t.Error("a rule for another port opened a private network")
	}
}

// TestSuffix: each name below has an address of its own, also with many ports, until the sockets are
// used up.
func TestSuffix(t *testing.T) {
	zone := map[string][]string{}
	for i := range 5 {
		zone[fmt.Sprintf("n%d.sub.example", i)] = []string{"5.5.0.1"}
	}
	ns := newNameServer(t, zone)
	serveTCP(t, "5.5.0.1:443", echo)
	serveTCP(t, "5.5.0.1:8443", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(3+2*3, wire.Limits{}, "*.sub.example:443", "*.sub.example:8443")
	seen := map[string]bool{}
	for i := range 3 {
		at := c.address(fmt.Sprintf("n%d.sub.example", i), dns.A)
		if seen[at] {
			t.Errorf("%s twice", at)
		}
		seen[at] = true
		c.mustDial(at + ":443").Close()
		c.mustDial(at + ":8443").Close()
	}
	c.mustDial("[" + c.address("n3.sub.example", dns.AAAA) + "]:443").Close() // three of IPv6 are left
	if code, _ := c.ask("n4.sub.example", dns.A); code != 2 {
		t.Errorf("without sockets: code %d", code)
	}
	e := c.end()
	if len(e.Denied) != 1 || e.Denied[0].Host != "n4.sub.example" || e.Denied[0].Why != evidence.DenyLimit || len(e.Connections) != 7 {
		t.Errorf("%+v", e)
	}
}

// TestHalfClose: each side may end and still get what the other says.
func TestHalfClose(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}})
	serveTCP(t, "5.5.0.1:443", func(c *net.TCPConn) { // speaks after the program's end
		b, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%d bytes", len(b))
	})
	serveTCP(t, "5.5.0.1:444", func(c *net.TCPConn) { // listens after its own
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		if string(b) != "late" {
			t.Errorf("got %q", b)
		}
	})
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443", "a.example:444")
	at := c.address("a.example", dns.A)
	one := c.mustDial(at + ":443")
	one.Write(make([]byte, 12345))
	one.CloseWrite()
	if got, err := io.ReadAll(one); err != nil || string(got) != "12345 bytes" {
		t.Errorf("%q, %v", got, err)
	}
	two := c.mustDial(at + ":444")
	if got, err := io.ReadAll(two); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	io.WriteString(two, "late")
	two.CloseWrite()
	one.Close()
	two.Close()
}

// TestReset: a reset on one side is a reset on the other, and is named.
func TestReset(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "none.example": {"5.5.0.9"}})
	broken := make(chan error, 1)
	serveTCP(t, "5.5.0.1:443", func(c *net.TCPConn) { c.Read(make([]byte, 1)); c.SetLinger(0) })
	serveTCP(t, "5.5.0.1:444", func(c *net.TCPConn) {
		c.Write([]byte("x"))
		_, err := io.ReadAll(c)
		broken <- err
	})
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443", "a.example:444", "none.example:443")
	at := c.address("a.example", dns.A)
	one := c.mustDial(at + ":443")
	one.Write([]byte("x"))
	if _, err := io.ReadAll(one); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset by the host: %v", err)
	}
	two := c.mustDial(at + ":444")
	two.Read(make([]byte, 1))
	two.SetLinger(0)
	two.Close()
	if err := <-broken; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset by the program: %v", err)
	}
	if err := c.reset(c.address("none.example", dns.A) + ":443"); err != nil {
		t.Errorf("a host that refuses: %v", err)
	}
	var got []string
	for _, x := range c.end().Connections {
		got = append(got, x.Outcome)
	}
	if want := []string{evidence.ConnResetByPeer, evidence.ConnReset, evidence.ConnRefused}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLimits: bytes, connections, names and queries end where the order says.
func TestLimits(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "b.example": {"5.5.0.1"}})
	serveTCP(t, "5.5.0.1:443", echo)
	serveTCP(t, "5.5.0.1:444", func(c *net.TCPConn) { // never ends
		c.Read(make([]byte, 1)) // or the reset could come before the program knows that it is connected
		for b := make([]byte, 64<<10); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	b := newBroker(t, Config{Nameserver: ns.at})
	t.Run("received", func(t *testing.T) {
		b.t = t
		c := b.begin(9, wire.Limits{Received: 1_000_001}, "a.example:444")
		conn := c.mustDial(c.address("a.example", dns.A) + ":444")
		conn.Write([]byte("x"))
		got, err := io.Copy(io.Discard, conn)
		if !errors.Is(err, syscall.ECONNRESET) || got > 1_000_001 {
			t.Errorf("%d bytes, %v", got, err)
		}
		if e := c.end(); e.Received != 1_000_001 || e.Connections[0].Outcome != evidence.ConnLimit || e.Connections[0].Received != e.Received {
			t.Errorf("%+v", e)
		}
	})
	t.Run("exactly", func(t *testing.T) {
		b.t = t
		c := b.begin(9, wire.Limits{Sent: 100, Received: 100}, "a.example:443")
		conn := c.mustDial(c.address("a.example", dns.A) + ":443")
		conn.Write(make([]byte, 100))
		conn.CloseWrite()
		if got, err := io.ReadAll(conn); err != nil || len(got) != 100 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		conn.Close()
		again := c.mustDial(c.address("a.example", dns.A) + ":443")
		again.Write([]byte("x"))
		if _, err := io.ReadAll(again); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("one byte more: %v", err)
		}
		if e := c.end(); e.Sent != 100 || e.Received != 100 || e.Connections[1].Outcome != evidence.ConnLimit {
			t.Errorf("%+v", e)
		}
	})
	t.Run("open", func(t *testing.T) {
		b.t = t
		c := b.begin(9, wire.Limits{Open: 2, Connections: 3}, "a.example:443")
		at := c.address("a.example", dns.A) + ":443"
		use := func() (*net.TCPConn, error) {
			conn, err := c.dial(at)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { conn.Close() })
			_, err = conn.Write([]byte("x")) // a reset is reported once
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			return conn, err
		}
		one, err := use()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := use(); err != nil {
			t.Fatal(err)
		}
		if _, err := use(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the third at once: %v", err)
		}
		one.CloseWrite()
		io.ReadAll(one)
		one.Close()
		for { // until the end of the first was seen
			if _, err = use(); err == nil {
				break
			}
		}
		if _, err := use(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the fourth in all: %v", err)
		}
		if e := c.end(); len(e.Connections) != 3 || len(e.Denied) != 1 || e.Denied[0].Why != evidence.DenyLimit || e.Denied[0].Times < 2 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("names", func(t *testing.T) {
		b.t = t
		c := b.begin(9, wire.Limits{Names: 1, Queries: 3}, "a.example:443", "b.example:443")
		c.address("a.example", dns.A)
		if code, _ := c.ask("b.example", dns.A); code == 0 {
			t.Error("a second name")
		}
		c.address("a.example", dns.A)
		if code, _ := c.ask("a.example", dns.A); code == 0 {
			t.Error("a fourth query")
		}
		if e := c.end(); e.Queries != 4 || len(e.Denied) != 2 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("idle", func(t *testing.T) {
		b.t = t
		c := b.begin(9, wire.Limits{Idle: 50 * time.Millisecond}, "a.example:443")
		conn := c.mustDial(c.address("a.example", dns.A) + ":443")
		if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("silent: %v", err)
		}
		if e := c.end(); e.Connections[0].Outcome != evidence.ConnIdle {
			t.Errorf("%+v", e)
		}
	})
	t.Run("wall", func(t *testing.T) {
		s, err := b.client.Open(t.Context(), &Order{Limits: wire.Limits{Wall: time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		<-s.Done() // by itself
		if e, err := s.Close(); err != nil || e.Basis != evidence.Reported {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// TestSlowReader: a side that doesn't read stops the other, and a bounded number of bytes is on the
// way.
func TestSlowReader(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}})
	var mu sync.Mutex
	taken := 0
	stuck := make(chan struct{})
	serveTCP(t, "5.5.0.1:443", func(c *net.TCPConn) {
		b := make([]byte, 64<<10)
		for {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			n, err := c.Write(b)
			mu.Lock()
			taken += n
			mu.Unlock()
			if err != nil {
				close(stuck)
				return
			}
		}
	})
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443")
	conn := c.mustDial(c.address("a.example", dns.A) + ":443")
	<-stuck
	mu.Lock()
	// Each of the two connections has a buffer at either end, which the kernel lets grow.
	most := 2*(largest(t, "tcp_rmem")+largest(t, "tcp_wmem")) + 1<<20
	t.Logf("%d KiB were taken of a host whose program doesn't read", taken>>10)
	if taken > most {
		t.Errorf("%d MiB are on the way, and the kernel's buffers have %d", taken>>20, most>>20)
	}
	mu.Unlock()
	conn.Close()
	c.end()
}

// largest is the most bytes that the kernel gives a buffer of TCP's.
func largest(t *testing.T, name string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
	words := strings.Fields(string(b))
	if err != nil || len(words) != 3 {
		t.Fatalf("%s: %q, %v", name, b, err)
	}
	n, err := strconv.Atoi(words[2])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEndAtOnce: the end of a call breaks off all that it has open, and leaves nothing running: at
// each of the points where it may be.
func TestEndAtOnce(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "slow.example": {"5.5.0.1"}})
	serveTCP(t, "5.5.0.1:443", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443", "slow.example:443")
	conn := c.mustDial(c.address("a.example", dns.A) + ":443")
	conn.Write([]byte("x"))
	conn.Read(make([]byte, 1))
	http := c.mustDial(handover.Proxy + ":3128") // says nothing
	stream := c.mustDial(handover.Resolver + ":53")
	ns.mu.Lock()
	ns.hold = hold
	ns.mu.Unlock()
	var udp net.Conn
	c.in(func() { udp, _ = net.Dial("udp", handover.Resolver+":53") })
	defer udp.Close()
	udp.Write(query("slow.example", dns.A))
	<-ns.held
	e := c.end()
	if len(e.Connections) != 1 || e.Connections[0].Outcome != evidence.ConnEnded || e.Sent != 1 || e.Received != 1 {
		t.Errorf("%+v", e)
	}
	for _, x := range []*net.TCPConn{conn, http, stream} {
		if _, err := io.ReadAll(x); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after the end: %v", err)
		}
	}
	if left := goroutines(); left != "" {
		t.Errorf("left after the end:\n%s", left)
	}
}

// TestProxy: both proxies reach what rules name, and nothing else, and say why.
func TestProxy(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "private.example": {"10.9.0.1"}, "none.example": {"5.5.0.9"}})
	serveTCP(t, "5.5.0.1:443", echo)
	serveTCP(t, "5.5.0.1:8443", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443", "private.example:443", "none.example:443", "5.5.0.1:8443")
	http := func(request string) (string, *net.TCPConn) {
		t.Helper()
		conn := c.mustDial(handover.Proxy + ":3128")
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		var head []byte
		for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b...) {
			if _, err := conn.Read(b); err != nil {
				t.Fatalf("%q: %q, %v", request, head, err)
			}
		}
		line, _, _ := strings.Cut(string(head), "\r\n")
		return line, conn
	}
	for request, want := range map[string]string{
		"CONNECT b.example:443 HTTP/1.1\r\n\r\n":       "HTTP/1.1 403 Forbidden",
		"CONNECT a.example:80 HTTP/1.1\r\n\r\n":        "HTTP/1.1 403 Forbidden",
		"CONNECT private.example:443 HTTP/1.1\r\n\r\n": "HTTP/1.1 403 Forbidden",
		"CONNECT 5.5.0.1:443 HTTP/1.1\r\n\r\n":         "HTTP/1.1 403 Forbidden",
		"CONNECT none.example:443 HTTP/1.1\r\n\r\n":    "HTTP/1.1 502 Bad Gateway",
		"GET http://c.example/x HTTP/1.1\r\n\r\n":      "HTTP/1.1 501 Not Implemented",
		"CONNECT 0x7f.1:443 HTTP/1.1\r\n\r\n":          "HTTP/1.1 400 Bad Request",

		"GET http://u:secret@d.example/p?secret HTTP/1.1\r\n\r\n": "HTTP/1.1 501 Not Implemented",
		"CONNECT secret@e.example:443 HTTP/1.1\r\n\r\n":           "HTTP/1.1 400 Bad Request",
		"POST /secret HTTP/1.1\r\n\r\n":                           "HTTP/1.1 405 Method Not Allowed",
	} {
		if got, _ := http(request); got != want {
			t.Errorf("%q: %q, want %q", request, got, want)
		}
	}
	// What comes with the request belongs to the tunnel.
	got, conn := http("CONNECT A.example:443 HTTP/1.1\r\nHost: x\r\n\r\nearly")
	buf := make([]byte, 5)
	if _, err := io.ReadFull(conn, buf); got != "HTTP/1.1 200 Connection established" || err != nil || string(buf) != "early" {
		t.Errorf("%q, then %q, %v", got, buf, err)
	}
	conn.Close()
	if got, _ := http("CONNECT 5.5.0.1:8443 HTTP/1.1\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("a listed address: %q", got)
	}
	socks := func(host string, port uint16) (byte, *net.TCPConn) {
		t.Helper()
		conn := c.mustDial(handover.Proxy + ":1080")
		conn.Write([]byte{5, 1, 0})
		buf := make([]byte, 10)
		if _, err := io.ReadFull(conn, buf[:2]); err != nil || buf[1] != 0 {
			t.Fatalf("greeting: %x, %v", buf[:2], err)
		}
		conn.Write(append(append([]byte{5, 1, 0, 3, byte(len(host))}, host...), byte(port>>8), byte(port)))
		if _, err := io.ReadFull(conn, buf); err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		return buf[1], conn
	}
	for host, want := range map[string]byte{"a.example": 0, "b.example": 2, "private.example": 2, "none.example": 5} {
		got, conn := socks(host, 443)
		if got != want {
			t.Errorf("%s: %d, want %d", host, got, want)
		}
		if got != 0 {
			continue
		}
		conn.Write([]byte("hello"))
		conn.CloseWrite()
		if b, err := io.ReadAll(conn); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
	}
	e := c.end()
	var denied []string
	for _, d := range e.Denied {
		denied = append(denied, d.String())
	}
	slices.Sort(denied)
	want := []string{"0x7f.1:443 (proxy_request)", "5.5.0.1:443 (not_listed)", "a.example:80 (not_listed)", "b.example:443 (not_listed)",
		"c.example (proxy_request)", "d.example (proxy_request)", "e.example:443 (proxy_request)",
		"private.example:443 (forbidden)", "proxy (proxy_request)"}
	if !slices.Equal(denied, want) {
		t.Errorf("denied %q, want %q", denied, want)
	}
	if len(e.Connections) != 5 || e.Sent != 10 {
		t.Errorf("%+v", e)
	}
}

// TestJudgedByAll: a name is refused for an address that is beyond those that are kept, by the
// proxies as well.
func TestJudgedByAll(t *testing.T) {
	rules, err := rule.ParseRules([]string{"many.example:443", "many.example:8443"})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(&server{}, &Order{}, rules)
	n := &name{host: "many.example", done: make(chan struct{}), addrs: []netip.Addr{netip.MustParseAddr("5.5.0.1")}, ports: []uint16{8443}}
	close(n.done) // as after a lookup that found more than mostPinned addresses, of which a rule opens the last for 8443 alone
	s.names[n.host], s.ctx = n, t.Context()
	if _, addrs, p := s.target(proxy.Target{Name: n.host, Port: 443}); p == nil || p.status != 403 || addrs != nil {
		t.Errorf("port 443: %v, %+v", addrs, p)
	}
	if _, addrs, p := s.target(proxy.Target{Name: n.host, Port: 8443}); p != nil || len(addrs) != 1 {
		t.Errorf("port 8443: %v, %+v", addrs, p)
	}
}

// TestLateConnection: a connection that comes as the call ends has an outcome.
func TestLateConnection(t *testing.T) {
	s := newSession(&server{}, &Order{}, rule.Rules{})
	s.ctx = t.Context()
	s.close()
	s.connect(new(net.TCPConn), "a.example", 443, nil, nil)
	if c := s.ev.Connections; len(c) != 1 || c[0].Outcome != evidence.ConnEnded || c[0].Host != "a.example" {
		t.Errorf("%+v", c)
	}
}

// TestEyeballs: an address that doesn't answer, and one that refuses, don't keep the program from
// the one that does.
func TestEyeballs(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.8", "5.5.0.9", "2a05:5555::9", "5.5.0.1"}})
	serveTCP(t, "5.5.0.1:443", echo)
	fullQueue(t, netip.MustParseAddr("5.5.0.8"))
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443")
	conn := c.mustDial(c.address("a.example", dns.A) + ":443")
	conn.Write([]byte("x"))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	conn.Close()
	if e := c.end(); e.Connections[0].Address != "5.5.0.1" {
		t.Errorf("%+v", e.Connections)
	}
}

// TestLiteral: an address is reached at itself if a rule has it and its port.
func TestLiteral(t *testing.T) {
	serveTCP(t, "5.5.0.1:443", echo)
	b := newBroker(t, Config{})
	c := b.begin(5, wire.Limits{}, "5.5.0.1:443", "[2a05:5555::1]:443")
	conn := c.mustDial("5.5.0.1:443")
	text := make([]byte, 1000)
	rand.Read(text)
	conn.Write(text)
	conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := c.reset("[2a05:5555::1]:443"); err != nil { // nothing is there in the world
		t.Error(err)
	}
	e := c.end()
	if len(e.Connections) != 2 || e.Connections[0].Host != "5.5.0.1" || e.Connections[1].Host != "2a05:5555::1" {
		t.Errorf("%+v", e)
	}
}

// TestInUse: a program that listens at all addresses itself keeps a name's from being listened at,
// and is told. Its other names and ports are as they were.
func TestInUse(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "b.example": {"5.5.0.1"}})
	serveTCP(t, "5.5.0.1:444", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(3+2, wire.Limits{}, "a.example:443", "b.example:444")
	var own net.Listener
	var err error
	c.in(func() { own, err = net.Listen("tcp4", "0.0.0.0:443") })
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if code, addrs := c.ask("a.example", dns.A); code != 0 || len(addrs) != 0 { // it has IPv6 left
		t.Errorf("IPv4: code %d, %v", code, addrs)
	}
	c.address("a.example", dns.AAAA)
	c.mustDial(c.address("b.example", dns.A) + ":444").Close()
	d := b.begin(3+2, wire.Limits{}, "a.example:443")
	var all net.Listener
	d.in(func() { all, err = net.Listen("tcp", ":443") })
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if code, _ := d.ask("a.example", dns.A); code != 2 {
		t.Errorf("both: code %d", code)
	}
	if e := d.end(); len(e.Denied) != 1 || e.Denied[0].Why != evidence.DenyInUse || e.Denied[0].Host != "a.example" {
		t.Errorf("%+v", e)
	}
}

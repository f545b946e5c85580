package egress

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// TestRates: connections and queries beyond a rate are denied by the rate's name, and pass again
// when their time has come. A call's rate counts those of all hosts, a rule's those of its own.
func TestRates(t *testing.T) {
	srv, err := newServer(Config{})
	if err != nil {
		t.Fatal(err)
	}
	limits, err := wire.Limits{Rate: 10, QueryRate: 3}.Within()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.ParseCanonical([]string{"*.b.example:443 rate:4/m", "a.example:443 rate:2/s", "c.example:443", "x.b.example:443 rate:3/m"})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(srv, &Order{Limits: limits}, rules)
	now := time.Unix(1_800_000_000, 0)
	enter := func(host string, port uint16, times int) (passed int) {
		for range times {
			if leave := s.enter(host, port, now); leave != nil {
				leave()
				passed++
			}
		}
		return passed
	}
	for _, x := range []struct {
		after time.Duration
		host  string
		port  uint16
		want  int
	}{
		{0, "a.example", 443, 2},
		{0, "x.b.example", 443, 3},
		{0, "y.b.example", 443, 1}, // x's three count, and not the one that x's own rule refused
		{0, "c.example", 443, 4},
		{0, "c.example", 443, 0}, // the call's ten
		{time.Second, "a.example", 443, 2},
		{0, "a.example", 8443, 4}, // a port that the rule isn't about
		{0, "x.b.example", 443, 0},
		{20 * time.Second, "x.b.example", 443, 1},
		{0, handover.Proxy, handover.HTTPPort, 4},
	} {
		now = now.Add(x.after)
		if got := enter(x.host, x.port, 4); got != x.want {
			t.Errorf("%s:%d, %s later: %d pass, want %d", x.host, x.port, x.after, got, x.want)
		}
	}
	for range 2 {
		var said []string
		for range 4 {
			said = append(said, s.countQuery(now))
		}
		if want := []string{"", "", "", evidence.LimitQueryRate}; !slices.Equal(said, want) {
			t.Errorf("queries: %q, want %q", said, want)
		}
		now = now.Add(time.Second)
	}
	var got []string
	for _, d := range s.ev.Denied {
		got = append(got, fmt.Sprintf("%s %d", d, d.Times))
	}
	want := []string{"a.example:443 (limit rate:2/s) 4", "x.b.example:443 (limit rate:3/m) 1", "y.b.example:443 (limit rate:4/m) 3",
		"c.example:443 (limit rate) 4", "x.b.example:443 (limit rate:4/m) 7"}
	if !slices.Equal(got, want) {
		t.Errorf("denied\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRuleRate: a program's connections beyond a rule's rate are reset, those through a proxy are
// refused, and other hosts are reached as before.
func TestRuleRate(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.0.1"}, "b.example": {"5.5.0.1"}})
	serveTCP(t, "5.5.0.1:443", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(9, wire.Limits{}, "a.example:443 rate:3/m", "b.example:443", "5.5.0.1:443 rate:1/m")
	use := func(at string) error {
		conn, err := c.dial(at)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, wrote := conn.Write([]byte("x")) // whichever is first after a reset says so
		closed := conn.CloseWrite()
		_, read := io.ReadAll(conn)
		return errors.Join(wrote, closed, read)
	}
	a, other := c.address("a.example", dns.A)+":443", c.address("b.example", dns.A)+":443"
	for n := range 2 {
		if err := use(a); err != nil {
			t.Errorf("connection %d: %v", n, err)
		}
	}
	ask := func(target string) string {
		conn := c.mustDial(netip.AddrPortFrom(netip.MustParseAddr(handover.Proxy), handover.HTTPPort).String())
		defer conn.Close()
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
		conn.CloseWrite()
		said, _ := io.ReadAll(conn)
		line, _, _ := strings.Cut(string(said), "\r\n")
		return line
	}
	for _, x := range []struct{ target, want string }{{"a.example:443", "HTTP/1.1 200"}, {"a.example:443", "HTTP/1.1 429 Too Many Requests"},
		{"5.5.0.1:443", "HTTP/1.1 200"}, {"5.5.0.1:443", "HTTP/1.1 429"}, {"b.example:443", "HTTP/1.1 200"}} {
		if got := ask(x.target); !strings.HasPrefix(got, x.want) {
			t.Errorf("CONNECT %s: %q, want %q", x.target, got, x.want)
		}
	}
	if err := use(a); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the fifth: %v", err)
	}
	if err := use("5.5.0.1:443"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the address: %v", err)
	}
	if err := use(other); err != nil {
		t.Errorf("another host: %v", err)
	}
	e := c.end()
	want := []evidence.Denial{{Host: "a.example", Port: 443, Why: evidence.DenyLimit, Limit: "rate:3/m", Times: 2}, {Host: "5.5.0.1", Port: 443, Why: evidence.DenyLimit, Limit: "rate:1/m", Times: 2}}
	if !slices.Equal(e.Denied, want) || len(e.Connections) != 6 {
		t.Errorf("denied %+v, want %+v; connections %+v", e.Denied, want, e.Connections)
	}
}

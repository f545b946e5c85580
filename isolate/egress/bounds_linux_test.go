package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// TestRuleConnections: a rule bounds how many connections its hosts have, at once and in all. One
// that is refused by any rule about its host counts for none.
func TestRuleConnections(t *testing.T) {
	srv, err := newServer(Config{})
	if err != nil {
		t.Fatal(err)
	}
	limits, err := wire.Limits{Open: 5}.Within()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.ParseCanonical([]string{"*.b.example:443 open:2", "a.example:443 rate:9/s open:1 connections:3", "c.example:443", "x.b.example:443 connections:1"})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(srv, &Order{Limits: limits}, rules)
	now := time.Unix(1_800_000_000, 0)
	var left []func()
	enter := func(host string, want bool) {
		t.Helper()
		leave := s.enter(host, 443, now)
		if leave != nil {
			left = append(left, leave)
		}
		if (leave != nil) != want {
			t.Errorf("%s passes: %v", host, leave != nil)
		}
	}
	leave := func() {
		left[0]()
		left = left[1:]
	}
	enter("a.example", true)
	enter("a.example", false) // at once
	leave()
	enter("a.example", true)
	leave()
	if back := s.admit("a.example", 443, now); back == nil { // through a proxy
		t.Error("the third of three")
	} else {
		back()
	}
	enter("a.example", false) // in all
	enter("x.b.example", true)
	enter("x.b.example", false) // its own rule's
	enter("y.b.example", true)
	enter("z.b.example", false) // at once, with x's
	leave()
	enter("z.b.example", true)
	for range 3 {
		enter("c.example", true)
	}
	enter("c.example", false) // the call's
	var got []string
	for _, d := range s.ev.Denied {
		got = append(got, d.String())
	}
	want := []string{"a.example:443 (limit open:1)", "a.example:443 (limit connections:3)", "x.b.example:443 (limit connections:1)", "z.b.example:443 (limit open:2)", "c.example:443 (limit open)"}
	if !slices.Equal(got, want) {
		t.Errorf("denied\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRuleFull: a connection for which palyra-egress has no room counts for no rule.
func TestRuleFull(t *testing.T) {
	srv, err := newServer(Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv.open, srv.files = pool(4, 0), pool(4, 0)
	rules, err := rule.ParseCanonical([]string{"a.example:443 open:9 connections:9"})
	if err != nil {
		t.Fatal(err)
	}
	limits, err := wire.Limits{}.Within()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(srv, &Order{Limits: limits}, rules)
	for range 4 { // descriptors end before connections do, and then those do
		s.enter("a.example", 443, time.Now())
	}
	if x := s.ruledBy("a.example", 443)[0]; x.open != int64(s.open) || x.made != s.made || s.open == 0 {
		t.Errorf("%d open of %d, %d made of %d", x.open, s.open, x.made, s.made)
	}
}

// TestRuleBytes: bytes beyond a rule's are cut off where they are too many, for all connections of
// the rule's hosts together, and other hosts' pass. The denial names the bound.
func TestRuleBytes(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.50.1"}, "b.example": {"5.5.50.1"}, "x.cdn.example": {"5.5.50.1"}, "y.cdn.example": {"5.5.50.1"}})
	serveTCP(t, "5.5.50.1:443", echo)
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(20, wire.Limits{}, "*.cdn.example:443 received:1000", "a.example:443 sent:100000", "b.example:443", "y.cdn.example:443 received:900")
	use := func(host string, n int) (int, error) {
		conn := c.mustDial(c.address(host, dns.A) + ":443")
		defer conn.Close()
		go func() {
			conn.Write(make([]byte, n))
			conn.CloseWrite()
		}()
		got, err := io.Copy(io.Discard, conn)
		return int(got), err
	}
	for _, x := range []struct {
		host      string
		sent, got int
		cut       bool
	}{
		{"a.example", 60_000, 60_000, false},
		{"a.example", 40_000, 40_000, false},
		{"a.example", 1, 0, true},
		{"y.cdn.example", 600, 600, false},
		{"x.cdn.example", 300, 300, false},
		{"y.cdn.example", 250, 100, true}, // what the rule for all leaves
		{"x.cdn.example", 1, 0, true},     // of which nothing is left
		{"b.example", 300_000, 300_000, false},
	} {
		got, err := use(x.host, x.sent)
		if errors.Is(err, syscall.ECONNRESET) != x.cut || err != nil && !x.cut || got > x.got || !x.cut && got != x.got {
			t.Errorf("%d bytes to %s: %d came back, %v", x.sent, x.host, got, err)
		}
	}
	e := c.end()
	want := []evidence.Denial{{Host: "a.example", Port: 443, Why: evidence.DenyLimit, Limit: "sent:100000", Times: 1},
		{Host: "x.cdn.example", Port: 443, Why: evidence.DenyLimit, Limit: "received:1000", Times: 1}, {Host: "y.cdn.example", Port: 443, Why: evidence.DenyLimit, Limit: "received:1000", Times: 1}}
	slices.SortFunc(e.Denied, func(a, b evidence.Denial) int { return strings.Compare(a.Host, b.Host) }) // each is noted when its connection has ended
	if !slices.Equal(e.Denied, want) {
		t.Errorf("denied %+v, want %+v", e.Denied, want)
	}
	var outcomes []string
	var received int64
	for _, x := range e.Connections {
		outcomes = append(outcomes, x.Outcome)
		if strings.HasSuffix(x.Host, ".cdn.example") {
			received += x.Received
		}
	}
	if fmt.Sprint(outcomes[:7]) != "[closed closed limit closed closed limit limit]" || received != 1000 {
		t.Errorf("%q, %d bytes of *.cdn.example", outcomes, received)
	}
}

// TestRuleTime: a connection ends when its rule's time is over, whether bytes pass or it waits for
// the host, and the program is told that it broke off.
func TestRuleTime(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"a.example": {"5.5.51.1"}, "b.example": {"5.5.51.1"}, "full.example": {"5.5.51.2"}})
	serveTCP(t, "5.5.51.1:443", echo)
	fullQueue(t, netip.MustParseAddr("5.5.51.2"))
	b := newBroker(t, Config{Nameserver: ns.at})
	c := b.begin(20, wire.Limits{}, "a.example:443 time:1s", "b.example:443 time:1h", "full.example:443 time:1s")
	other := c.mustDial(c.address("b.example", dns.A) + ":443")
	began := time.Now()
	conn := c.mustDial(c.address("a.example", dns.A) + ":443")
	for err := error(nil); err == nil; {
		if _, err = conn.Write([]byte("x")); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("it ended after %s", took)
	}
	if err := c.reset(c.address("full.example", dns.A) + ":443"); err != nil {
		t.Error(err)
	}
	proxy := c.mustDial(netip.AddrPortFrom(netip.MustParseAddr(handover.Proxy), handover.HTTPPort).String())
	fmt.Fprint(proxy, "CONNECT full.example:443 HTTP/1.1\r\nHost: full.example:443\r\n\r\n")
	if line, _ := bufio.NewReader(proxy).ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 504") {
		t.Errorf("a proxy says %q", line)
	}
	if _, err := other.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Errorf("another's connection: %v", err)
	}
	e := c.end()
	want := []evidence.Denial{{Host: "a.example", Port: 443, Why: evidence.DenyLimit, Limit: "time:1s", Times: 1}, {Host: "full.example", Port: 443, Why: evidence.DenyLimit, Limit: "time:1s", Times: 2}}
	slices.SortFunc(e.Denied, func(a, b evidence.Denial) int { return strings.Compare(a.Host, b.Host) })
	if !slices.Equal(e.Denied, want) {
		t.Errorf("denied %+v, want %+v", e.Denied, want)
	}
	for _, x := range e.Connections {
		limited := x.Outcome == evidence.ConnLimit
		if limited != (x.Host != "b.example") || limited && x.DurationNS < int64(time.Second) || (x.Address == "") != (x.Host == "full.example") {
			t.Errorf("%+v", x)
		}
	}
}

// TestInspectedBounds: connections that are inspected have their rules' bounds, too.
func TestInspectedBounds(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	w := newWeb(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
			return
		}
		io.Copy(io.Discard, r.Body)
		rw.Write(make([]byte, 1<<20))
	}, "5.5.52.1:443")
	b := newBroker(t, Config{Nameserver: newNameServer(t, map[string][]string{"a.example": {"5.5.52.1"}}).at, Roots: w.roots})
	for bound, x := range map[string]struct {
		path string
		body []byte
	}{
		"sent:100KiB": {"/", make([]byte, 1<<20)}, "received:100KiB": {"/", nil}, "time:1s": {"/silent", nil},
	} {
		t.Run(bound, func(t *testing.T) {
			b.t = t
			c, _ := b.inspects(&Order{Rules: []string{"a.example:443 " + bound}, Inspect: []string{"a.example:443"}})
			program := c.https(c.session.Authority())
			q, _ := http.NewRequest("POST", "https://a.example"+x.path, bytes.NewReader(x.body))
			q.GetBody = nil // so that net/http asks once
			res, err := program.Do(q)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			if err == nil {
				t.Error("it came to its end")
			}
			program.CloseIdleConnections()
			e := c.end()
			if len(e.Denied) != 1 || e.Denied[0] != (evidence.Denial{Host: "a.example", Port: 443, Why: evidence.DenyLimit, Limit: bound, Times: 1}) || e.Connections[0].Outcome != evidence.ConnLimit ||
				e.Sent > 110<<10 || e.Received > 100<<10 {
				t.Errorf("%+v", e)
			}
		})
	}
}

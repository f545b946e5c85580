package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"palyra/transport/api"
	"palyra/transport/api/apitest"
)

// idle opens n connections that say nothing. The returned function waits until no more than
// most of them are open, and fails if they stay or none is left.
func (r *rig) idle(n int, dial func() net.Conn) (atMost func(most int)) {
	r.t.Helper()
	ended := make(chan struct{}, n)
	for range n {
		c := dial()
		r.t.Cleanup(func() { c.Close() })
		go func() {
			io.Copy(io.Discard, c)
			ended <- struct{}{}
		}()
	}
	return func(most int) {
		r.t.Helper()
		eventually(r.t, "the other idle connections end", func() bool { return n-len(ended) <= most })
		if len(ended) == n {
			r.t.Error("no idle connection stays")
		}
	}
}

// from dials TCP from an address of loopback.
func (r *rig) from(ip string) func() net.Conn {
	return func() net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.DialContext(context.Background(), "tcp", r.tcp)
		if err != nil {
			r.t.Fatal(err)
		}
		return c
	}
}

// TestIdleFlood: silent connections lock out no client, wherever on this host they come
// from and however many there are.
func TestIdleFlood(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Limits.Conns, c.Limits.Guests = 16, 8
		c.Role = func(uint32) string { return "owner" }
	})
	owner := "Authorization: Bearer " + apitest.OwnerToken
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		atMost := r.idle(200, r.from(ip))
		for range 20 {
			r.want(r.sendTCP(get, "/api/v1/status", "", owner), 200)
			r.web.CloseIdleConnections()
			r.want(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`), 200)
			r.unix.CloseIdleConnections()
		}
		atMost(8)
	}
	if r.rooms.evicted.Load() < 500 {
		t.Errorf("%d connections made room", r.rooms.evicted.Load())
	}
}

// TestSocketFlood: on the unix socket a user without a role keeps out no member,
// and members not the owner.
func TestSocketFlood(t *testing.T) {
	var role atomic.Value // of who connects
	role.Store("")
	r := newRig(t, func(c *Config) {
		c.Limits.Conns, c.Limits.ConnsPerCaller, c.Limits.Guests = 16, 16, 8
		c.Role = func(uint32) string { return role.Load().(string) }
	})
	unix := func() net.Conn { return r.dial("unix") }
	strangers := r.idle(100, unix)
	strangers(8)
	role.Store("owner")
	r.want(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`), 200)
	r.unix.CloseIdleConnections()
	members := r.idle(100, unix)
	r.want(r.send(get, "/api/v1/status", ""), 200)
	members(16)
}

// TestShareAtWork: a principal whose places are all at work gets no further one,
// but for the brake; another one gets what it needs.
func TestShareAtWork(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Conns, c.Limits.ConnsPerCaller = 8, 3 })
	for range 3 {
		c := r.dial("unix")
		if _, err := io.WriteString(c, "POST /api/v1/calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"tool\":\"test.wait\"}"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three calls have places", func() bool { return r.rooms.members.pool.Held() >= 3 })
	p := r.refused(r.send(get, "/api/v1/status", ""), 429, "too_many")
	if p.Hint == "" {
		t.Error("no hint")
	}
	a := r.want(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`), 200)
	if !a.closed {
		t.Error("the brake's connection stays")
	}
	r.want(r.sendTCP(get, "/api/v1/status", "", "Authorization: Bearer "+apitest.OwnerToken), 200)
}

// TestGuestsHaveOneRequest: a connection of which it is not known whose it is ends
// with its first answer; one that is a member's stays.
func TestGuestsHaveOneRequest(t *testing.T) {
	r := newRig(t)
	ask := func(network, head string) (*http.Response, error) {
		t.Helper()
		c := r.dial(network)
		br := bufio.NewReader(c)
		for range 2 {
			if _, err := io.WriteString(c, head+"Host: "+r.tcp+"\r\n\r\n"); err != nil {
				return nil, err
			}
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				return nil, err
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	auth := "Authorization: Bearer " + apitest.OwnerToken + "\r\n"
	for name, tt := range map[string]struct {
		network, head string
		stays         bool
	}{
		"livez":           {"tcp", "GET /livez HTTP/1.1\r\n", false},
		"livez on unix":   {"unix", "GET /livez HTTP/1.1\r\n", false},
		"no credential":   {"tcp", "GET /api/v1/status HTTP/1.1\r\n", false},
		"no such path":    {"tcp", "GET /x HTTP/1.1\r\n", false},
		"token":           {"tcp", "GET /api/v1/status HTTP/1.1\r\n" + auth, true},
		"peer":            {"unix", "GET /api/v1/status HTTP/1.1\r\n", true},
		"a guess at last": {"tcp", "GET /api/v1/status HTTP/1.1\r\nAuthorization: Bearer palyra_x\r\n", false},
	} {
		if _, err := ask(tt.network, tt.head); (err == nil) != tt.stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRoomsAreGivenBack: no connection leaves its place behind.
func TestRoomsAreGivenBack(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Conns, c.Limits.Guests = 8, 4 })
	for range 50 {
		r.want(r.send(get, "/api/v1/status", ""), 200)
		r.want(r.sendTCP(get, "/livez", ""), 200)
		r.dial("tcp").Close()
		r.dial("unix")
		r.unix.CloseIdleConnections()
	}
	r.stop()
	for _, room := range []*room{&r.rooms.unix, &r.rooms.tcp, &r.rooms.devices, &r.rooms.members} {
		if room.pool.Held() != 0 || room.conns.Len() != 0 {
			t.Errorf("%d places are held, by %d connections", room.pool.Held(), room.conns.Len())
		}
	}
}

func TestNetwork(t *testing.T) {
	for _, tt := range []struct {
		a, want  string
		loopback bool
	}{
		{"127.0.0.1", "loopback", true}, {"127.255.3.4", "loopback", true}, {"::1", "loopback", true}, {"::ffff:127.0.0.9", "loopback", true},
		{"192.0.2.7", "192.0.2.7", false}, {"::ffff:192.0.2.7", "192.0.2.7", false},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", false}, {"fe80::1%eth0", "fe80::/64", false},
	} {
		if got, l := network(netip.MustParseAddr(tt.a)); got != tt.want || l != tt.loopback {
			t.Errorf("%s: %s, %v", tt.a, got, l)
		}
	}
}

// TestLimitsFit: connections take no more descriptors than they may.
func TestLimitsFit(t *testing.T) {
	for _, files := range []int{1, 64, 700, 5000, 0} {
		l := Limits{Files: files}.orDefaults()
		if all := l.Conns + 3*l.Guests; files >= 64 && all > files || l.ConnsPerCaller > l.Conns || l.GuestsPerPeer > l.Guests {
			t.Errorf("%d files: %+v", files, l)
		}
		newRooms(l) // panics for limits that contradict each other
	}
}

// TestStrangersToDevices: connections to the listener for devices, which strangers reach, take
// no place of another listener's guests.
func TestStrangersToDevices(t *testing.T) {
	rs := newRooms(Limits{Guests: 4, GuestsPerPeer: 2, Conns: 8, ConnsPerCaller: 8})
	enter := func(p *peer) *conn {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		c := &conn{Conn: near, peer: p, rooms: rs}
		if !rs.enter(c, "") {
			t.Fatal("a guest was kept out")
		}
		return c
	}
	local := enter(&peer{key: "loopback", loopback: true})
	first := enter(&peer{key: "192.0.2.0", devices: true})
	for i := range 20 {
		enter(&peer{key: fmt.Sprintf("192.0.2.%d", i+1), devices: true})
	}
	if local.closed.Load() || rs.tcp.pool.Held() != 1 {
		t.Error("strangers to the listener for devices took the place of a guest of loopback")
	}
	if !first.closed.Load() || rs.devices.pool.Held() != 4 {
		t.Errorf("%d places are held, want 4", rs.devices.pool.Held())
	}
}

// TestPins: whoever begins stops and ends none keeps a few places of guests, and no
// guest out; the places come back.
func TestPins(t *testing.T) {
	rs := newRooms(Limits{Guests: 32, GuestsPerPeer: 32, Conns: 8, ConnsPerCaller: 8})
	enter := func() *conn {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		c := &conn{Conn: near, peer: &peer{key: "loopback", loopback: true}, rooms: rs}
		if !rs.enter(c, "") {
			t.Fatal("a guest was kept out")
		}
		return c
	}
	pinned := func() (n int) {
		for e := rs.tcp.conns.Front(); e != nil; e = e.Next() {
			if e.Value.(*conn).pinned != "" {
				n++
			}
		}
		return n
	}
	var stops []*conn
	for range 100 {
		c := enter()
		rs.use(c, true)
		rs.pin(c, "uid:1")
		rs.pin(c, "uid:1") // the same place
		stops = append(stops, c)
	}
	if n := pinned(); n != pinsEach {
		t.Errorf("one principal keeps %d places", n)
	}
	for i := range 100 {
		rs.pin(enter(), fmt.Sprint("uid:", 2+i))
	}
	if n := pinned(); n != 32/pinsPart {
		t.Errorf("all together keep %d places of 32", n)
	}
	for range 100 {
		enter() // a health check, another's token
	}
	for _, c := range stops {
		rs.leave(c)
		rs.leave(c)
	}
	if rs.pins["uid:1"] != 0 || len(rs.pins) != 32/pinsPart-pinsEach {
		t.Errorf("after the end: %v", rs.pins)
	}
	c := enter()
	if rs.pin(c, "uid:1"); c.pinned != "uid:1" {
		t.Error("a stop afterwards keeps no place")
	}
}

// TestRelieve: without descriptors guests give way first, then idle members, the owner's
// too, and no connection of a member that is at work.
func TestRelieve(t *testing.T) {
	rs := newRooms(Limits{Guests: 8, GuestsPerPeer: 8, Conns: 16, ConnsPerCaller: 8})
	enter := func(key, role string, unix, busy bool) *conn {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		c := &conn{Conn: near, peer: &peer{key: key, unix: unix}, rooms: rs}
		if !rs.enter(c, role) {
			t.Fatal("a connection was kept out")
		}
		rs.use(c, busy)
		return c
	}
	enter("uid:1", "operator", true, true)
	owner := enter("uid:0", roleOwner, true, false)
	near := enter("uid:2", "", true, true)
	far := enter("loopback", "", false, true)
	for i, want := range []*conn{far, near, owner} {
		if want == owner && rs.relieve(true) {
			t.Error("an owner's gave way for a watch")
		}
		if found := rs.relieve(false); !found || want.room != nil {
			t.Errorf("%d: found one: %v; that of %s stays: %v", i, found, want.peer.key, want.room != nil)
		}
	}
	if rs.relieve(false) || rs.count() != 1 {
		t.Errorf("%d connections are left, want the one at work", rs.count())
	}
}

// TestSlowBodies: bodies are counted before they are read. A sender of many slow bodies
// waits for its own. Other principals don't, and the emergency stop waits for nothing.
func TestSlowBodies(t *testing.T) {
	t.Parallel() // it waits for a deadline
	const size = 64 << 10
	r := newRig(t, func(c *Config) {
		c.Limits.Body, c.Limits.Bodies, c.Limits.Write = size, 10*size, 6*time.Second // longer than a machine stalls
	})
	body := `{"tool":"test.echo","input":{"text":"` + strings.Repeat("x", size-64) + `"}}`
	var slow []net.Conn
	for range 2 { // a fifth of all
		c := r.dial("unix")
		if _, err := fmt.Fprintf(c, "POST /api/v1/calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", size, body[:size/2]); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	eventually(t, "both bodies are counted", func() bool { return r.bodies.Held() >= 2*size })
	// One that does not say how much comes counts as the most.
	more := make(map[string]net.Conn)
	for _, length := range []string{fmt.Sprintf("Content-Length: %d", len(body)), "Transfer-Encoding: chunked"} {
		more[length] = r.dial("unix")
		if _, err := fmt.Fprintf(more[length], "POST /api/v1/calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n\r\n", length); err != nil {
			t.Fatal(err)
		}
	}
	for length, c := range more {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 503 || !strings.Contains(string(b), `"budget"`) || !resp.Close {
			t.Errorf("%s: %d %s, %v", length, resp.StatusCode, b, err)
		}
	}
	r.want(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`), 200)
	r.refused(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false`+strings.Repeat(" ", brakeBody)+`}`), 413, "json_too_large")
	r.want(r.sendTCP(post, "/api/v1/calls", body, "Authorization: Bearer "+apitest.OwnerToken), 200)
	for _, c := range slow {
		c.Close()
	}
	for range 20 { // none is held on to
		r.want(r.send(post, "/api/v1/calls", body), 200)
		r.refused(r.send(post, "/api/v1/calls", body[:size/2]), 400, "json_syntax")
	}
	eventually(t, "no byte stays counted", func() bool { return r.bodies.Held() == 0 })
}

// recorded is a net.Conn that notes the sizes of writes.
type recorded struct {
	net.Conn
	sizes []int
	got   []byte
	fails int // the write that fails, halfway; 0: none
}

func (c *recorded) Write(b []byte) (int, error) {
	if c.sizes = append(c.sizes, len(b)); len(c.sizes) == c.fails {
		c.got = append(c.got, b[:len(b)/2]...)
		return len(b) / 2, os.ErrDeadlineExceeded
	}
	c.got = append(c.got, b...)
	return len(b), nil
}

// TestUnixParts: no write to a unix socket is so long that the kernel puts some of it into
// pages, which a client could keep. Nothing but Write writes.
func TestUnixParts(t *testing.T) {
	const head = 3328 // SKB_MAX_HEAD(0) with 4 KiB pages and CONFIG_MAX_SKB_FRAGS=45
	answer := bytes.Repeat([]byte("palyra "), 4000)
	for _, n := range []int{0, 1, unixPart, unixPart + 1, len(answer)} {
		to := &recorded{}
		c := &conn{Conn: to, peer: &peer{unix: true}}
		got, err := c.Write(answer[:n])
		if got != n || err != nil || !bytes.Equal(to.got, answer[:n]) {
			t.Errorf("%d bytes: %d, %v; %d arrived", n, got, err, len(to.got))
		}
		if most := slices.Max(to.sizes); most > head {
			t.Errorf("%d bytes: a write of %d, want at most %d", n, most, head)
		}
	}
	broken := &recorded{fails: 2}
	n, err := (&conn{Conn: broken, peer: &peer{unix: true}}).Write(answer)
	if n != len(broken.got) || !errors.Is(err, os.ErrDeadlineExceeded) || len(broken.sizes) != 2 {
		t.Errorf("a write that fails: %d, %v after %d writes; %d arrived", n, err, len(broken.sizes), len(broken.got))
	}
	tcp := &recorded{}
	if _, err := (&conn{Conn: tcp, peer: nobody()}).Write(answer); err != nil || len(tcp.sizes) != 1 {
		t.Errorf("over TCP: %v in %d writes, want 1", err, len(tcp.sizes))
	}
	var c any = &conn{Conn: tcp}
	if _, yes := c.(io.ReaderFrom); yes {
		t.Error("conn has a ReadFrom, which may hand out pages")
	}
}

// failing is a listener whose Accept fails, as often as it has errors, and then has a
// connection.
type failing struct {
	errs   []error
	tries  int
	closed chan struct{}
}

func (l *failing) Accept() (net.Conn, error) {
	if l.tries++; l.tries <= len(l.errs) {
		return nil, &net.OpError{Op: "accept", Err: l.errs[l.tries-1]}
	}
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	c, _ := net.Pipe()
	return c, nil
}

func (l *failing) Close() error { close(l.closed); return nil }

func (l *failing) Addr() net.Addr { return &net.TCPAddr{} }

// TestAcceptGoesOn: no error of a listener ends it, and none makes it spin.
func TestAcceptGoesOn(t *testing.T) {
	for _, e := range []error{syscall.ENOSPC, syscall.ENOMEM, syscall.EMFILE, syscall.EINVAL, errors.New("any other")} {
		synctest.Test(t, func(t *testing.T) {
			inner := &failing{errs: slices.Repeat([]error{e}, 100), closed: make(chan struct{})}
			notes := 0
			l := newListener(inner, newRooms(Limits{}.orDefaults()), 0)
			l.failed = func(error) { notes++ }
			start := time.Now()
			c, err := l.Accept()
			if err != nil || c == nil {
				t.Fatalf("%v: Accept: %v, %v after %d tries", e, c, err, inner.tries)
			}
			if took := time.Since(start); took < 90*time.Second || took > 100*time.Second || notes != 100 {
				t.Errorf("%v: 100 tries and %d notes took %v, want some 93 s", e, notes, took)
			}
			inner.errs, inner.tries = slices.Repeat([]error{e}, 1000), 0
			ended := make(chan error)
			go func() {
				_, err := l.Accept()
				ended <- err
			}()
			synctest.Wait() // it rests
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v: closed: %v", e, err)
			}
		})
	}
}

// TestHeaderBound: a connection holds a header of Limits.Header bytes and no more before it is
// refused. Each line costs a hundred bytes and more, and nothing else counts them.
func TestHeaderBound(t *testing.T) {
	r := newRig(t)
	for _, network := range []string{"unix", "tcp"} {
		for _, more := range []int{0, 1} {
			head := "GET /livez HTTP/1.1\r\nHost: " + r.tcp + "\r\n"
			for i := 0; len(head)+12 <= 8<<10; i++ {
				head += fmt.Sprintf("%x:\r\n", i)
			}
			head += "a:"
			head += strings.Repeat("b", 8<<10-len(head)-4+more) + "\r\n\r\n"
			c := r.dial(network)
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", network, len(head), err)
			}
			resp.Body.Close()
			if want := []int{200, 431}[more]; resp.StatusCode != want {
				t.Errorf("%s, %d bytes: %d, want %d", network, len(head), resp.StatusCode, want)
			}
		}
	}
}

// TestLongHeader: a client that sends far too long a header, whole before it reads, gets a problem
// and the end of the connection, not a reset. An answer of the same bytes stays as it is.
func TestLongHeader(t *testing.T) {
	r := newRig(t)
	for _, network := range []string{"unix", "tcp"} {
		for _, size := range []int{9 << 10, 60 << 10, 250 << 10} {
			c := r.dial(network)
			if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\nA: "+strings.Repeat("b", size)+"\r\n\r\n"); err != nil {
				t.Errorf("%s, %d bytes: %v", network, size, err)
			}
			answer, err := io.ReadAll(c)
			if err != nil {
				t.Errorf("%s, %d bytes: after %d bytes of the answer: %v", network, size, len(answer), err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", network, size, err)
			}
			var p api.Problem
			if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != 431 || p.Status != 431 || p.Reason != "too_large" || resp.Header.Get("Content-Type") != api.MediaProblem {
				t.Errorf("%s, %d bytes: %d %+v, %v", network, size, resp.StatusCode, p, err)
			}
		}
	}
	to := &recorded{}
	c := &conn{Conn: to, peer: &peer{unix: true}}
	c.answers.Store(true)
	if n, err := c.Write([]byte(tooLarge)); err != nil || n != len(tooLarge) || string(to.got) != tooLarge {
		t.Errorf("of a handler: %d, %v, %q", n, err, to.got)
	}
}

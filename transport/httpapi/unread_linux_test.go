package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"palyra/internal/budget"
)

// TestUnreadAnswers: a client that leaves answers unread at the unix socket keeps our memory,
// little of each, and gets no connection any more; others do, and it does when it has read.
func TestUnreadAnswers(t *testing.T) {
	r := newRig(t)
	get := func() net.Conn {
		c := r.dial("unix")
		_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") // it may be closed by then
		return c
	}
	var left []net.Conn
	o := budget.Owner{Name: fmt.Sprintf("uid:%d", os.Geteuid())}
	for r.rooms.unread.full(o) == nil {
		if left = append(left, get()); len(left) > 10*unreadEach {
			t.Fatalf("%d answers are unread, and nothing counts them", len(left))
		}
		for held := true; held; { // until this answer was written
			r.rooms.unread.mu.Lock()
			held = r.rooms.unread.count[o] < len(left)
			r.rooms.unread.mu.Unlock()
		}
	}
	if len(left) != unreadEach {
		t.Errorf("full with %d, want %d", len(left), unreadEach)
	}
	if b, err := io.ReadAll(get()); len(b) > 0 {
		t.Errorf("an answer beyond them: %q, %v", b, err)
	}
	r.want(r.sendTCP(http.MethodGet, "/livez", ""), 200)
	if err := r.rooms.unread.full(budget.Owner{Name: o.Name, Reserve: true}); err != nil {
		t.Errorf("the owner: %v", err)
	}

	if b, err := io.ReadAll(left[0]); err != nil || len(b) == 0 {
		t.Errorf("what was left: %q, %v", b, err)
	}
	for r.rooms.unread.full(o) != nil {
		if t.Context().Err() != nil {
			t.Fatal("what was read counts on")
		}
	}
	if b, err := io.ReadAll(get()); err != nil || len(b) == 0 {
		t.Errorf("after reading one: %q, %v", b, err)
	}
}

// TestLeftByPeer: what a token's connection leaves counts for the user at its other end, not
// for the token's principal. It gives way when descriptors are short.
func TestLeftByPeer(t *testing.T) {
	r := newRig(t)
	c := accepted(t, r, "unix")
	c.peer = &peer{key: "uid:7", unix: true}
	if !r.rooms.enter(c, "") {
		t.Fatal("no place")
	}
	if err := r.rooms.promote(c, "agent:a", "operator"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "an answer"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	left := func() string {
		r.rooms.unread.mu.Lock()
		defer r.rooms.unread.mu.Unlock()
		return fmt.Sprint(r.rooms.unread.count)
	}
	if got := left(); got != "map[{uid:7 false}:1]" {
		t.Errorf("left: %s, want one of uid:7", got)
	}
	if !r.rooms.relieve(false) || left() != "map[]" {
		t.Errorf("it did not give way; left: %s", left())
	}
}

// TestBounds: the kernel takes little of an answer before the client reads.
func TestBounds(t *testing.T) {
	r := newRig(t)
	for _, c := range []*conn{accepted(t, r, "unix"), accepted(t, r, "tcp")} {
		if n := option(t, c, syscall.SOL_SOCKET, syscall.SO_SNDBUF); n > 2*sendBuffer {
			t.Errorf("%s: SO_SNDBUF is %d", c.peer.surface(), n)
		}
		if !c.peer.unix {
			if n := option(t, c, syscall.SOL_SOCKET, syscall.SO_RCVBUF); n > 2*receiveBuffer {
				t.Errorf("SO_RCVBUF is %d", n)
			}
			if n := option(t, c, syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); time.Duration(n)*time.Millisecond != r.lim.Write {
				t.Errorf("TCP_USER_TIMEOUT is %d ms", n)
			}
		}
	}
}

// accepted makes a connection and returns the server's side of it.
func accepted(t *testing.T, r *rig, network string) *conn {
	t.Helper()
	l, err := net.Listen(network, map[string]string{"unix": t.TempDir() + "/s", "tcp": "127.0.0.1:0"}[network])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	gl := newListener(l, r.rooms, r.lim.Write)
	gl.unix = network == "unix"
	got, err := gl.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { got.Close() })
	return beneath(got)
}

func option(t *testing.T, c *conn, level, name int) (n int) {
	t.Helper()
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n, _ = syscall.GetsockoptInt(int(fd), level, name) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

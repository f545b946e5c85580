package egress

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"palyra/internal/budget"
	"palyra/isolate/evidence"
)

// TestPassing: all that the host has sent of a long answer is with the program while the host says
// no more, over each protocol, and each byte comes.
func TestPassing(t *testing.T) {
	data := make([]byte, 5<<20+123)
	rand.NewChaCha8([32]byte{}).Read(data)
	heard := make(chan struct{})
	w := newWeb(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Write(data)
		rw.(http.Flusher).Flush()
		select {
		case <-heard:
		case <-r.Context().Done():
			return
		}
		io.WriteString(rw, r.Proto)
	}, "5.5.41.1:443")
	b := newBroker(t, Config{Nameserver: newNameServer(t, map[string][]string{"a.example": {"5.5.41.1"}}).at, Roots: w.roots})
	c, _ := b.inspects(&Order{Rules: []string{"a.example:443"}, Inspect: []string{"a.example:443"}})
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		program := c.https(c.session.Authority())
		program.Transport.(*http.Transport).ForceAttemptHTTP2 = protocol == "HTTP/2.0"
		res, err := program.Get("https://a.example/")
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%s: %v, or other bytes came than were sent", protocol, err)
		}
		heard <- struct{}{}
		rest, err := io.ReadAll(res.Body)
		if err != nil || string(rest) != protocol || res.Proto != protocol {
			t.Errorf("%s to the program, %q to the host, %v, want %s", res.Proto, rest, err, protocol)
		}
		res.Body.Close()
	}
}

// TestAhead: what is read ahead comes in order, and its bulk goes back when it was taken, or when the
// connection is closed before.
func TestAhead(t *testing.T) {
	bulks := pool(1, 0)
	s := &session{srv: &server{bulks: bulks}, owner: budget.Owner{Name: "a"}}
	for _, taken := range []bool{true, false} {
		conn, host := pair(t)
		flushed := 0
		c := &hostConn{TCPConn: conn, h: &hostConns{s: s, flush: func() { flushed++ }}}
		text := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
		go host.Write(text)
		var got []byte
		b := make([]byte, 1000)
		for len(got) < len(text)/2 || bulks.Held() == 0 {
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err, len(got))
			}
			got = append(got, b[:n]...)
		}
		if taken {
			host.CloseWrite()
			rest, err := io.ReadAll(c)
			if got = append(got, rest...); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
			}
			if bulks.Held() != 0 {
				t.Error("a bulk is held by what was taken")
			}
		}
		if flushed == 0 || flushed > len(text)/len(b)/2 {
			t.Errorf("%d flushes for %d bytes", flushed, len(got))
		}
		c.TCPConn.Close()
		c.ahead.close()
		if bulks.Held() != 0 {
			t.Error("a bulk is held by a closed connection")
		}
		if !taken {
			if n, err := c.Read(b); err == nil {
				t.Errorf("%d bytes of a closed connection", n)
			}
		}
	}
}

// TestGathered: what is written while an answer passes comes as one, when it's flushed, and without
// a bulk or an answer at once. A bulk goes back in either case, and with the connection.
func TestGathered(t *testing.T) {
	bulks := pool(1, 0)
	s := &session{srv: &server{bulks: bulks}, owner: budget.Owner{Name: "a"}}
	s.limits.Idle = time.Minute
	s.receivedLeft.Store(1 << 20)
	conn, program := pair(t)
	m := newMetered(s, conn, "a.example", 443)
	write := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			if n, err := io.WriteString(m, text); n != len(text) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	comes := func(want string) {
		t.Helper()
		b := make([]byte, 100)
		if n, err := io.ReadAtLeast(program, b, len(want)); err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v, want %q", b[:n], err, want)
		}
	}
	write("head ")
	comes("head ")
	m.pass(true)
	write("a ", "b ")
	if bulks.Held() != 1 || m.received.n.Load() != 5 {
		t.Errorf("%d bulks, %d bytes passed", bulks.Held(), m.received.n.Load())
	}
	m.flush()
	comes("a b ")
	hold, err := bulks.Take(budget.Owner{Name: "b"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	write("none ")
	comes("none ")
	hold.Release()
	write("c ")
	m.pass(false)
	comes("c ")
	write("end")
	comes("end")
	s.receivedLeft.Store(3) // the limit is that of what is passed
	m.pass(true)
	write("12345")
	m.flush()
	if _, err := m.Write([]byte("x")); err == nil {
		t.Error("a write behind one that was too much")
	}
	m.pass(true)
	m.stop()
	if bulks.Held() != 0 || m.received.n.Load() != int64(len("head a b none c end123")) {
		t.Errorf("%d bulks are held, %d bytes passed", bulks.Held(), m.received.n.Load())
	}
	if outcome, limit := m.cut(); outcome != evidence.ConnLimit || limit != evidence.LimitReceived {
		t.Errorf("it ended with %q by %q", outcome, limit)
	}
}

package client

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// far is palyra-egress's side: it gives each session to serve.
func far(t *testing.T, conn *net.UnixConn, serve func(r wire.Request, session *net.UnixConn, cell int)) {
	t.Helper()
	ended := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-ended })
	go func() {
		defer close(ended)
		buf, oob := make([]byte, wire.MaxRequest), make([]byte, 64)
		for {
			n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
			if err != nil || n == 0 {
				return
			}
			var r wire.Request
			if err := wire.Decode(buf[:n], &r, wire.MaxRequest); err != nil {
				t.Error(err)
				return
			}
			m, err := syscall.ParseSocketControlMessage(oob[:oobn])
			if err != nil || len(m) != 1 {
				t.Errorf("%d control messages, %v", len(m), err)
				return
			}
			fds, err := syscall.ParseUnixRights(&m[0])
			if err != nil || len(fds) != wire.Descriptors {
				t.Errorf("descriptors %v, %v", fds, err)
				return
			}
			session, err := connOf(os.NewFile(uintptr(fds[0]), "session"))
			if err != nil {
				t.Error(err)
				return
			}
			serve(r, session, fds[1])
			syscall.Close(fds[1])
			session.Close()
		}
	}()
}

func control(t *testing.T) (ours *link, theirs *net.UnixConn) {
	t.Helper()
	a, b, err := pair(syscall.SOCK_SEQPACKET, "test")
	if err != nil {
		t.Fatal(err)
	}
	var conns []*net.UnixConn
	for _, f := range []*os.File{a, b} {
		c, err := connOf(f)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	l := new(link)
	l.set(conns[0])
	t.Cleanup(func() { l.close() })
	return l, conns[1]
}

func say(t *testing.T, c *net.UnixConn, v any) {
	t.Helper()
	b, err := wire.Encode(v)
	if err != nil {
		t.Error(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Error(err)
	}
}

// toEnd waits for the other side's shutdown.
func toEnd(c *net.UnixConn) { c.Read(make([]byte, 1)) }

func TestSession(t *testing.T) {
	l, conn := control(t)
	order := &Order{Rules: []string{"example.org:443"}, Limits: Limits{Open: 3}}
	far(t, conn, func(r wire.Request, s *net.UnixConn, cell int) {
		if r.Version != wire.Version || len(r.Order.Rules) != 1 || r.Order.Rules[0] != order.Rules[0] || r.Order.Limits != order.Limits {
			t.Errorf("the order arrives as %+v", r)
		}
		say(t, s, wire.Answer{})
		b := make([]byte, 8)
		if n, err := syscall.Read(cell, b); err != nil || string(b[:n]) != "sockets" {
			t.Errorf("from the cell: %q, %v", b[:n], err)
		}
		toEnd(s)
		say(t, s, &evidence.Egress{Queries: 7})
	})
	s, err := l.Open(context.Background(), order)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cell().Write([]byte("sockets")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
		t.Error("it is done before its end")
	default:
	}
	for range 2 {
		e, err := s.Close()
		if err != nil || e.Queries != 7 || e.Basis != evidence.Reported {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// TestGive: a session with uses begins when palyra-egress has taken the values, and not if it refuses
// them.
func TestGive(t *testing.T) {
	order := &Order{Uses: []Use{{Use: "TOKEN=vault://global/npm header:authorization a.example:443", Placeholder: "npm_0"}}}
	refusal := fault.New(fault.Refused, "invalid_input", "open a value", nil)
	for name, c := range map[string]struct {
		answer wire.Answer // to the values
		reason string
	}{
		"taken":   {},
		"refused": {wire.Answer{Error: fault.MessageOf(refusal)}, "invalid_input"},
	} {
		t.Run(name, func(t *testing.T) {
			l, conn := control(t)
			far(t, conn, func(r wire.Request, s *net.UnixConn, _ int) {
				if !slices.Equal(r.Order.Uses, order.Uses) {
					t.Errorf("the uses arrive as %+v", r.Order.Uses)
				}
				say(t, s, wire.Answer{Key: []byte("key"), Authority: "PEM"})
				line, err := bufio.NewReader(s).ReadBytes('\n')
				var got wire.Secrets
				if err == nil {
					err = wire.Decode(line, &got, wire.MaxSecrets)
				}
				if err != nil || len(got.Sealed) != 1 || string(got.Sealed[0]) != "box" {
					t.Errorf("the values arrive as %q, %v", got.Sealed, err)
				}
				if say(t, s, c.answer); c.answer.Error == nil {
					toEnd(s)
					say(t, s, new(evidence.Egress))
				}
			})
			s, err := l.Open(context.Background(), order)
			if err != nil {
				t.Fatal(err)
			}
			if string(s.Key()) != "key" || s.Authority() != "PEM" {
				t.Errorf("key %q, authority %q", s.Key(), s.Authority())
			}
			if err := s.Give(t.Context(), [][]byte{[]byte("box")}); fault.ReasonOf(err) != c.reason {
				t.Errorf("got %v", err)
			}
			if _, err := s.Close(); fault.ReasonOf(err) != c.reason {
				t.Errorf("at its end: %v", err)
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		l, conn := control(t)
		got, over := make(chan struct{}), make(chan struct{})
		far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) {
			say(t, s, wire.Answer{Key: []byte("key")})
			bufio.NewReader(s).ReadBytes('\n')
			close(got)
			<-over
		})
		s, err := l.Open(context.Background(), order)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-got
			cancel()
		}()
		if err := s.Give(ctx, [][]byte{[]byte("box")}); fault.ReasonOf(err) != "canceled" {
			t.Errorf("got %v", err)
		}
		close(over)
		s.CloseNow()
	})
	t.Run("no key", func(t *testing.T) {
		l, conn := control(t)
		far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) { say(t, s, wire.Answer{}) })
		if _, err := l.Open(context.Background(), order); fault.ReasonOf(err) != "internal" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no uses", func(t *testing.T) {
		l, conn := control(t)
		far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) {
			say(t, s, wire.Answer{})
			toEnd(s)
			say(t, s, new(evidence.Egress))
		})
		s, err := l.Open(context.Background(), new(Order))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Give(t.Context(), nil); err == nil {
			t.Error("values were taken without uses")
		}
		s.Close()
	})
}

// TestLost: whatever palyra-egress does instead of answering is an error by name, and no hang.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		serve  func(s *net.UnixConn)
		reason string
		lost   bool
	}{
		"ends at once": {func(s *net.UnixConn) {}, "egress_lost", true},
		"refuses": {func(s *net.UnixConn) {
			say(t, s, wire.Answer{Error: fault.MessageOf(fault.New(fault.Unavailable, "budget", "open", nil))})
		}, "budget", false},
		"says nonsense": {func(s *net.UnixConn) { s.Write([]byte("hello\n")) }, "internal", false},
		"says too much": {func(s *net.UnixConn) { s.Write([]byte(strings.Repeat("x", wire.MaxAnswer+1))) }, "egress_lost", true},
	} {
		t.Run(name, func(t *testing.T) {
			l, conn := control(t)
			far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) { c.serve(s) })
			_, err := l.Open(context.Background(), new(Order))
			if fault.ReasonOf(err) != c.reason || errors.Is(err, ErrLost) != c.lost {
				t.Errorf("got %v", err)
			}
		})
	}
	for name, serve := range map[string]func(s *net.UnixConn){
		"ends":          func(s *net.UnixConn) {},
		"half evidence": func(s *net.UnixConn) { s.Write([]byte(`{"queries":`)) },
		"much evidence": func(s *net.UnixConn) { s.Write([]byte(strings.Repeat(" ", wire.MaxEvidence+2))) },
	} {
		t.Run(name, func(t *testing.T) {
			l, conn := control(t)
			far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) { say(t, s, wire.Answer{}); serve(s) })
			s, err := l.Open(context.Background(), new(Order))
			if err != nil {
				t.Fatal(err)
			}
			<-s.Done() // before Close: the caller learns of it
			if e, err := s.Close(); err == nil || e != nil {
				t.Errorf("%+v, %v", e, err)
			} else if name == "ends" && !errors.Is(err, ErrLost) {
				t.Error(err)
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		l, conn := control(t)
		asked := make(chan struct{})
		far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) { close(asked); toEnd(s) })
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-asked; cancel() }()
		if _, err := l.Open(ctx, new(Order)); fault.ReasonOf(err) != "canceled" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("gone before", func(t *testing.T) {
		l, conn := control(t)
		conn.Close()
		if _, err := l.Open(context.Background(), new(Order)); !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}

// TestHangs: a palyra-egress that reads nothing keeps no caller beyond its ctx, however many orders
// wait before it, and whoever asks later.
func TestHangs(t *testing.T) {
	l, _ := control(t)
	full := func() bool {
		raw, err := l.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		ready := true
		if err := raw.Control(func(fd uintptr) {
			_, err := syscall.SendmsgN(int(fd), make([]byte, 200), nil, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
			ready = err == nil
		}); err != nil {
			t.Fatal(err)
		}
		return !ready
	}
	for !full() {
	}
	ended := make(chan error)
	asked, cancel := context.WithCancel(context.Background())
	for range 3 {
		go func() {
			_, err := l.Open(asked, new(Order))
			ended <- err
		}()
	}
	cancel()
	other, over := context.WithCancel(context.Background())
	defer over()
	go l.Open(other, new(Order)) // one that goes on waiting
	for range 3 {
		if err := <-ended; fault.ReasonOf(err) != "canceled" {
			t.Errorf("got %v", err)
		}
	}
}

// TestCloseNow: the end of a call that was ended early doesn't wait for a palyra-egress that hangs.
func TestCloseNow(t *testing.T) {
	l, conn := control(t)
	over := make(chan struct{})
	far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) { say(t, s, wire.Answer{}); <-over })
	s, err := l.Open(context.Background(), new(Order))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if e, err := s.CloseNow(); !errors.Is(err, ErrLost) || e != nil {
		t.Errorf("%+v, %v", e, err)
	}
	if took := time.Since(began); took >= closing {
		t.Errorf("it took %v", took)
	}
	close(over)
}

// TestListener: a palyra-egress that comes back is used, and Open waits for it.
func TestListener(t *testing.T) {
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"}
	ul, err := net.ListenUnix("unixpacket", addr)
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(ul)
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Open(ctx, new(Order)); fault.ReasonOf(err) != "canceled" {
		t.Errorf("without one: %v", err)
	}
	for range 2 {
		opened := make(chan error, 1)
		go func() { // maybe before it is there, maybe after
			s, err := l.Open(context.Background(), new(Order))
			if err == nil {
				_, err = s.Close()
			}
			opened <- err
		}()
		conn, err := net.DialUnix("unixpacket", nil, addr)
		if err != nil {
			t.Fatal(err)
		}
		far(t, conn, func(_ wire.Request, s *net.UnixConn, _ int) {
			say(t, s, wire.Answer{})
			toEnd(s)
			say(t, s, new(evidence.Egress))
		})
		if err := <-opened; err != nil {
			t.Error(err)
		}
		_, changed := l.current()
		if err := l.Ready(context.Background()); err != nil {
			t.Error(err)
		}
		conn.Close()
		<-changed
		if conn, _ := l.current(); conn != nil {
			t.Error("it is connected after the end")
		}
	}
}

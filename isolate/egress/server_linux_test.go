package egress

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"palyra/isolate/egress/client"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/wire"
)

// TestCellGone: a cell that gives nothing, or closes at once, costs a session and nothing else.
func TestCellGone(t *testing.T) {
	b := newBroker(t, Config{Sessions: 1})
	for range 3 {
		s, err := b.client.Open(context.Background(), &Order{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.Open(context.Background(), &Order{}); err == nil {
			t.Error("a second session of one")
		}
		s.Cell().Close()
		if e, err := s.Close(); err != nil || e.Sent != 0 {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// TestWrongSockets: palyra-egress serves a cell's sockets and no others, and says so.
func TestWrongSockets(t *testing.T) {
	b := newBroker(t, Config{})
	c := newCell(t)
	for name, change := range map[string]func(*handover.Sockets){
		"few":  func(s *handover.Sockets) { s.TCP4 = s.TCP4[:2] },
		"file": func(s *handover.Sockets) { s.TCP4[0], _ = os.Open("/dev/null") },
		"own": func(s *handover.Sockets) {
			fd, _ := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
			s.TCP4[1] = os.NewFile(uintptr(fd), "own")
		},
		"kind":   func(s *handover.Sockets) { s.TCP4[0] = s.UDP },
		"listen": func(s *handover.Sockets) { syscall.Listen(int(s.TCP4[2].Fd()), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := b.client.Open(context.Background(), &Order{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			sockets := c.sockets(3)
			all := handover.Sockets{UDP: sockets.UDP, TCP4: slices.Clone(sockets.TCP4), TCP6: slices.Clone(sockets.TCP6)}
			defer all.Close()
			change(sockets)
			var no *handover.Refused
			if err := handOver(s.Cell(), sockets); !errors.As(err, &no) {
				t.Errorf("got %v, want a refusal", err)
			}
		})
	}
}

// TestOrders: an order that isn't one is refused by name.
func TestOrders(t *testing.T) {
	b := newBroker(t, Config{})
	for name, o := range map[string]*Order{
		"rule":   {Rules: []string{"https://a.example"}},
		"form":   {Rules: []string{"A.example:443"}},
		"order":  {Rules: []string{"b.example:443", "a.example:443"}},
		"limits": {Limits: wire.Limits{Open: 1 << 20}},
		"many":   {Rules: slices.Repeat([]string{"a.example:443"}, 65)},
	} {
		if _, err := b.client.Open(context.Background(), o); err == nil || errors.Is(err, client.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMessages: a message that isn't an order is dropped with its descriptors, and the next one is
// served.
func TestMessages(t *testing.T) {
	pair := func(kind int) [2]int {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(fds[0]); syscall.Close(fds[1]) })
		return fds
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "control")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	var mu sync.Mutex
	var dropped []string
	go func() {
		ended <- Serve(context.Background(), conn.(*net.UnixConn), Config{Log: func(s string) { mu.Lock(); dropped = append(dropped, s); mu.Unlock() }})
	}()
	stream, packet := pair(syscall.SOCK_STREAM), pair(syscall.SOCK_SEQPACKET)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	listening, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(listening)
	inet, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inet)
	before := openFiles(t)
	good, _ := wire.Encode(wire.Request{Version: wire.Version})
	sent := 0
	send := func(msg []byte, rights ...int) {
		t.Helper()
		var oob []byte
		if len(rights) > 0 {
			oob = syscall.UnixRights(rights...)
		}
		if err := syscall.Sendmsg(fds[0], msg, oob, nil, 0); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	send(good)
	send(good, stream[1])
	send(good, stream[1], packet[1], packet[1])
	send(good, slices.Repeat([]int{stream[1]}, 50)...)
	send(good, packet[1], stream[1])
	send(good, int(null.Fd()), packet[1])
	send(good, listening, packet[1])
	send(good, inet, packet[1])
	send(good, stream[1], stream[1])
	send(bytes.Repeat([]byte("x"), wire.MaxRequest+2), stream[1], packet[1])
	for _, text := range []string{"", "{", `{"version":1}`, `{"version":2,"order":{"rules":["a.example"]}}`, `{"version":2,"x":1}`} {
		s := pair(syscall.SOCK_STREAM)
		if text == "" {
			text = "\x00"
		}
		send([]byte(text), s[1], packet[1])
		sent--
		buf := make([]byte, wire.MaxAnswer)
		n, err := syscall.Read(s[0], buf)
		var a wire.Answer
		if err != nil || wire.Decode(buf[:n], &a, wire.MaxAnswer) != nil || a.Error == nil {
			t.Errorf("%q: answered %q, %v", text, buf[:n], err)
		}
	}
	s := pair(syscall.SOCK_STREAM)
	send(good, s[1], packet[1])
	sent--
	buf := make([]byte, wire.MaxAnswer)
	if n, err := syscall.Read(s[0], buf); err != nil || string(buf[:n]) != "{}\n" {
		t.Errorf("a good one: %q, %v", buf[:n], err)
	}
	syscall.Close(fds[0])
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(dropped) != sent {
		t.Errorf("%d were dropped, want %d: %q", len(dropped), sent, dropped)
	}
	// The pairs made since, and not the control connection's two.
	if after := openFiles(t); after != before+2*6-2 {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

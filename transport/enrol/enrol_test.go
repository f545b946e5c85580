package enrol

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// echo sends back each message, after the binding, until the connection ends.
type echo struct {
	waits atomic.Bool
	begun chan struct{} // one value for each exchange
	ended chan error    // likewise
}

func (e *echo) PairingWaits() bool { return e.waits.Load() }

func (e *echo) Enrol(ctx context.Context, m hub.Messages) error {
	defer m.Close()
	e.begun <- struct{}{}
	err := m.Write(m.Binding())
	for err == nil {
		var b []byte
		if b, err = m.Read(time.Time{}); err == nil {
			err = m.Write(b)
		}
	}
	e.ended <- err
	return err
}

func certificate(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}, spki
}

// serve runs a server for the test and returns its address, its hub and its key.
func serve(t *testing.T) (string, *echo, []byte) {
	t.Helper()
	_, at, e, key := serveAs(t)
	return at, e, key
}

func serveAs(t *testing.T) (*Server, string, *echo, []byte) {
	t.Helper()
	e := &echo{begun: make(chan struct{}, 2*Rate), ended: make(chan error, 2*Rate)}
	e.waits.Store(true)
	cert, key := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	s := NewServer(Config{Hub: e, Certificate: cert})
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, l.Addr().String(), e, key
}

func dial(t *testing.T, at string, key []byte) *Conn {
	t.Helper()
	c, got, err := Dial(t.Context(), at, func(k []byte) bool { return bytes.Equal(k, key) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if !bytes.Equal(got, key) {
		t.Fatal("another key than the hub's")
	}
	return c
}

func TestMessages(t *testing.T) {
	at, e, key := serve(t)
	c := dial(t, at, key)
	b, err := c.Read(time.Time{})
	if err != nil || !bytes.Equal(b, c.Binding()) || len(b) != bindingSize {
		t.Fatalf("bindings %x and %x, %v", b, c.Binding(), err)
	}
	for _, want := range [][]byte{{}, []byte("one"), bytes.Repeat([]byte{7}, MaxMessage)} {
		if err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Read(time.Time{}); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back as %d, %v", len(want), len(got), err)
		}
	}
	if other := dial(t, at, key); bytes.Equal(other.Binding(), c.Binding()) {
		t.Error("two connections have the same binding")
	}
	// A message that says it's too long ends the connection before it is read.
	if _, err := c.tc.Write(binary.BigEndian.AppendUint32(nil, MaxMessage+1)); err != nil {
		t.Fatal(err)
	}
	if err := <-e.ended; fault.ReasonOf(err) != "pairing_proof" {
		t.Errorf("a long message: %v", err)
	}
	if _, err := c.Read(time.Time{}); fault.ReasonOf(err) != "connection_lost" {
		t.Errorf("after it: %v", err)
	}
}

// TestNothingElse: what isn't a pairing gets nowhere, and the control does.
func TestNothingElse(t *testing.T) {
	at, e, key := serve(t)
	for name, cfg := range map[string]*tls.Config{
		"TLS 1.2":        {MaxVersion: tls.VersionTLS12, NextProtos: []string{Protocol}},
		"HTTP":           {NextProtos: []string{"http/1.1"}},
		"HTTP/2":         {NextProtos: []string{"h2"}},
		"no protocol":    {},
		"another of two": {NextProtos: []string{"palyra-pair/2"}},
	} {
		cfg.InsecureSkipVerify = true
		tc, err := tls.Dial("tcp", at, cfg)
		if err == nil { // the server finds out after its side of the handshake
			_, _ = io.WriteString(tc, "GET /api/v1/status HTTP/1.1\r\nHost: "+at+"\r\n\r\n")
			_, err = io.ReadFull(tc, make([]byte, 1))
			tc.Close()
		}
		if err == nil || len(e.begun) != 0 {
			t.Errorf("%s reaches the hub", name)
		}
	}
	nc, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\n\r\n")
	if b, _ := io.ReadAll(nc); strings.Contains(string(b), "HTTP") || len(e.begun) != 0 {
		t.Errorf("plain HTTP gets %q", b)
	}
	dial(t, at, key)
	<-e.begun
}

// TestOtherKey: a device says nothing to a hub that its code doesn't name.
func TestOtherKey(t *testing.T) {
	at, e, _ := serve(t)
	_, _, err := Dial(t.Context(), at, func([]byte) bool { return false })
	if fault.ReasonOf(err) != "pairing_proof" || len(e.begun) != 0 {
		t.Errorf("dial: %v, %d exchanges", err, len(e.begun))
	}
}

// TestShut: while no pairing waits, a connection ends before TLS begins.
func TestShut(t *testing.T) {
	at, e, key := serve(t)
	e.waits.Store(false)
	nc, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if n, err := io.Copy(io.Discard, nc); n != 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, _, err = Dial(t.Context(), at, func([]byte) bool { return true }); fault.ReasonOf(err) != "connection_lost" {
		t.Errorf("dial: %v", err)
	}
	e.waits.Store(true)
	dial(t, at, key)
}

// TestConnectionsAreBounded: one network has EachConns places and gets them back.
func TestConnectionsAreBounded(t *testing.T) {
	s, at, e, key := serveAs(t)
	var all []*Conn
	for range EachConns {
		all = append(all, dial(t, at, key))
		<-e.begun
	}
	if _, _, err := Dial(t.Context(), at, func([]byte) bool { return true }); err == nil {
		t.Fatal("one more connection has a place")
	}
	all[0].Close()
	<-e.ended
	for used := EachConns; used == EachConns; runtime.Gosched() { // it's free soon after the exchange has ended
		s.mu.Lock()
		used = s.total
		s.mu.Unlock()
	}
	dial(t, at, key)
}

func TestEnter(t *testing.T) {
	s := NewServer(Config{})
	now := time.Unix(1000, 0)
	for i := range Conns {
		if !s.enter(string(rune('a'+i/EachConns)), now) {
			t.Fatalf("connection %d has no place", i)
		}
	}
	if s.enter("z", now) {
		t.Error("more than Conns have a place")
	}
	for i := range Conns {
		s.leave(string(rune('a' + i/EachConns)))
	}
	n := Conns
	for s.enter("z", now) {
		s.leave("z")
		n++
	}
	if n != Rate || len(s.conns) != 0 {
		t.Errorf("%d connections in a period, want %d; %d networks are kept", n, Rate, len(s.conns))
	}
	if !s.enter("z", now.Add(RateTime)) {
		t.Error("no place in the next period")
	}
	for a, want := range map[string]string{"127.0.0.2:1": "loopback", "[::1]:1": "loopback", "192.0.2.1:9": "192.0.2.1", "[2001:db8::1]:9": "2001:db8::/64", "[::ffff:192.0.2.1]:9": "192.0.2.1"} {
		ta, err := net.ResolveTCPAddr("tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		if got := network(ta); got != want {
			t.Errorf("network of %s is %q, want %q", a, got, want)
		}
	}
}

// Package enrol carries pairings (docs/formats/pair.md) over TLS: a listener that offers them and
// nothing else, and the device's connection to it.
//
//	s := enrol.NewServer(enrol.Config{Hub: h, Certificate: h.EnrolmentCertificate(), Log: log})
//	err := s.Serve(ctx, listener)                  // hub
//
//	c, err := enrol.Dial(ctx, "hub:7445", code.Names) // device
//	defer c.Close()
//	err = c.Write(hello)
//	offer, err := c.Read()
//
// It moves messages and knows nothing of their content. A client needs no certificate: it's here
// to get one. It gets nowhere else either, as this listener has no other protocol.
//
// # Bounds
//
// While no pairing waits, a connection is closed as soon as it's accepted. Otherwise there are at
// most Conns, EachConns from one network (an IPv6 /64, or all of loopback), and Rate new ones in
// RateTime. A handshake and each message that is awaited from the client take MessageTime at
// most, and a message MaxMessage bytes. The hub ends a connection that waits for an operator.
//
// # What it does not protect against
//
// Strangers who take all connections can keep a device from pairing while they do.
package enrol

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// The protocol of the listener: ALPN, and what both sides export of a connection.
const (
	Protocol     = "palyra-pair/1"
	bindingLabel = "EXPORTER-palyra-pair-1"
	bindingSize  = 32
)

// The bounds of connections.
const (
	Conns       = 16
	EachConns   = 4
	Rate        = 64
	RateTime    = 10 * time.Second
	MessageTime = 10 * time.Second
	MaxMessage  = 32 << 10
)

// Hub does pairings.
type Hub interface {
	// PairingWaits reports whether there is a pairing that a device could begin or go on with.
	PairingWaits() bool
	// Enrol does one exchange, closes m, and returns when that has ended. A done ctx, or the
	// end of m, ends it.
	Enrol(ctx context.Context, m hub.Messages) error
}

// Config says what a Server serves.
type Config struct {
	Hub         Hub
	Certificate tls.Certificate // its key is the one that codes name
	Log         *slog.Logger    // default: discarded
}

// Server is the hub's side. It's safe for concurrent use.
type Server struct {
	cfg Config
	tls *tls.Config

	mu    sync.Mutex
	conns map[string]int // by network; guarded by mu
	total int            // guarded by mu
	since time.Time      // guarded by mu
	fresh int            // accepted since then; guarded by mu
}

// NewServer returns a Server.
func NewServer(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, conns: make(map[string]int), tls: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cfg.Certificate}, NextProtos: []string{Protocol},
		SessionTicketsDisabled: true, // one connection, one exchange
	}}
}

// Serve answers on l until ctx is done, and returns when every exchange has ended. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait
	wg.Go(func() { <-ctx.Done(); _ = l.Close() })
	for {
		nc, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fault.New(fault.Unavailable, "connection_lost", "serve "+l.Addr().String(), err)
			}
			s.cfg.Log.Warn("pairing connection not accepted", "error", err)
			select { // descriptors may be used up; they come back
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
			continue
		}
		from := network(nc.RemoteAddr())
		if !s.cfg.Hub.PairingWaits() || !s.enter(from, time.Now()) {
			_ = nc.Close()
			continue
		}
		wg.Go(func() {
			defer s.leave(from)
			s.serve(ctx, nc)
		})
	}
}

// enter takes a place for a connection.
func (s *Server) enter(from string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.since) >= RateTime || now.Before(s.since) {
		s.since, s.fresh = now, 0
	}
	if s.total >= Conns || s.conns[from] >= EachConns || s.fresh >= Rate {
		return false
	}
	s.total++
	s.conns[from]++
	s.fresh++
	return true
}

func (s *Server) leave(from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.conns[from]--; s.conns[from] == 0 {
		delete(s.conns, from)
	}
}

// network returns what counts as one client.
func network(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	ip := at.Addr().Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return "loopback"
	case ip.Is6():
		p, _ := ip.Prefix(64) // an IPv6 address has 128 bits
		return p.String()
	}
	return ip.String()
}

func (s *Server) serve(ctx context.Context, nc net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	tc := tls.Server(nc, s.tls)
	c, err := begin(ctx, tc)
	if err != nil {
		_ = nc.Close()
		s.cfg.Log.Info("pairing connection refused", "from", nc.RemoteAddr().String(), "error", err)
		return
	}
	defer c.Close()
	if err := s.cfg.Hub.Enrol(ctx, c); err != nil {
		s.cfg.Log.Info("pairing not completed", "from", nc.RemoteAddr().String(), "error", err, "reason", fault.ReasonOf(err))
	}
}

// Conn is one connection with an exchange.
type Conn struct {
	tc      *tls.Conn
	binding []byte
}

var _ hub.Messages = (*Conn)(nil)

// Dial connects to a hub's enrolment listener. names says whether the hub's key, DER of a
// SubjectPublicKeyInfo, is the one that the code names: nothing is sent to another.
func Dial(ctx context.Context, address string, names func(key []byte) bool) (*Conn, []byte, error) {
	op := fmt.Sprintf("connect to %q", address)
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fault.New(fault.Unavailable, "connection_lost", op, err).WithHint("the address is that of pairing.listen in the hub's configuration")
	}
	var key []byte
	tc := tls.Client(nc, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{Protocol},
		// The code names the key, so no name and no authority counts.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			key = cs.PeerCertificates[0].RawSubjectPublicKeyInfo
			if !names(key) {
				return fault.New(fault.Integrity, "pairing_proof", op, errors.New("the hub there has another key than the code names")).
					WithHint("is it the hub that made the code? If so, someone is in between")
			}
			return nil
		},
	})
	c, err := begin(ctx, tc)
	if err != nil {
		_ = nc.Close()
		if fault.ReasonOf(err) != "" {
			return nil, nil, err
		}
		return nil, nil, fault.New(fault.Unavailable, "connection_lost", op, err).WithHint("no pairing may be open there: the hub's operator begins one with palyra devices pair")
	}
	return c, key, nil
}

// begin shakes hands.
func begin(ctx context.Context, tc *tls.Conn) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, MessageTime)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	cs := tc.ConnectionState()
	if cs.NegotiatedProtocol != Protocol {
		return nil, errors.New("the other side does not speak " + Protocol)
	}
	binding, err := cs.ExportKeyingMaterial(bindingLabel, nil, bindingSize)
	if err != nil {
		return nil, err
	}
	return &Conn{tc: tc, binding: binding}, nil
}

// Binding implements hub.Messages.
func (c *Conn) Binding() []byte { return c.binding }

// Read implements hub.Messages. The length is checked before anything is allocated.
func (c *Conn) Read(deadline time.Time) ([]byte, error) {
	if err := c.tc.SetReadDeadline(deadline); err != nil {
		return nil, lost("read", err)
	}
	var head [4]byte
	if _, err := io.ReadFull(c.tc, head[:]); err != nil {
		return nil, lost("read", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxMessage {
		return nil, fault.New(fault.Integrity, "pairing_proof", "read pairing message", fmt.Errorf("it is longer than %d bytes", MaxMessage))
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.tc, b); err != nil {
		return nil, lost("read", err)
	}
	return b, nil
}

// Write implements hub.Messages.
func (c *Conn) Write(b []byte) error {
	if err := c.tc.SetWriteDeadline(time.Now().Add(MessageTime)); err != nil {
		return lost("write", err)
	}
	if _, err := c.tc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		return lost("write", err)
	}
	return nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.tc.Close() }

func lost(what string, err error) error {
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return fault.New(fault.Timeout, "timeout", what+" pairing message", err)
	}
	return fault.New(fault.Unavailable, "connection_lost", what+" pairing message", err)
}

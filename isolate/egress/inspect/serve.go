package inspect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rule "palyra/call/egress"
	"palyra/internal/canon"
	"palyra/isolate/egress/hello"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// Bounds of one connection, which are those of the memory that it takes: see Cost.
const (
	maxHead    = 64 << 10
	maxStreams = 32
	perConn    = 256 << 10 // of HTTP/2, that waits to be read
	perStream  = 128 << 10
	maxHosts   = 8 // connections to the host for one of the program's
)

// What a connection may take of memory, in bytes.
const (
	// Cost is of a connection with one request: what waits in it both ways, and heads.
	Cost = 1 << 20
	// HostCost is of a further connection to the host.
	HostCost = 256 << 10
	// perRequest is of a request that comes beside others: the buffers of its body and its answer's.
	perRequest = 128 << 10
	// maxHeads is of all heads and trailers of requests under way, and of their answers.
	maxHeads = 512 << 10
	// perField is what a field takes beside its text, in the two maps in which it stands at a time.
	perField = 256
)

// weight is what the maps of a head take.
func weight(maps ...http.Header) (n int64) {
	for _, h := range maps {
		for key, texts := range h {
			n += int64(len(key)) + perField
			for _, text := range texts {
				n += int64(len(text)) + 16
			}
		}
	}
	return n
}

// The times that a program and a host take for a greeting or a head.
const (
	headTime     = 30 * time.Second
	continueTime = time.Second
)

// link is one connection of the program's, with those to its host.
type link struct {
	g   *Guard
	to  Target
	ctx context.Context

	h2        bool // the program speaks HTTP/2; set before prepare
	transport *http.Transport
	upgrades  *http.Transport // of requests that may become WebSockets, which HTTP/2 doesn't have
	proxy     *httputil.ReverseProxy
	closed    chan struct{} // when the program's connection has ended
	close     func()        // closes closed, once

	mu    sync.Mutex
	seen  Seen                  // guarded by mu
	under int                   // guarded by mu; requests under way
	heads int64                 // guarded by mu; what theirs take
	ended bool                  // guarded by mu; nothing begins any more
	conns map[net.Conn]struct{} // guarded by mu; to the host
	work  sync.WaitGroup        // requests and dials; Add under mu
}

func newLink(ctx context.Context, g *Guard, to Target) *link {
	closed := make(chan struct{})
	return &link{g: g, to: to, ctx: ctx, conns: make(map[net.Conn]struct{}), closed: closed, close: sync.OnceFunc(func() { close(closed) })}
}

// Serve serves a connection of the program's until it ends or ctx is done, and closes it. Nothing
// of it is left then.
func (g *Guard) Serve(ctx context.Context, program net.Conn, to Target) Seen {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLink(ctx, g, to)
	defer program.Close()
	defer context.AfterFunc(ctx, func() { program.Close() })()
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) { return nil, l.greeted(h) },
		GetCertificate:     func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.authority.Leaf(to.Host) },
	}
	early := &greeting{Conn: program, stream: g.watch.Stream(), found: func(name string) { l.leak(name, evidence.LeakTLS) }}
	conn := tls.Server(early, config)
	handshake, done := context.WithTimeout(ctx, headTime)
	err := conn.HandshakeContext(handshake)
	done()
	early.stream = nil // the rest is for conn alone
	if err != nil {
		l.refuseGreeting(program, err)
		return l.end()
	}
	l.h2 = conn.ConnectionState().NegotiatedProtocol == "h2"
	l.prepare()
	l.serve(conn, config)
	return l.end()
}

// greeting is the program's connection until TLS has begun.
type greeting struct {
	net.Conn
	stream *Stream
	found  func(name string)
}

var errLeak = errors.New("a placeholder leaks")

func (c *greeting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.stream != nil {
		if name := c.stream.Next(b[:n]); name != "" {
			c.found(name)
			return 0, errLeak
		}
	}
	return n, err
}

var errName = errors.New("another server name than that of the connection's host")

// greeted judges the program's greeting.
func (l *link) greeted(h *tls.ClientHelloInfo) error {
	l.mu.Lock()
	l.seen.ServerName = wire.Plain(h.ServerName)
	l.mu.Unlock()
	if name := l.g.watch.InName(h.ServerName); name != "" {
		l.leak(name, evidence.LeakTLS)
		return errLeak
	}
	if h.ServerName != "" && !strings.EqualFold(strings.TrimSuffix(h.ServerName, "."), l.to.Host) {
		return errName
	}
	return nil
}

// refuseGreeting tells a program that speaks no TLS, or to another host, why it isn't served.
func (l *link) refuseGreeting(program net.Conn, err error) {
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, errLeak):
		return
	case errors.Is(err, errName):
	case errors.As(err, &record):
		why := fmt.Sprintf("palyra: %s is inspected and takes TLS alone: https://%s/\n", l.to.Host, l.authority())
		program.SetWriteDeadline(time.Now().Add(headTime))
		fmt.Fprintf(program, "HTTP/1.1 400 Bad Request\r\nServer: palyra\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(why), why)
		if c, ok := program.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
			program.SetReadDeadline(time.Now().Add(time.Second)) // a close with unread bytes would take the words back
			io.Copy(io.Discard, io.LimitReader(program, maxHead))
		}
	default:
		return // it went away, or doesn't trust the certificate
	}
	l.g.cfg.Denied(l.to.Host, l.to.Port, evidence.DenyNotTLS)
}

// authority is the host as URLs have it.
func (l *link) authority() string {
	if l.to.Port == 443 {
		return l.to.Host
	}
	return net.JoinHostPort(l.to.Host, strconv.Itoa(int(l.to.Port)))
}

// leak ends the call.
func (l *link) leak(name, where string) {
	l.g.cfg.Leaked(evidence.Leak{Name: name, Host: l.to.Host, Port: uint32(l.to.Port), Where: where})
}

// once is a listener with one connection.
type once struct {
	conn  chan net.Conn
	ended chan struct{}
	addr  net.Addr
}

func (o *once) Accept() (net.Conn, error) {
	select {
	case c := <-o.conn:
		return c, nil
	case <-o.ended:
		return nil, net.ErrClosed
	}
}

func (o *once) Close() error   { return nil }
func (o *once) Addr() net.Addr { return o.addr }

// serve serves conn until it's closed.
func (l *link) serve(conn net.Conn, config *tls.Config) {
	o := &once{conn: make(chan net.Conn, 1), ended: l.closed, addr: conn.LocalAddr()}
	o.conn <- conn
	s := &http.Server{
		Handler: l, TLSConfig: config, ReadHeaderTimeout: headTime, IdleTimeout: l.g.cfg.Idle, MaxHeaderBytes: maxHead,
		ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return l.ctx },
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: perConn, MaxReceiveBufferPerStream: perStream},
		DisableGeneralOptionsHandler: true,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed { // a hijacked one: when ServeHTTP has ended
				l.close()
			}
		},
	}
	s.Serve(o) // until o.ended
	l.mu.Lock()
	l.seen.Closed = true
	l.mu.Unlock()
}

// begin counts a request or a dial, unless the connection has ended.
func (l *link) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.work.Add(1)
	return true
}

// enter counts a request of a connection that begin has counted, and waits for room beside others.
func (l *link) enter(ctx context.Context) (leave func(), err error) {
	l.mu.Lock()
	l.under++
	first := l.under == 1
	l.mu.Unlock()
	release := func() {}
	if !first {
		if release, err = l.to.Room(ctx, perRequest); err != nil {
			release = func() {}
		}
	}
	return func() {
		release()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.under--
	}, err
}

// hold counts heads of a request under way, unless they'd be more than the connection may have.
func (l *link) hold(x *exchange, maps ...http.Header) bool {
	n := weight(maps...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heads+n > maxHeads {
		return false
	}
	l.heads += n
	x.heads += n
	return true
}

// end closes all connections to the host and waits for what is under way.
func (l *link) end() Seen {
	l.mu.Lock()
	l.ended = true
	open := l.conns
	l.conns = nil
	l.mu.Unlock()
	for c := range open {
		c.Close()
	}
	if l.transport != nil {
		l.transport.CloseIdleConnections()
		l.upgrades.CloseIdleConnections()
	}
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// prepare makes what leads to the host. It's asked for HTTP/2 by programs that speak it: one that
// has a request at a time gains nothing, and windows and frames that wait for goroutines make a
// long answer take half as long again.
func (l *link) prepare() {
	protocols := []string{"http/1.1"}
	if l.h2 {
		protocols = []string{"h2", "http/1.1"}
	}
	l.transport = &http.Transport{
		DialTLSContext:    func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, protocols...) },
		ForceAttemptHTTP2: true, DisableCompression: true, MaxConnsPerHost: maxHosts, MaxIdleConnsPerHost: 2, IdleConnTimeout: l.g.cfg.Idle,
		MaxResponseHeaderBytes: maxHead, ExpectContinueTimeout: continueTime,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: perConn, MaxReceiveBufferPerStream: perStream},
	}
	l.upgrades = &http.Transport{
		DialTLSContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, "http/1.1") },
		DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead,
	}
	l.proxy = &httputil.ReverseProxy{
		Transport: transports{l}, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: l.rewrite, ModifyResponse: l.answer, ErrorHandler: l.failed,
	}
}

// transports are the two of a link.
type transports struct{ l *link }

// RoundTrip sends a request to the host.
func (t transports) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return t.l.upgrades.RoundTrip(r)
	}
	return t.l.transport.RoundTrip(r)
}

// hostConn is a connection to the host that end closes.
type hostConn struct {
	net.Conn
	l *link // nil as long as it's an Early's
}

func (c *hostConn) Close() error {
	if c.l != nil {
		c.l.mu.Lock()
		delete(c.l.conns, c)
		c.l.mu.Unlock()
	}
	return c.Conn.Close()
}

// Early is a connection to a host that is made before a request wants it: TLS has begun, and
// nothing was said.
type Early struct {
	conn *tls.Conn
	held *hostConn
}

// Connect makes an Early of raw, a connection to an address of the host, which it takes over.
func (g *Guard) Connect(ctx context.Context, host string, raw net.Conn) (*Early, error) {
	held := &hostConn{Conn: raw}
	conn, err := g.greet(ctx, host, held, "h2", "http/1.1")
	if err != nil {
		return nil, err
	}
	return &Early{conn, held}, nil
}

// Seen returns the version of TLS that the host chose, and the digest of its key.
func (e *Early) Seen() (version string, key canon.Digest) {
	state := e.conn.ConnectionState()
	return hello.VersionName(state.Version), canon.Sum(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
}

// greet begins TLS with a host. It closes held if that fails.
func (g *Guard) greet(ctx context.Context, host string, held *hostConn, protocols ...string) (*tls.Conn, error) {
	conn := tls.Client(held, &tls.Config{ServerName: host, RootCAs: g.cfg.Roots, MinVersion: tls.VersionTLS12, NextProtos: protocols})
	ctx, cancel := context.WithTimeout(ctx, headTime)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		held.Close()
		return nil, err
	}
	return conn, nil
}

// early returns a connection that was made ahead and speaks one of protocols, nil if there is none.
func (l *link) early(ctx context.Context, protocols []string) *Early {
	if l.to.Early == nil {
		return nil
	}
	e := l.to.Early(ctx)
	if e == nil {
		return nil
	}
	e.held.l = l
	if !slices.Contains(protocols, cmp.Or(e.conn.ConnectionState().NegotiatedProtocol, "http/1.1")) {
		e.held.Close()
		return nil
	}
	return e
}

// dial connects to the host, and checks its certificate.
func (l *link) dial(ctx context.Context, protocols ...string) (net.Conn, error) {
	if !l.begin() {
		return nil, net.ErrClosed
	}
	defer l.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	e := l.early(ctx, protocols)
	if e == nil {
		raw, err := l.to.Dial(ctx)
		if err != nil {
			return nil, &unreached{err}
		}
		e = &Early{held: &hostConn{raw, l}}
	}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		e.held.Close()
		return nil, net.ErrClosed
	}
	l.conns[e.held] = struct{}{}
	l.mu.Unlock()
	conn := e.conn
	if conn == nil {
		var err error
		if conn, err = l.g.greet(ctx, l.to.Host, e.held, protocols...); err != nil {
			return nil, &unreached{fmt.Errorf("its TLS: %w", err)}
		}
	}
	state := conn.ConnectionState()
	key := state.PeerCertificates[0].RawSubjectPublicKeyInfo
	l.mu.Lock()
	l.seen.TLS = hello.VersionName(state.Version)
	l.seen.Key = canon.Sum(key)
	l.mu.Unlock()
	sum := sha256.Sum256(key)
	if pins := l.g.cfg.Inspection.Pins(l.to.Host, l.to.Port); len(pins) > 0 && !slices.Contains(pins, rule.PinOf(sum[:])) {
		conn.Close() // it has heard a greeting alone
		l.g.cfg.Denied(l.to.Host, l.to.Port, evidence.DenyPin)
		return nil, &unreached{fmt.Errorf("its key is pin:%s, which no rule of the call has", rule.PinOf(sum[:]))}
	}
	return conn, nil
}

// unreached says that the host never saw a request.
type unreached struct{ err error }

func (e *unreached) Error() string { return "the host can't be reached: " + e.err.Error() }
func (e *unreached) Unwrap() error { return e.err }

// host says whether a request's host is the connection's.
func (l *link) host(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = text, "443" // RFC 9110 §4.2.2
	}
	return strings.EqualFold(host, l.to.Host) && cmp.Or(port, "443") == strconv.Itoa(int(l.to.Port))
}

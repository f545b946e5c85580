package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"palyra/internal/fault"
)

// Listener is a listener to serve on. The kind of its address decides how callers
// authenticate: peers of a unix socket by the kernel's word, others by token.
type Listener struct {
	net.Listener
	// TLS, if not nil, is put on every connection. It must ask for TLS 1.3.
	TLS *tls.Config
	// Devices says that callers authenticate with the certificate that their connection showed, and
	// with nothing else. TLS must ask for one and verify it; see package peer.
	Devices bool
	// Names are further values that the Host header may have, "host:port" or
	// "host" as clients say it. TCP only; its own address has its names.
	Names []string
}

// Serve answers on all listeners until ctx is done, then lets requests finish
// for Limits.Drain, cuts off tapes, and returns when everything has ended. It
// closes the listeners. A listener that is closed meanwhile ends it with an error.
func (s *Server) Serve(ctx context.Context, on ...Listener) error {
	// Requests live on while the server drains; the hub's calls end with base.
	base, cancelWith := context.WithCancelCause(context.WithoutCancel(ctx))
	cancel := func() { cancelWith(errEnds) }
	defer cancel()
	var protocols http.Protocols
	protocols.SetHTTP1(true) // HTTP/2 would add a parser, and streams cannot leave it
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.lim.HeaderTime,
		ReadTimeout:       s.lim.BodyTime,
		IdleTimeout:       s.lim.Idle,
		MaxHeaderBytes:    s.lim.Header - headerSlop,
		Protocols:         &protocols,
		ConnContext:       connContext,
		ConnState:         connState,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          log.New(lines{s.log}, "", 0),
	}
	var wg sync.WaitGroup
	stopStreams := make(chan struct{})
	endStreams := s.streams.begin(base)
	wg.Go(func() { s.streams.run(endStreams, stopStreams) })
	held, endHeld := context.WithCancel(base)
	defer endHeld()
	if s.cfg.MCP != nil {
		wg.Go(s.cfg.MCP.Begin(held))
	}
	if s.cfg.OpenAI != nil {
		wg.Go(s.cfg.OpenAI.Begin(held))
	}
	broken := make(chan error, len(on))
	for _, l := range on {
		_, tcp := l.Addr().(*net.TCPAddr)
		accepts, err := listenUnix(l.Listener, s.owner, s.lim.Write)
		if err != nil {
			l.Close()
			broken <- fault.New(fault.Unavailable, "resource_exhausted", "serve "+l.Addr().String(), err)
			continue
		}
		gl := newListener(accepts, s.rooms, s.lim.Write)
		gl.role, gl.unix, gl.failed = s.cfg.Role, l.Addr().Network() == "unix", s.notAccepted
		gl.devices = l.Devices
		if tcp && !l.Devices { // no browser has a device's certificate, so no page comes here
			gl.names = hostNames(l.Addr(), l.Names)
		}
		var nl net.Listener = gl
		if l.TLS != nil {
			c := l.TLS.Clone()
			if c.NextProtos == nil {
				c.NextProtos = []string{"http/1.1"}
			}
			nl = tls.NewListener(gl, c)
		}
		wg.Go(func() {
			if err := hs.Serve(nl); !errors.Is(err, http.ErrServerClosed) {
				broken <- fault.New(fault.Unavailable, "connection_lost", "serve "+l.Addr().String(), err)
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
	}
	// Tapes end first: draining doesn't wait for their readers, who come back elsewhere.
	close(stopStreams)
	drain, stop := context.WithTimeout(base, s.lim.Drain)
	defer stop()
	if e := hs.Shutdown(drain); e != nil {
		s.log.Warn("requests under way are cut off", "after", s.lim.Drain)
		cancel()
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), lastWait)
		_ = hs.Shutdown(last) // handlers end soon after their context
		stop()
		_ = hs.Close()
	}
	endHeld()
	wg.Wait()
	s.rooms.unread.end()
	return err
}

// errEnds is why requests end that the client didn't end.
var errEnds = fault.New(fault.Unavailable, "not_ready", "serve", errors.New("the server ends"))

// owner reports whether a user of this machine is an owner.
func (s *Server) owner(uid uint32) bool {
	return s.cfg.Role != nil && s.cfg.Role(uid) == roleOwner
}

// notAccepted logs why a connection was not accepted.
func (s *Server) notAccepted(err error) {
	if _, ok := s.noise.take("accept"); ok {
		s.log.Warn("connection not accepted", "error", err)
	}
}

// lastWait bounds the time of handlers after the end of their context.
const lastWait = 2 * time.Second

// lines turns the lines that net/http logs (of clients that break off) into records.
type lines struct{ log *slog.Logger }

// Write implements io.Writer.
func (l lines) Write(b []byte) (int, error) {
	l.log.Debug("http", "text", string(b))
	return len(b), nil
}

package egress

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/egress/inspect"
	"palyra/isolate/evidence"
)

// early is a connection to a call's one inspected host that palyra-egress makes while the cell is
// built and the program starts. The program's first request finds it there, or waits for it. It is
// the call's as any other: to an address that was checked, within the call's time, and in its
// evidence although the program never asked.
type early struct {
	host  string
	port  uint16
	began time.Time
	taken atomic.Bool // by a connection of the program's, or by end

	done chan struct{}  // closed when what follows is set
	made *inspect.Early // nil: there is none
	conn *hostConn      // below made
	addr string
}

// newEarly returns nil where an order has no such connection.
func newEarly(o *Order, in rule.Inspection) *early {
	if !o.Early || in.Empty() {
		return nil
	}
	e := &early{done: make(chan struct{})}
	for i, r := range in.Hosts() {
		name, below := r.Name()
		if below || i > 0 && (name != e.host || r.Port() != e.port) {
			return nil
		}
		e.host, e.port = name, r.Port()
	}
	return e
}

// beginEarly makes the connection. s.ctx ends it.
func (s *session) beginEarly() {
	e := s.early
	if e == nil {
		return
	}
	e.began = time.Now()
	s.wg.Go(func() {
		defer close(e.done)
		n, err := s.find(e.host)
		if err != nil || !slices.Contains(n.ports, e.port) {
			return
		}
		file, err := s.srv.files.Take(s.owner, 1)
		if err != nil {
			return // the program's connection may wait
		}
		memory, err := s.srv.inspected.Take(s.owner, inspect.HostCost)
		if err != nil {
			file.Release()
			return
		}
		c := &hostConn{h: &hostConns{s: s, open: 1, flush: func() {}}, file: file, memory: memory}
		if c.TCPConn = e.dial(s, n, c); c.TCPConn == nil {
			return
		}
		if e.made, err = s.Connect(s.ctx, e.host, c); err != nil {
			e.made = nil // the program is told by its own
		}
		e.conn = c
	})
}

func (e *early) dial(s *session, n *name, c *hostConn) *net.TCPConn {
	conn, addr, _ := dial(s.ctx, n.addrs, e.port, s.srv.files, s.owner)
	if conn == nil {
		c.h.mu.Lock()
		defer c.h.mu.Unlock()
		c.leaveLocked()
		return nil
	}
	e.addr = addr.String()
	return conn
}

// early returns the connection that was made ahead, once.
func (h *hostConns) early(ctx context.Context) *inspect.Early {
	e := h.s.early
	if e == nil || e.host != h.host || e.port != h.port || e.taken.Load() {
		return nil
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return nil
	}
	if e.made == nil || e.taken.Swap(true) {
		return nil
	}
	e.conn.h = h // no one else has it
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open++
	if h.address == "" {
		h.address = e.addr
	}
	return e.made
}

// endEarly closes a connection that the program never took, and notes that it was there. Nothing
// else of the call is left.
func (s *session) endEarly() {
	e := s.early
	if e == nil || e.made == nil || e.taken.Swap(true) {
		return
	}
	e.conn.Close()
	version, key := e.made.Seen()
	s.noted(s.note(e.host, e.port), evidence.Connection{Address: e.addr, Outcome: evidence.ConnEnded, DurationNS: int64(time.Since(e.began)), TLS: version, Key: key})
}

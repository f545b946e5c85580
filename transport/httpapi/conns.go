package httpapi

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

// peer is who is at the other end of a connection, as the host says. Immutable
// after accept.
type peer struct {
	unix    bool
	key     string // what limits count by: "uid:1000" or an address
	uid     uint32 // of a unix peer, if err is nil
	pid     int32
	err     error    // why uid is not known
	address string   // for the log; "" of a unix peer
	names   []string // that a Host header may have; nil: any
}

func (p *peer) surface() string {
	if p.unix {
		return "unix"
	}
	return "http"
}

type peerKey struct{}

// nobody is the peer of a request that did not come through Serve: it can
// authenticate with a token only.
func nobody() *peer { return &peer{key: "unknown"} }

// peerOf returns who is at the other end.
func peerOf(r *http.Request) *peer {
	if p, ok := r.Context().Value(peerKey{}).(*peer); ok {
		return p
	}
	return nobody()
}

// gate counts connections, over all listeners and by peer.
type gate struct {
	total, each int
	refused     atomic.Uint64

	mu    sync.Mutex
	n     int            // guarded by mu
	peers map[string]int // guarded by mu
}

func newGate(total, each int) *gate {
	return &gate{total: total, each: each, peers: make(map[string]int)}
}

func (g *gate) enter(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n >= g.total || g.peers[key] >= g.each {
		g.refused.Add(1)
		return false
	}
	g.n++
	g.peers[key]++
	return true
}

func (g *gate) leave(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.peers[key]--; g.peers[key] == 0 {
		delete(g.peers, key)
	}
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// listener accepts connections that the gate lets in and finds out who they are.
type listener struct {
	net.Listener
	gate  *gate
	unix  bool
	names []string
}

// Accept returns the next connection that has a place. One that has not is
// closed: it cost nothing but the accept, and an answer would have to be
// written to somebody who may not read.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p := &peer{unix: l.unix, names: l.names}
		if l.unix {
			p.uid, p.pid, p.err = peerCredentials(c)
			p.key = "uid:" + strconv.FormatUint(uint64(p.uid), 10)
			if p.err != nil {
				p.key = "unknown"
			}
		} else {
			p.address = c.RemoteAddr().String()
			p.key = p.address
			if host, _, err := net.SplitHostPort(p.address); err == nil {
				p.key = host
			}
		}
		if l.gate.enter(p.key) {
			return &conn{Conn: c, peer: p, gate: l.gate}, nil
		}
		_ = c.Close()
	}
}

// conn gives its place back when it is closed, also after a hijack.
type conn struct {
	net.Conn
	peer *peer
	gate *gate
	once sync.Once
}

// Close closes the connection.
func (c *conn) Close() error {
	c.once.Do(func() { c.gate.leave(c.peer.key) })
	return c.Conn.Close()
}

// connContext gives requests the peer of their connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	for {
		switch v := c.(type) {
		case *conn:
			return context.WithValue(ctx, peerKey{}, v.peer)
		case interface{ NetConn() net.Conn }: // tls.Conn
			c = v.NetConn()
		default:
			return ctx
		}
	}
}

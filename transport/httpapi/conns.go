package httpapi

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// peer is the other end of a connection, as the host says. Immutable after accept.
type peer struct {
	unix     bool
	loopback bool   // a TCP peer on this host, which chooses its address
	key      string // what limits count by: "uid:1000" or a network
	uid      uint32 // of a unix peer, if err is nil
	pid      int32
	err      error    // why uid is not known
	address  string   // for the log; "" of a unix peer
	names    []string // that a Host header may have; nil: any
	devices  bool     // it authenticates with the certificate of its connection
}

func (p *peer) surface() string {
	if p.unix {
		return "unix"
	}
	return "http"
}

// nobody returns the peer of a request that didn't come through Serve, which can only
// authenticate with a token.
func nobody() *peer { return &peer{key: "unknown"} }

// newPeer finds out who connected.
func newPeer(c net.Conn, unix bool, names []string) *peer {
	p := &peer{unix: unix, names: names, key: "unknown"}
	if unix {
		if p.uid, p.pid, p.err = peerCredentials(c); p.err == nil {
			p.key = "uid:" + strconv.FormatUint(uint64(p.uid), 10)
		}
		return p
	}
	p.address = c.RemoteAddr().String()
	if at, err := netip.ParseAddrPort(p.address); err == nil {
		p.key, p.loopback = network(at.Addr())
	}
	return p
}

// network returns the prefix that counts as one peer: all of loopback, where a client
// chooses its address, and an IPv6 /64, which one host is given.
func network(a netip.Addr) (key string, loopback bool) {
	a = a.Unmap().WithZone("")
	switch {
	case a.IsLoopback():
		return "loopback", true
	case a.Is6():
		p, _ := a.Prefix(64) // an IPv6 address has 128 bits
		return p.String(), false
	}
	return a.String(), false
}

type connKey struct{}

// connOf returns the connection of a request, nil if it did not come through Serve.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// peerOf returns the peer of a request.
func peerOf(r *http.Request) *peer {
	if c := connOf(r); c != nil {
		return c.peer
	}
	return nobody()
}

// rooms are the places for connections. A connection is a guest until it authenticates, and
// then a member's. A guest always finds a place: it takes that of the oldest guest, one of
// the same peer if there is any. So guests lock out no other guest, however many there are,
// and never a member. A member's connection finds a place as long as its principal's
// working connections are within its share: idle ones give way.
type rooms struct {
	evicted, refused atomic.Uint64

	mu      sync.Mutex
	unix    room // guarded by mu; guests of the unix socket
	tcp     room // guarded by mu; guests of TCP listeners
	devices room // guarded by mu; guests of listeners for devices, which strangers may reach
	members room // guarded by mu

	pins map[string]int // connections that are kept for a principal's stops; guarded by mu

	unread unread
}

// The stops of one principal, and of all, that keep a guest's place.
const (
	pinsEach = 4
	pinsPart = 2 // of the places of one peer's guests
)

// room has the places of one kind.
type room struct {
	pool   *budget.Pool
	guests bool      // one at work gives way, too
	conns  list.List // of *conn; the one that gives way first is in front
}

func newRooms(l Limits) *rooms {
	guests := func() *budget.Pool {
		return budget.New(budget.Limits{Name: "connections", Total: int64(l.Guests), Each: int64(l.GuestsPerPeer)})
	}
	return &rooms{
		pins: make(map[string]int), unread: unread{count: make(map[budget.Owner]int)},
		unix: room{pool: guests(), guests: true},
		tcp:  room{pool: guests(), guests: true},

		devices: room{pool: guests(), guests: true},
		members: room{pool: budget.New(budget.Limits{Name: "connections", Total: int64(l.Conns), Each: int64(l.ConnsPerCaller),
			Reserve: int64(l.Conns / ownersPart)})},
	}
}

// ownersPart is the part of the members' places that only owners at the socket have.
const ownersPart = 8

// count returns how many connections there are.
func (rs *rooms) count() int64 {
	return rs.unix.pool.Held() + rs.tcp.pool.Held() + rs.devices.pool.Held() + rs.members.pool.Held()
}

// enter gives a new connection its place: that of a member if role is not "",
// and there is one, or that of a guest.
func (rs *rooms) enter(c *conn, role string) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if role != "" && rs.place(&rs.members, c, c.ownerLocked(c.peer.key, role)) == nil {
		return true
	}
	guests := &rs.tcp
	switch {
	case c.peer.unix:
		guests = &rs.unix
	case c.peer.devices:
		guests = &rs.devices
	}
	if rs.place(guests, c, budget.Owner{Name: c.peer.key}) == nil {
		return true
	}
	rs.refused.Add(1)
	return false
}

// promote makes a guest's connection one of a principal, or returns
// fault.Unavailable "too_many" and leaves it a guest's.
func (rs *rooms) promote(c *conn, principal, role string) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if c.room == nil || c.room == &rs.members {
		return nil // it is gone, as its reader will find out, or a member's already
	}
	from, at, hold := c.room, c.at, c.hold
	if err := rs.place(&rs.members, c, c.ownerLocked(principal, role)); err != nil {
		rs.refused.Add(1)
		return err
	}
	from.conns.Remove(at)
	hold.Release()
	return nil
}

// pin keeps a guest's connection until it is closed: the emergency stop answers on it. A
// principal that begins many stops and ends none keeps only a few connections; its others
// give way like any guest's.
func (rs *rooms) pin(c *conn, principal string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	all := 0
	for _, n := range rs.pins {
		all += n
	}
	if c.room == nil || c.pinned != "" || rs.pins[principal] >= pinsEach || all >= max(1, int(rs.tcp.pool.Limits().Each)/pinsPart) {
		return
	}
	c.pinned = principal
	rs.pins[principal]++
}

// guest reports whether c is still unauthenticated.
func (rs *rooms) guest(c *conn) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return c.room != &rs.members
}

// use notes whether a connection is at work.
func (rs *rooms) use(c *conn, busy bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	c.busy = busy
	if c.room == &rs.members {
		c.room.conns.MoveToBack(c.at)
	}
}

// relieve closes a connection to get its descriptor or watch, and reports whether it found one
// to close. For a watch no owner's is closed: it may have none, and bring a stop.
func (rs *rooms) relieve(watch bool) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.unread.drop() {
		return true
	}
	for _, r := range []*room{&rs.devices, &rs.tcp, &rs.unix, &rs.members} {
		if _, v := r.victim(budget.Owner{Reserve: !watch}); v != nil { // no connection is of this owner
			rs.evict(v)
			return true
		}
	}
	return false
}

// of notes whose device's a connection is, and reports whether it knew.
func (rs *rooms) of(c *conn, device string) (knew bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	knew = c.device == device
	c.device = device
	return knew
}

// cut closes the connections of a device, at work or not.
func (rs *rooms) cut(device string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range []*room{&rs.devices, &rs.members} {
		for e := r.conns.Front(); e != nil; {
			v := e.Value.(*conn)
			e = e.Next() // evict takes v out
			if v.device == device {
				rs.evict(v)
			}
		}
	}
}

// leave takes a connection out, and returns whose it was.
func (rs *rooms) leave(c *conn) budget.Owner {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.leaveLocked(c)
	return c.owner
}

func (rs *rooms) leaveLocked(c *conn) {
	if c.room != nil {
		c.room.conns.Remove(c.at)
		c.hold.Release()
		c.room = nil
		if rs.pins[c.pinned]--; rs.pins[c.pinned] <= 0 {
			delete(rs.pins, c.pinned)
		}
	}
}

func (rs *rooms) evict(v *conn) {
	rs.evicted.Add(1)
	rs.leaveLocked(v)
	_ = v.shut(v.owner) // its server finds out; closing doesn't wait
}

// place takes a place for c, if need be another connection's. rs.mu is held.
func (rs *rooms) place(r *room, c *conn, o budget.Owner) error {
	if err := rs.unread.full(budget.Owner{Name: c.peer.key, Reserve: o.Reserve}); err != nil {
		return err
	}
	for {
		hold, err := r.pool.Take(o, 1)
		if err == nil {
			c.room, c.hold, c.owner, c.at = r, hold, o, r.conns.PushBack(c)
			return nil
		}
		own, other := r.victim(o)
		switch {
		case own != nil:
			rs.evict(own)
		case other != nil:
			rs.evict(other)
		default:
			return err
		}
	}
}

// victim returns the connections that would give way to one of o: the first of o's own and,
// if that would help, the first of any other owner.
func (r *room) victim(o budget.Owner) (own, other *conn) {
	var n int64
	for e := r.conns.Front(); e != nil; e = e.Next() {
		v := e.Value.(*conn)
		mine := v.owner == o
		if mine {
			n++
		}
		switch {
		case v.pinned != "" || v.busy && !r.guests:
		case mine:
			return v, other
		case other == nil && (o.Reserve || !v.owner.Reserve):
			other = v
		}
	}
	if n >= r.pool.Limits().Each { // its share is full, and it is at work with all of it
		return nil, nil
	}
	return nil, other
}

// listener accepts connections and gives them their places.
type listener struct {
	net.Listener
	rooms *rooms
	role  func(uid uint32) string // nil: no user is known
	unix  bool
	names []string

	devices bool // its clients are

	patience time.Duration // with a client that doesn't read
	failed   func(error)   // notes an error of Accept; nil: not noted
	pause    time.Duration // the last one after an error; owned by Accept

	once   sync.Once
	closed chan struct{}
}

func newListener(l net.Listener, rs *rooms, patience time.Duration) *listener {
	return &listener{Listener: l, rooms: rs, patience: patience, closed: make(chan struct{})}
}

// dropped is the error of a connection that was taken out of the queue and closed. The next
// one may be the owner's, so Accept doesn't rest.
type dropped struct{ error }

func (d dropped) Unwrap() error { return d.error }

// Accept returns the next connection that has a place. It closes one that has none: that
// cost nothing but the accept, and the peer might not read an answer. Without descriptors or
// epoll's watches a connection that gives way makes room. Only the listener's end ends it:
// after any other error it tries again, later and later.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			if l.failed != nil {
				l.failed(err)
			}
			// One that was dropped got nothing, so none gives way for it: others would be
			// emptied of all theirs by as many tries.
			if _, next := errors.AsType[dropped](err); !next && !(short(err) && l.rooms.relieve(errors.Is(err, syscall.ENOSPC))) && !l.rest() {
				return nil, net.ErrClosed
			}
			continue
		}
		l.pause = 0
		bound(nc, l.patience)
		c := &conn{Conn: nc, peer: newPeer(nc, l.unix, l.names), rooms: l.rooms}
		c.peer.devices = l.devices
		role := ""
		if l.unix && c.peer.err == nil && l.role != nil {
			role = l.role(c.peer.uid)
		}
		if l.rooms.enter(c, role) {
			return c, nil
		}
		_ = nc.Close()
	}
}

// short reports whether an error says that descriptors or watches are used up.
func short(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOSPC)
}

// The pauses after errors of Accept, as net/http has them.
const (
	pauseFirst = 5 * time.Millisecond
	pauseMost  = time.Second
)

// rest waits, and reports whether the listener is still open.
func (l *listener) rest() bool {
	l.pause = min(max(2*l.pause, pauseFirst), pauseMost)
	t := time.NewTimer(l.pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.closed:
		return false
	}
}

// Close closes the listener and ends Accept.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// conn gives its place back when it is closed, also after a hijack.
type conn struct {
	net.Conn
	peer  *peer
	rooms *rooms

	// Guarded by rooms.mu.
	room   *room // nil: it has no place any more
	at     *list.Element
	hold   *budget.Hold
	owner  budget.Owner
	busy   bool   // there is a request, or a tape
	pinned string // principal whose stop it is; "": it gives way
	device string // that it authenticated as; "": none yet

	closed  atomic.Bool
	answers atomic.Bool // a handler has the request, and writes the answer
}

// tooLarge is net/http's answer to a header beyond Limits.Header, which it writes by itself,
// and headerProblem what the client gets in its stead.
const tooLarge = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n431 Request Header Fields Too Large"

var headerProblem = sync.OnceValue(func() []byte {
	p := api.ProblemOf(fault.New(fault.Usage, "too_large", "read header", errors.New("it is longer than this server takes")).
		WithHint("send fewer or shorter header fields"), "", false)
	p.Status = http.StatusRequestHeaderFieldsTooLarge
	b, err := encode(p)
	if err != nil {
		panic("httpapi: internal error: " + err.Error())
	}
	return fmt.Appendf(nil, "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", api.MediaProblem, len(b), b)
})

// unixPart bounds one write to a unix socket. The kernel keeps up to 3776 bytes of a write in
// memory of their own (SKB_MAX_HEAD(0), linux/skbuff.h; 3328 with the largest
// CONFIG_MAX_SKB_FRAGS) and the rest in pages. A client that splices one byte of such a page
// elsewhere keeps the whole, charged to this process's cgroup, and SIOCOUTQ says 0. Spliced
// memory that isn't in pages is copied first.
const unixPart = 3 << 10

// Write writes b, to a unix socket in parts. There is no ReadFrom: sendfile and splice would
// hand out pages.
func (c *conn) Write(b []byte) (n int, err error) {
	if string(b) == tooLarge && !c.answers.Load() {
		if _, err := c.write(headerProblem()); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.write(b)
}

// write is Write without a look at what is written.
func (c *conn) write(b []byte) (n int, err error) {
	if !c.peer.unix {
		return c.Conn.Write(b)
	}
	for {
		part := b[n:min(len(b), n+unixPart)]
		m, err := c.Conn.Write(part)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

// What CloseWrite takes off the client.
const (
	restMost = 256 << 10
	restTime = 500 * time.Millisecond
)

// CloseWrite ends the answer. net/http calls it when it closes a connection of which it hasn't
// read all. The rest is read and dropped, within bounds: a socket that is closed with unread
// bytes resets the connection, and a client that still writes may never read the answer.
func (c *conn) CloseWrite() error {
	var err error
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		err = w.CloseWrite()
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(restTime))
	_, _ = io.CopyN(io.Discard, c.Conn, restMost)
	return err
}

// ownerLocked returns a principal as the members' room counts it. The reserve is for owners
// that the kernel has named.
func (c *conn) ownerLocked(principal, role string) budget.Owner {
	return budget.Owner{Name: principal, Reserve: c.peer.unix && role == roleOwner && principal == c.peer.key}
}

// roleOwner is the role of hub.Caller that has the reserve.
const roleOwner = "owner"

// Close closes the connection.
func (c *conn) Close() error {
	return c.shut(c.rooms.leave(c))
}

func (c *conn) shut(o budget.Owner) error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	return c.rooms.unread.shut(c.Conn, budget.Owner{Name: c.peer.key, Reserve: o.Reserve})
}

// beneath returns the conn that net/http has, maybe within TLS; nil: it is none.
func beneath(c net.Conn) *conn {
	for {
		switch v := c.(type) {
		case *conn:
			return v
		case interface{ NetConn() net.Conn }: // tls.Conn
			c = v.NetConn()
		default:
			return nil
		}
	}
}

// connContext gives requests their connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if v := beneath(c); v != nil {
		return context.WithValue(ctx, connKey{}, v)
	}
	return ctx
}

// connState notes which connections are at work.
func connState(c net.Conn, s http.ConnState) {
	if v := beneath(c); v != nil && (s == http.StateActive || s == http.StateIdle) {
		v.rooms.use(v, s == http.StateActive)
		v.answers.Store(false) // of the next request not even the header was read
	}
}

// identify gives the connection of a request to its authenticated caller. Without a place
// for it the server serves only the brake, and then closes the connection.
func (s *Server) identify(x *exchange) error {
	c := connOf(x.r)
	if c == nil || x.caller.Role == "" { // who is no member remains a guest
		return nil
	}
	err := s.rooms.promote(c, x.caller.User, x.caller.Role)
	switch {
	case err == nil:
		x.w.Header().Del("Connection")
	case x.rt.Brake:
		s.rooms.pin(c, x.caller.User)
		return nil
	default:
		x.w.Header().Set("Retry-After", "1")
		err = fault.New(fault.Unavailable, "too_many", "serve connection", err).WithHint("close connections that wait, or wait until a call or a tape has ended")
	}
	return err
}

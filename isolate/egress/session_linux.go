package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	rule "palyra/call/egress"
	"palyra/call/egress/reach"
	"palyra/internal/budget"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/hello"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// session is one call. Its goroutines are counted in wg and end with ctx.
type session struct {
	srv    *server
	owner  budget.Owner
	rules  rule.Rules
	limits wire.Limits
	ctx    context.Context // run's
	wg     sync.WaitGroup

	sentLeft, receivedLeft atomic.Int64
	sent, received         atomic.Int64
	queries                atomic.Int64
	waiting                chan struct{} // one for each DNS query that waits for a lookup
	looking                chan struct{} // one for each lookup under way

	mu      sync.Mutex
	ended   bool             // nothing is opened any more
	names   map[string]*name // by canonical name
	lookups int
	next4   netip.Addr // of the next name
	free    handover.Sockets
	files   *budget.Hold // for the cell's sockets
	open    int          // connections, of the program's to us
	made    int64
	closers map[io.Closer]struct{} // listening sockets, and connections that aren't relayed yet
	ev      evidence.Egress
	denied  map[deniedKey]int // index in ev.Denied
}

type deniedKey struct {
	host string
	port uint32
	why  string
}

func newSession(srv *server, o *Order, rules rule.Rules) *session {
	s := &session{srv: srv, owner: budget.Owner{Name: o.Owner, Reserve: o.Reserve}, rules: rules, limits: o.Limits, names: make(map[string]*name), next4: netip.MustParseAddr(handover.Names4).Next(),
		closers: make(map[io.Closer]struct{}), denied: make(map[deniedKey]int), waiting: make(chan struct{}, 64),
		looking: make(chan struct{}, srv.share)}
	s.sentLeft.Store(o.Limits.Sent)
	s.receivedLeft.Store(o.Limits.Received)
	s.ev.Basis = evidence.Reported
	return s
}

// run serves the call until ctx is done, and returns what it counted. Nothing of the call is open
// then, and nothing runs for it.
func (s *session) run(ctx context.Context, cell *os.File) *evidence.Egress {
	s.ctx = ctx
	if err := s.begin(cell); err != nil {
		if ctx.Err() == nil {
			s.srv.cfg.logf("a cell was refused: %v", err)
		}
		s.close()
		<-ctx.Done()
	}
	<-ctx.Done()
	s.close()
	s.wg.Wait()
	s.files.Release()
	s.ev.Sent, s.ev.Received, s.ev.Queries = s.sent.Load(), s.received.Load(), s.queries.Load()
	return &s.ev
}

// begin takes the cell's sockets, binds what is there from the start, and lets the cell go on.
func (s *session) begin(cell *os.File) error {
	defer cell.Close()
	got, err := handover.Receive(s.ctx, cell)
	if err != nil {
		if s.ctx.Err() == nil && !errors.Is(err, io.EOF) {
			handover.Refuse(cell, "cell_protocol")
		}
		return err
	}
	s.mu.Lock()
	s.free = *got
	s.mu.Unlock()
	n := 1 + len(got.TCP4) + len(got.TCP6)
	if s.files, err = s.srv.files.Take(s.owner, int64(n)); err != nil {
		handover.Refuse(cell, "budget_egress")
		return fmt.Errorf("%d descriptors: %w", n, err)
	}
	if err := s.serveAll(); err != nil {
		handover.Refuse(cell, "cell_protocol")
		return err
	}
	return handover.Ready(cell)
}

// serveAll binds the resolver and the literals of the rules.
func (s *session) serveAll() error {
	at := netip.AddrPortFrom(netip.MustParseAddr(handover.Resolver), handover.ResolverPort)
	udp, err := s.bindUDP(at)
	if err != nil {
		return err
	}
	s.wg.Go(func() { s.resolveUDP(udp) })
	if err := s.listen(at, handover.Resolver, s.resolveTCP); err != nil {
		return err
	}
	proxy := netip.MustParseAddr(handover.Proxy)
	if err := s.listen(netip.AddrPortFrom(proxy, handover.HTTPPort), handover.Proxy, s.serveHTTP); err != nil {
		return err
	}
	if err := s.listen(netip.AddrPortFrom(proxy, handover.SOCKSPort), handover.Proxy, s.serveSOCKS); err != nil {
		return err
	}
	for _, a := range s.rules.Addresses() {
		for _, port := range s.rules.NetworkPorts(a) {
			if err := reach.Permit(a, port, s.rules); err != nil {
				s.deny(a.String(), port, evidence.DenyForbidden)
				continue
			}
			host, addrs := a.String(), []netip.Addr{a}
			err := s.listen(netip.AddrPortFrom(a, port), host, func(c *net.TCPConn) { s.connect(c, host, port, addrs, nil) })
			if errors.Is(err, errNoSocket) && a.Is6() {
				continue // no IPv6 in this cell
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// close closes all that is open. Relays end with ctx.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.free.Close()
	s.free = handover.Sockets{}
	for c := range s.closers {
		c.Close()
	}
	clear(s.closers)
}

// own makes a closer end with the session.
func (s *session) own(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		c.Close()
		return false
	}
	s.closers[c] = struct{}{}
	return true
}

func (s *session) disown(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.closers, c)
}

var (
	errNoSocket = errors.New("the cell's sockets are used up")
	errEnded    = errors.New("the call has ended")
)

// bindUDP binds the cell's one UDP socket.
func (s *session) bindUDP(at netip.AddrPort) (*net.UDPConn, error) {
	s.mu.Lock()
	f := s.free.UDP
	s.free.UDP = nil
	s.mu.Unlock()
	if f == nil {
		return nil, errNoSocket
	}
	defer f.Close()
	if err := onSocket(f, func(fd int) error { return bind(fd, at) }); err != nil {
		return nil, err
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	if !s.own(c) {
		return nil, errEnded
	}
	return c.(*net.UDPConn), nil
}

// listen listens at an address of the cell, which stands for host, and gives each connection to
// serve, which takes it over, in a goroutine.
func (s *session) listen(at netip.AddrPort, host string, serve func(*net.TCPConn)) error {
	s.mu.Lock()
	free := &s.free.TCP4
	if at.Addr().Is6() {
		free = &s.free.TCP6
	}
	if len(*free) == 0 {
		ended := s.ended
		s.mu.Unlock()
		if ended {
			return errEnded
		}
		return errNoSocket
	}
	f := (*free)[0]
	*free = (*free)[1:]
	s.mu.Unlock()
	if err := onSocket(f, func(fd int) error { return bind(fd, at) }); err != nil {
		if !errors.Is(err, syscall.EADDRINUSE) || !s.returned(free, f) {
			f.Close()
		}
		return err
	}
	defer f.Close()
	if err := onSocket(f, func(fd int) error { return os.NewSyscallError("listen", syscall.Listen(fd, backlog)) }); err != nil {
		return err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	if !s.own(l) {
		return errEnded
	}
	s.wg.Go(func() { s.accept(l.(*net.TCPListener), host, at.Port(), serve) })
	return nil
}

const backlog = 128

// returned puts a socket that isn't bound back among the free ones.
func (s *session) returned(free *[]*os.File, f *os.File) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		*free = append(*free, f)
	}
	return !s.ended
}

// accept gives each connection to serve until the listener is closed.
func (s *session) accept(l *net.TCPListener, host string, port uint16, serve func(*net.TCPConn)) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			leave := s.enter(host, port)
			if leave == nil {
				breakOff(c)
				continue
			}
			s.wg.Go(func() {
				defer leave()
				serve(c)
			})
		case errors.Is(err, net.ErrClosed):
			return
		default:
			s.pause(50 * time.Millisecond) // out of descriptors: the connection waits in the backlog
		}
	}
}

func (s *session) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// perConnection is how many descriptors a connection takes. Further ones that are tried at the same
// time are counted by dial.
const perConnection = 2

// enter counts a connection of the program's until leave is called, or notes that there is no room
// for it and returns nil.
func (s *session) enter(host string, port uint16) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	if s.open >= s.limits.Open || s.made >= s.limits.Connections {
		s.denyLocked(host, port, evidence.DenyLimit)
		return nil
	}
	open, err := s.srv.open.Take(s.owner, 1)
	if err != nil {
		s.denyLocked(host, port, evidence.DenyOverload)
		return nil
	}
	files, err := s.srv.files.Take(s.owner, perConnection)
	if err != nil {
		open.Release()
		s.denyLocked(host, port, evidence.DenyOverload)
		return nil
	}
	s.open++
	s.made++
	return func() {
		files.Release()
		open.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}
}

func onSocket(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(cerr, err)
}

func bind(fd int, at netip.AddrPort) error {
	var to syscall.Sockaddr
	if a := at.Addr(); a.Is4() {
		to = &syscall.SockaddrInet4{Port: int(at.Port()), Addr: a.As4()}
	} else {
		to = &syscall.SockaddrInet6{Port: int(at.Port()), Addr: a.As16()}
	}
	if err := syscall.Bind(fd, to); err != nil {
		return fmt.Errorf("bind %s: %w", at, err)
	}
	return nil
}

// deny notes what the program asked for and didn't get.
func (s *session) deny(host string, port uint16, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denyLocked(host, port, why)
}

func (s *session) denyLocked(host string, port uint16, why string) {
	key := deniedKey{wire.Plain(host), uint32(port), why}
	if i, ok := s.denied[key]; ok {
		s.ev.Denied[i].Times++
		return
	}
	if len(s.ev.Denied) == evidence.MaxDenied {
		s.ev.MoreDenied++
		return
	}
	s.denied[key] = len(s.ev.Denied)
	s.ev.Denied = append(s.ev.Denied, evidence.Denial{Host: key.host, Port: key.port, Why: why, Times: 1})
}

// name is a name that the program asked for, and that a rule has. The addresses are pinned: they are
// those of the one lookup for as long as the call lasts.
type name struct {
	host string
	done chan struct{} // closed when it was looked up; what follows is set before

	err   error
	addrs []netip.Addr
	ports []uint16 // those of the rules for which all addresses are permitted

	placing sync.Mutex
	placed  bool
	inside  []netip.Addr // its addresses in the cell
	problem error        // why it has none
}

// find returns a name when it was looked up, for the first asker and for all others.
func (s *session) find(host string) (*name, error) {
	s.mu.Lock()
	n := s.names[host]
	if n == nil {
		if s.ended || s.lookups >= s.limits.Names {
			if !s.ended {
				s.denyLocked(host, 0, evidence.DenyLimit)
			}
			s.mu.Unlock()
			return nil, errNames
		}
		s.lookups++
		n = &name{host: host, done: make(chan struct{})}
		s.names[host] = n
		s.wg.Go(func() { s.lookUp(n) }) // the asker is counted in wg itself
	}
	s.mu.Unlock()
	select {
	case <-n.done:
		return n, n.err
	case <-s.ctx.Done():
		return nil, errEnded
	}
}

var errNames = errors.New("the call has looked up as many names as it may")

func (s *session) lookUp(n *name) {
	defer close(n.done)
	addrs, err := s.addresses(n.host)
	if err != nil {
		n.err = err
		switch {
		case errors.Is(err, errNoName):
			s.deny(n.host, 0, evidence.DenyNoName)
		case s.ctx.Err() == nil:
			why := evidence.DenyNoAnswer
			if errors.Is(err, errBusy) {
				why = evidence.DenyOverload
			}
			s.deny(n.host, 0, why)
			s.mu.Lock()
			delete(s.names, n.host) // nothing is pinned, so it may be asked for again
			s.mu.Unlock()
		}
		return
	}
	for _, port := range s.rules.Ports(n.host) {
		if err := reach.PermitAll(addrs, port, s.rules); err != nil {
			s.deny(n.host, port, evidence.DenyForbidden)
			continue
		}
		n.ports = append(n.ports, port)
	}
	n.addrs = addrs[:min(len(addrs), mostPinned)]
}

var errBusy = errors.New("too many other names are being looked up")

// addresses asks the resolver when it's the call's turn.
func (s *session) addresses(host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(s.ctx, lookupTime)
	defer cancel()
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return nil, errBusy
	}
	hold, err := s.srv.lookups.Wait(ctx, s.owner, 1)
	if err != nil {
		return nil, errBusy
	}
	defer hold.Release()
	return s.srv.names.addresses(ctx, host)
}

// place gives a name its addresses in the cell, and listens there.
func (s *session) place(n *name) ([]netip.Addr, error) {
	n.placing.Lock()
	defer n.placing.Unlock()
	if !n.placed {
		n.placed = true
		n.inside, n.problem = s.newPlace(n)
	}
	return n.inside, n.problem
}

func (s *session) newPlace(n *name) ([]netip.Addr, error) {
	s.mu.Lock()
	a4 := s.next4
	s.next4 = a4.Next()
	s.mu.Unlock()
	a6 := insideOf(a4)
	var inside []netip.Addr
	var problem error
	for _, a := range []netip.Addr{a4, a6} {
		err := s.listenAll(a, n)
		if err == nil {
			inside = append(inside, a)
		} else if problem == nil {
			problem = err
		}
	}
	if len(inside) > 0 {
		return inside, nil // the cell has no IPv6, or the program has the port there
	}
	return nil, problem
}

// listenAll listens at one address of a name, on all of its ports.
func (s *session) listenAll(a netip.Addr, n *name) error {
	for _, port := range n.ports {
		serve := func(c *net.TCPConn) { s.connect(c, n.host, port, n.addrs, nil) }
		if err := s.listen(netip.AddrPortFrom(a, port), n.host, serve); err != nil {
			return err
		}
	}
	return nil
}

// insideOf returns the IPv6 address in the cell of the name at an IPv4 address.
func insideOf(a4 netip.Addr) netip.Addr {
	b := netip.MustParseAddr(handover.Names6).As16()
	four := a4.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

// greeting is what a proxy has besides a connection.
type greeting struct {
	early []byte                     // what the program has sent ahead
	say   func(outcome string) error // tells the program the outcome of the dial, "" for success
}

// connect connects the program's connection with one of the addresses, which are checked, and
// passes bytes until it ends. greet is nil but for a proxy.
func (s *session) connect(program *net.TCPConn, host string, port uint16, addrs []netip.Addr, greet *greeting) {
	began := time.Now()
	at := s.note(host, port)
	if !s.own(program) { // for the time of the dial
		s.noted(at, evidence.Connection{Outcome: evidence.ConnEnded, DurationNS: int64(time.Since(began))})
		return
	}
	conn, addr, outcome := dial(s.ctx, addrs, port, s.srv.files, s.owner)
	s.disown(program)
	c := evidence.Connection{Outcome: outcome}
	if conn != nil {
		c.Address = addr.String()
	}
	var err error
	if greet != nil {
		err = greet.say(outcome)
	}
	switch {
	case conn == nil && greet != nil:
		program.Close() // the greeting said so
	case conn == nil:
		breakOff(program)
	case err != nil:
		breakOff(program)
		breakOff(conn)
		c.Outcome = evidence.ConnReset
	default:
		var early []byte
		if greet != nil {
			early = greet.early
		}
		s.relay(program, conn, early, &c)
	}
	c.DurationNS = int64(time.Since(began))
	s.noted(at, c)
}

func (s *session) relay(program, conn *net.TCPConn, early []byte, c *evidence.Connection) {
	r, err := newRelay(program, conn, s.limits.Idle)
	if err != nil {
		breakOff(program)
		breakOff(conn)
		c.Outcome = evidence.ConnEnded
		return
	}
	r.early = early
	// What both sides say in the clear is noted as it passes, and decides nothing.
	r.sent.tap = tap(hello.MaxClient, func(b []byte) error {
		h, err := hello.ParseClient(b)
		c.ServerName = h.ServerName
		return err
	})
	r.received.tap = tap(hello.MaxServer, func(b []byte) error {
		h, err := hello.ParseServer(b)
		if err == nil {
			c.TLS = hello.VersionName(h.Version)
		}
		return err
	})
	r.sent.left, r.sent.total = &s.sentLeft, &s.sent
	r.received.left, r.received.total = &s.receivedLeft, &s.received
	c.Outcome = r.run(s.ctx)
	c.Sent, c.Received = r.sent.n.Load(), r.received.n.Load()
}

// mostParsed is how often the beginning of a direction is looked at: one who sends it byte by byte
// isn't followed.
const mostParsed = 64

// tap gives the beginning of a direction to parse until that has an answer.
func tap(most int, parse func([]byte) error) func([]byte) {
	var seen []byte
	times, over := 0, false
	return func(b []byte) {
		if over {
			return
		}
		seen = append(seen, b[:min(len(b), most-len(seen))]...)
		times++
		if err := parse(seen); !errors.Is(err, hello.ErrShort) || len(seen) == most || times == mostParsed {
			over, seen = true, nil
		}
	}
}

// note begins the record of a connection. It returns -1 if there is no room for one.
func (s *session) note(host string, port uint16) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ev.Connections) == evidence.MaxConnections {
		s.ev.More++
		return -1
	}
	s.ev.Connections = append(s.ev.Connections, evidence.Connection{Host: wire.Plain(host), Port: uint32(port)})
	return len(s.ev.Connections) - 1
}

// noted ends the record.
func (s *session) noted(at int, c evidence.Connection) {
	if at < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Host, c.Port = s.ev.Connections[at].Host, s.ev.Connections[at].Port
	s.ev.Connections[at] = c
}

// ttl is how long a program may keep an answer. The address stays the name's for the whole call.
const ttl = time.Minute

// resolveUDP answers queries until the socket is closed.
func (s *session) resolveUDP(c *net.UDPConn) {
	buf := make([]byte, dns.MaxQuery+1)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.pause(10 * time.Millisecond)
			continue
		}
		q, answer := s.query(buf[:n])
		if q == nil {
			if answer != nil {
				c.WriteToUDPAddrPort(answer, from)
			}
			continue
		}
		select {
		case s.waiting <- struct{}{}:
			s.wg.Go(func() {
				defer func() { <-s.waiting }()
				if answer := s.answer(q); answer != nil {
					c.WriteToUDPAddrPort(answer, from)
				}
			})
		default:
			c.WriteToUDPAddrPort(q.Failed("too many queries at once"), from)
		}
	}
}

// The bounds of a connection to the resolver.
const (
	streamIdle    = 10 * time.Second
	streamQueries = 64
)

// resolveTCP answers the queries of one connection, in their order.
func (s *session) resolveTCP(c *net.TCPConn) {
	defer c.Close()
	if !s.own(c) {
		return
	}
	defer s.disown(c)
	for range streamQueries {
		c.SetDeadline(time.Now().Add(streamIdle))
		packet, err := dns.ReadStream(c)
		if err != nil {
			return
		}
		q, answer := s.query(packet)
		if q != nil {
			answer = s.answer(q)
		}
		if answer == nil {
			return
		}
		c.SetDeadline(time.Now().Add(streamIdle))
		if _, err := c.Write(dns.Stream(answer)); err != nil {
			return
		}
	}
}

// query reads a query. If no lookup is needed for the answer, it returns that alone; nil for
// neither.
func (s *session) query(packet []byte) (*dns.Query, []byte) {
	q, err := dns.Parse(packet)
	if s.queries.Add(1) > s.limits.Queries {
		if err != nil {
			s.deny("query", 0, evidence.DenyLimit)
			return nil, nil
		}
		s.deny(q.Asked(), 0, evidence.DenyLimit)
		return nil, q.Failed("the call has sent as many queries as it may")
	}
	if err != nil {
		s.deny("query", 0, evidence.DenyMalformed)
		return nil, dns.Refusal(packet, err)
	}
	switch {
	case q.Type == typePTR:
		return nil, q.NoName("") // programs ask who is behind our own addresses
	case q.Name == "":
		s.deny(q.Asked(), 0, evidence.DenyMalformed)
		return nil, q.NoName("no rule can have this name")
	case len(s.rules.Ports(q.Name)) == 0:
		s.deny(q.Name, 0, evidence.DenyNotListed)
		return nil, q.NoName("no rule has this name")
	case slices.Contains(typesBeside, q.Type):
		return nil, q.Empty()
	case q.Type != dns.A && q.Type != dns.AAAA:
		s.deny(q.Name+" "+q.Type.String(), 0, evidence.DenyType)
		return nil, q.Empty()
	}
	return q, nil
}

// typePTR is a look-up of an address's name. typesBeside are those that clients ask for beside A and
// AAAA, of each name: SVCB and HTTPS, RFC 9460.
const typePTR = dns.Type(12)

var typesBeside = []dns.Type{64, 65}

// answer looks the name up, unless it was, and gives it addresses in the cell. It returns nil when the
// call has ended.
func (s *session) answer(q *dns.Query) []byte {
	n, err := s.find(q.Name)
	switch {
	case errors.Is(err, errEnded):
		return nil
	case errors.Is(err, errNoName):
		return q.NoName("")
	case errors.Is(err, errNames):
		return q.NoName(err.Error())
	case errors.Is(err, errBusy):
		return q.Failed(err.Error())
	case err != nil:
		return q.Failed("the name's servers don't answer")
	case len(n.ports) == 0:
		return q.NoName("it leads into a range that no rule names")
	}
	inside, err := s.place(n)
	switch {
	case errors.Is(err, errEnded):
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		s.deny(q.Name, 0, evidence.DenyInUse)
		return q.Failed("the program itself listens on the port at all addresses")
	case err != nil:
		s.deny(q.Name, 0, evidence.DenyLimit)
		return q.Failed("the call has as many names as it may")
	}
	return q.Addresses(inside, ttl)
}

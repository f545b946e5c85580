package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	rule "palyra/call/egress"
	"palyra/call/egress/reach"
	"palyra/internal/budget"
	"palyra/isolate/egress/handover"
	"palyra/isolate/egress/hello"
	"palyra/isolate/egress/inspect"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// session is one call. Its goroutines are counted in wg and end with ctx.
type session struct {
	srv      *server
	owner    budget.Owner
	rules    rule.Rules
	networks bool // names lead to networks of rules alone
	limits   wire.Limits
	ctx      context.Context // run's
	cancel   func()          // ends ctx
	guarded
	early *early // nil: none is made
	wg    sync.WaitGroup

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
	rate    pace                   // of connections
	asking  pace                   // of queries
	ruled   map[rule.Rule]*ruled   // the rules with bounds; immutable after newSession
	closers map[io.Closer]struct{} // listening sockets, and connections that aren't relayed yet
	ev      evidence.Egress
	denied  map[deniedKey]int // index in ev.Denied
}

type deniedKey struct {
	host string
	port uint32
	why  string
	what string // limit
}

func newSession(srv *server, o *Order, rules rule.Rules) *session {
	s := &session{srv: srv, owner: budget.Owner{Name: o.Owner, Reserve: o.Reserve}, rules: rules, networks: o.Networks, limits: o.Limits, names: make(map[string]*name), next4: netip.MustParseAddr(handover.Names4).Next(),
		closers: make(map[io.Closer]struct{}), denied: make(map[deniedKey]int), waiting: make(chan struct{}, 64),
		looking: make(chan struct{}, srv.share), guarded: guarded{Guard: new(inspect.Guard)},
		rate: pace{n: o.Limits.Rate, per: time.Second}, asking: pace{n: o.Limits.QueryRate, per: time.Second}, ruled: make(map[rule.Rule]*ruled)}
	for _, r := range rules.All() {
		if b := r.Bounds(); b != (rule.Bounds{}) {
			s.ruled[r] = newRuled(b)
		}
	}
	s.sentLeft.Store(o.Limits.Sent)
	s.receivedLeft.Store(o.Limits.Received)
	s.ev.Basis = evidence.Reported
	return s
}

// run serves the call until ctx is done, and returns what it counted. Nothing of the call is open
// then, and nothing runs for it.
func (s *session) run(ctx context.Context, cell *os.File) *evidence.Egress {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx, s.cancel = ctx, cancel
	s.beginEarly()
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
	s.endEarly()
	s.files.Release()
	s.Wipe()
	s.ev.Requests, s.ev.MoreRequests = s.Requests()
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
		handover.Refuse(cell, "budget")
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

// backlog is as many connections as a call may have at once: a program that makes all of them
// together would wait a second for those that the kernel dropped.
const backlog = 256

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
			leave := s.enter(host, port, time.Now())
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
func (s *session) enter(host string, port uint16, now time.Time) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	limit := ""
	switch {
	case s.open >= s.limits.Open:
		limit = evidence.LimitOpen
	case s.made >= s.limits.Connections:
		limit = evidence.LimitConnections
	case !s.rate.ready(now):
		limit = evidence.LimitRate
	}
	var rules counted
	if limit == "" {
		rules, limit = s.rulesLocked(host, port, now)
	}
	if limit != "" {
		s.denyLocked(host, port, evidence.DenyLimit, limit)
		return nil
	}
	open, err := s.srv.open.Take(s.owner, 1)
	if err != nil {
		s.denyLocked(host, port, evidence.DenyOverload, "")
		return nil
	}
	files, err := s.srv.files.Take(s.owner, perConnection)
	if err != nil {
		open.Release()
		s.denyLocked(host, port, evidence.DenyOverload, "")
		return nil
	}
	s.rate.count(now)
	rules.enterLocked(now)
	s.open++
	s.made++
	return func() {
		files.Release()
		open.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		rules.leaveLocked()
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
	s.denyLocked(host, port, why, "")
}

// denyLimit notes what it asked for beyond a limit.
func (s *session) denyLimit(host string, port uint16, limit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denyLocked(host, port, evidence.DenyLimit, limit)
}

func (s *session) denyLocked(host string, port uint16, why, limit string) {
	key := deniedKey{wire.Plain(host), uint32(port), why, limit}
	if i, ok := s.denied[key]; ok {
		s.ev.Denied[i].Times++
		return
	}
	if len(s.ev.Denied) == evidence.MaxDenied {
		s.ev.MoreDenied++
		return
	}
	s.denied[key] = len(s.ev.Denied)
	s.ev.Denied = append(s.ev.Denied, evidence.Denial{Host: key.host, Port: key.port, Why: why, Limit: limit, Times: 1})
}

// greeting is what a proxy has besides a connection.
type greeting struct {
	early []byte                     // what the program has sent ahead
	say   func(outcome string) error // tells the program the outcome of the dial, "" for success
}

// connect connects the program's connection with one of the addresses, which are checked, and
// passes bytes until it ends. greet is nil but for a proxy.
func (s *session) connect(program *net.TCPConn, host string, port uint16, addrs []netip.Addr, greet *greeting) {
	if s.Names(host, port) {
		s.inspected(program, host, port, addrs, greet)
		return
	}
	began := time.Now()
	at := s.note(host, port)
	if !s.own(program) { // for the time of the dial
		s.noted(at, evidence.Connection{Outcome: evidence.ConnEnded, DurationNS: int64(time.Since(began))})
		return
	}
	ctx, cancel := s.ctx, func() {}
	most, limit := s.lasting(host, port)
	if most > 0 {
		ctx, cancel = context.WithDeadline(s.ctx, began.Add(most))
	}
	defer cancel()
	conn, addr, outcome := dial(ctx, addrs, port, s.srv.files, s.owner)
	s.disown(program)
	if conn == nil && most > 0 && time.Since(began) >= most && s.ctx.Err() == nil {
		outcome = evidence.ConnLimit
		s.denyLimit(host, port, limit)
	}
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
		s.relay(program, conn, host, port, began, early, &c)
	}
	c.DurationNS = int64(time.Since(began))
	s.noted(at, c)
}

// relay passes bytes.
func (s *session) relay(program, conn *net.TCPConn, host string, port uint16, began time.Time, early []byte, c *evidence.Connection) {
	r, err := newRelay(program, conn, s.limits.Idle)
	if err != nil {
		breakOff(program)
		breakOff(conn)
		c.Outcome = evidence.ConnEnded
		return
	}
	r.early, r.bulks, r.owner = early, s.srv.bulks, s.owner
	r.sent.watch, r.sent.leaked = s.Watch().Stream(), func(name string) {
		s.leak(evidence.Leak{Name: name, Host: host, Port: uint32(port), Where: evidence.LeakClear})
	}
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
	r.sent.total, r.received.total = &s.sent, &s.received
	r.sent.left, r.received.left = s.allowances(host, port)
	if most, limit := s.lasting(host, port); most > 0 {
		defer time.AfterFunc(time.Until(began.Add(most)), func() { r.abort(evidence.ConnLimit, limit) }).Stop()
	}
	c.Outcome = r.run(s.ctx)
	c.Sent, c.Received = r.sent.n.Load(), r.received.n.Load()
	if r.limit != "" {
		s.denyLimit(host, port, r.limit)
	}
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

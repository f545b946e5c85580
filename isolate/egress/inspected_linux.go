package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	rule "palyra/call/egress"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate/egress/inspect"
	"palyra/isolate/egress/sealed"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// inspectedMemory is what inspected connections of all calls may take, in bytes: a quarter of the
// unit's MemoryMax.
const inspectedMemory = 128 << 20

// guarded is what stands between a call and its inspected hosts.
type guarded struct {
	*inspect.Guard
	uses []wire.Use
}

// guard makes the Guard of a session, which tells the session.
func (s *session) guard(o *Order, in rule.Inspection) error {
	var placeholders []string
	for _, u := range o.Uses {
		placeholders = append(placeholders, u.Placeholder)
	}
	g, err := inspect.New(inspect.Config{Inspection: in, Placeholders: placeholders, Roots: s.srv.cfg.Roots, Until: time.Now().Add(o.Limits.Wall + time.Minute),
		Idle: o.Limits.Idle, Denied: s.deny, Limited: s.denyLimit, Leaked: s.leak})
	s.guarded = guarded{g, o.Uses}
	s.early = newEarly(o, in)
	return err
}

// inspectionOf reads what an order says of requests.
func inspectionOf(o *Order, rules rule.Rules) (rule.Inspection, error) {
	var uses []string
	for _, u := range o.Uses {
		uses = append(uses, u.Use)
	}
	in, err := rule.ParseInspection(rules, o.Inspect, uses)
	if err == nil && len(uses) > 0 && o.Capsule.IsZero() {
		err = errors.New("uses of secrets, and no capsule")
	}
	return in, err
}

// givingTime bounds the wait for the values of an order: palyra may have to open a vault first.
const givingTime = time.Minute

// take receives the values of the uses, and says whether the session begins.
func (g *guarded) take(conn *net.UnixConn, key *sealed.Key, o *Order) error {
	const op = "take the values of secrets"
	conn.SetReadDeadline(time.Now().Add(givingTime))
	defer conn.SetReadDeadline(time.Time{})
	line, err := bufio.NewReader(io.LimitReader(conn, wire.MaxSecrets)).ReadBytes('\n') // palyra says nothing behind it
	if err != nil {
		return err
	}
	var s wire.Secrets
	err = wire.Decode(line, &s, wire.MaxSecrets)
	if err == nil && len(s.Sealed) != len(g.uses) {
		err = fmt.Errorf("%d values for %d uses", len(s.Sealed), len(g.uses))
	}
	var given [][]byte
	defer func() {
		for _, v := range given {
			clear(v)
		}
	}()
	for i := 0; err == nil && i < len(g.uses); i++ {
		var v []byte
		v, err = key.Open(o.Capsule, g.uses[i], s.Sealed[i])
		given = append(given, v)
	}
	if err == nil {
		err = g.Give(given)
	}
	if err != nil {
		err = fault.New(fault.Refused, "invalid_input", op, err)
		say(conn, wire.Answer{Error: fault.MessageOf(err)})
		return err
	}
	return say(conn, wire.Answer{})
}

// leak notes where a placeholder was seen, and ends the call.
func (s *session) leak(l evidence.Leak) {
	l.Name, l.Host = wire.Plain(l.Name), wire.Plain(l.Host)
	s.mu.Lock()
	if len(s.ev.Leaks) < evidence.MaxLeaks {
		s.ev.Leaks = append(s.ev.Leaks, l)
	}
	s.mu.Unlock()
	s.cancel()
}

// leaks looks for a placeholder in a name.
func (s *session) leaks(name, where string) bool {
	found := s.Watch().InName(name)
	if found != "" {
		s.leak(evidence.Leak{Name: found, Host: name, Where: where})
	}
	return found != ""
}

// inspected serves a connection to an inspected host, of which addrs are the checked addresses.
func (s *session) inspected(program *net.TCPConn, host string, port uint16, addrs []netip.Addr, greet *greeting) {
	began := time.Now()
	at := s.note(host, port)
	c := evidence.Connection{Outcome: evidence.ConnEnded}
	defer func() {
		c.DurationNS = int64(time.Since(began))
		s.noted(at, c)
	}()
	wait, cancel := context.WithTimeout(s.ctx, proxyTime)
	hold, err := s.srv.inspected.Wait(wait, s.owner, inspect.Cost)
	cancel()
	if err != nil {
		if s.ctx.Err() == nil {
			s.deny(host, port, evidence.DenyOverload)
			c.Outcome = evidence.ConnUnreachable
		}
		breakOff(program)
		return
	}
	defer hold.Release()
	m := newMetered(s, program, host, port)
	defer m.stop()
	if most, limit := s.lasting(host, port); most > 0 {
		defer time.AfterFunc(time.Until(began.Add(most)), func() { m.abort(evidence.ConnLimit, limit) }).Stop()
	}
	if greet != nil {
		m.early = greet.early
		if greet.say("") != nil {
			c.Outcome = evidence.ConnReset
			breakOff(program)
			return
		}
		program.SetDeadline(time.Time{}) // the proxy's
	}
	h := &hostConns{s: s, host: host, addrs: addrs, port: port, flush: m.flush}
	seen := s.Serve(s.ctx, m, inspect.Target{Host: host, Port: port, Early: h.early, Dial: h.dial, Room: s.room, Passing: m.pass})
	c.ServerName, c.TLS, c.Key = seen.ServerName, seen.TLS, seen.Key
	c.Sent, c.Received = m.sent.n.Load(), m.received.n.Load()
	c.Address, c.Outcome = h.outcome(seen.Closed)
	if s.ctx.Err() != nil && c.Address != "" {
		c.Outcome = evidence.ConnEnded
	}
	if cut, limit := m.cut(); cut != "" {
		c.Outcome = cut
		if limit != "" {
			s.denyLimit(host, port, limit)
		}
	}
}

// room takes memory for what an inspected connection has beside its first request.
func (s *session) room(ctx context.Context, n int64) (release func(), err error) {
	wait, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	hold, err := s.srv.inspected.Wait(wait, s.owner, n)
	if err != nil {
		return nil, err
	}
	return hold.Release, nil
}

// hostConns are the connections to a host for one of the program's, of which the first is counted
// with that.
type hostConns struct {
	s     *session
	host  string
	addrs []netip.Addr
	port  uint16
	flush func() // before a connection waits for the host

	mu      sync.Mutex
	open    int
	address string // of the first
	failed  string // the outcome of the last that failed
}

func (h *hostConns) dial(ctx context.Context) (net.Conn, error) {
	var file, memory *budget.Hold
	h.mu.Lock()
	if h.open > 0 {
		var err error
		if file, err = h.s.srv.files.Take(h.s.owner, 1); err == nil {
			memory, err = h.s.srv.inspected.Take(h.s.owner, inspect.HostCost)
		}
		if err != nil {
			h.mu.Unlock()
			file.Release()
			return nil, errors.New("palyra-egress has no room for another connection")
		}
	}
	h.open++
	h.mu.Unlock()
	conn, addr, outcome := dial(ctx, h.addrs, h.port, h.s.srv.files, h.s.owner)
	c := &hostConn{TCPConn: conn, h: h, file: file, memory: memory}
	h.mu.Lock()
	defer h.mu.Unlock()
	if conn == nil {
		c.leaveLocked()
		h.failed = outcome
		return nil, errors.New(problems[outcome].why)
	}
	if h.address == "" {
		h.address = addr.String()
	}
	return c, nil
}

func (h *hostConns) outcome(closed bool) (address, outcome string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.address == "" && h.failed != "":
		return "", h.failed
	case closed:
		return h.address, evidence.ConnClosed
	}
	return h.address, evidence.ConnReset
}

type hostConn struct {
	*net.TCPConn
	h            *hostConns
	file, memory *budget.Hold // nil for the first
	once         sync.Once
	ahead
}

func (c *hostConn) Close() error {
	err := c.TCPConn.Close()
	c.ahead.close()
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.leaveLocked()
	return err
}

func (c *hostConn) leaveLocked() {
	c.once.Do(func() {
		c.h.open--
		c.file.Release()
		c.memory.Release()
	})
}

// metered is the program's connection, with the call's limits: bytes both ways, and silence.
type metered struct {
	net.Conn       // the methods of a TCP connection beside Conn's would go past the limits
	tcp            *net.TCPConn
	early          []byte // of the program, to be read first
	sent, received direction

	mu      sync.Mutex
	outcome string // why it was cut off
	limit   string // which limit that was, "" for none
	active  time.Time
	idle    *time.Timer

	gathered
}

func newMetered(s *session, program *net.TCPConn, host string, port uint16) *metered {
	m := &metered{Conn: program, tcp: program, active: time.Now()}
	m.sent.total, m.received.total = &s.sent, &s.received
	m.sent.left, m.received.left = s.allowances(host, port)
	m.gathered.s = s
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = time.AfterFunc(s.limits.Idle, func() { m.look(s.limits.Idle) })
	return m
}

// look cuts the connection off if nothing has passed for too long, and looks again otherwise.
func (m *metered) look(most time.Duration) {
	m.mu.Lock()
	left := most - time.Since(m.active)
	if left > 0 {
		m.idle.Reset(left)
	}
	m.mu.Unlock()
	if left <= 0 {
		m.abort(evidence.ConnIdle, "")
	}
}

func (m *metered) stop() {
	m.gathered.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle.Stop()
}

func (m *metered) cut() (outcome, limit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.outcome, m.limit
}

func (m *metered) abort(outcome, limit string) {
	m.mu.Lock()
	if m.outcome == "" {
		m.outcome, m.limit = outcome, limit
	}
	m.mu.Unlock()
	breakOff(m.tcp)
}

func (m *metered) touch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = time.Now()
}

// CloseWrite ends the words to the program.
func (m *metered) CloseWrite() error { return m.tcp.CloseWrite() }

var errLimit = errors.New("the bytes of the call, or of a rule, are used up")

func (m *metered) Read(b []byte) (int, error) {
	var n int
	var err error
	if len(m.early) > 0 {
		n = copy(b, m.early)
		m.early = m.early[n:]
	} else {
		n, err = m.tcp.Read(b)
	}
	if n == 0 {
		return n, err
	}
	m.touch()
	may, limit := m.sent.take(n)
	m.sent.pay(may, may)
	if may < n {
		m.abort(evidence.ConnLimit, limit)
		return 0, errLimit
	}
	return n, err
}

// send writes b to the program.
func (m *metered) send(b []byte) (int, error) {
	may, limit := m.received.take(len(b))
	n, err := m.tcp.Write(b[:may])
	m.received.pay(may, n)
	if n > 0 {
		m.touch()
	}
	if err == nil && may < len(b) {
		m.abort(evidence.ConnLimit, limit)
		err = errLimit
	}
	return n, err
}

package egress

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"palyra/isolate/egress/dns"
	"palyra/isolate/evidence"
)

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
	if err == nil && s.leaks(cmp.Or(q.Name, q.Asked()), evidence.LeakDNS) {
		return nil, nil
	}
	if found := s.Watch().InName(string(packet)); found != "" { // elsewhere, or in what is no query
		s.leak(evidence.Leak{Name: found, Where: evidence.LeakDNS})
		return nil, nil
	}
	if limit := s.countQuery(time.Now()); limit != "" {
		if err != nil {
			s.denyLimit("query", 0, limit)
			return nil, nil
		}
		s.denyLimit(q.Asked(), 0, limit)
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

// countQuery counts a query, and returns the limit that it goes beyond, "" if none.
func (s *session) countQuery(now time.Time) (limit string) {
	if s.queries.Add(1) > s.limits.Queries {
		return evidence.LimitQueries
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asking.ready(now) {
		return evidence.LimitQueryRate
	}
	s.asking.count(now)
	return ""
}

// typePTR is a look-up of an address's name. typesBeside are those that clients ask for beside A
// and AAAA, of each name: SVCB and HTTPS, RFC 9460.
const typePTR = dns.Type(12)

var typesBeside = []dns.Type{64, 65}

// answer looks the name up, unless it was, and gives it addresses in the cell. It returns nil when
// the call has ended.
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
		s.denyLimit(q.Name, 0, evidence.LimitNames)
		return q.Failed("the call has as many names as it may")
	}
	return q.Addresses(inside, ttl)
}

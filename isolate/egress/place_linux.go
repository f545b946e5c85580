package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"palyra/call/egress/reach"
	"palyra/isolate/egress/handover"
	"palyra/isolate/evidence"
)

// name is a name that the program asked for, and that a rule has. The addresses are pinned: they
// are those of the one lookup for as long as the call lasts.
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
				s.denyLocked(host, 0, evidence.DenyLimit, evidence.LimitNames)
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
	permit := reach.PermitAll
	if s.networks {
		permit = reach.NamedAll
	}
	for _, port := range s.rules.Ports(n.host) {
		if err := permit(addrs, port, s.rules); err != nil {
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

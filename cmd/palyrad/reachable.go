package main

import (
	"net"
	"net/netip"
)

// reachable returns the address to tell devices for a listener at an address of this host. Of one
// at every address it's that from which this host reaches others, or the first that isn't its own
// alone; without any it's loopback. A host behind a translator of addresses, or with several
// networks, may have a better one, which its operator knows.
func reachable(at netip.AddrPort, route func() (netip.Addr, error), all func() ([]net.Addr, error)) netip.AddrPort {
	if !at.Addr().IsUnspecified() {
		return at
	}
	fits := func(a netip.Addr) bool {
		return a.IsGlobalUnicast() && (at.Addr().Is6() || a.Is4()) // [::] takes IPv4, too
	}
	if a, err := route(); err == nil && fits(a.Unmap()) {
		return netip.AddrPortFrom(a.Unmap(), at.Port())
	}
	list, _ := all()
	for _, x := range list {
		if p, err := netip.ParsePrefix(x.String()); err == nil && fits(p.Addr().Unmap()) {
			return netip.AddrPortFrom(p.Addr().Unmap(), at.Port())
		}
	}
	if at.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
}

// outward returns the address that this host's routes choose for one outside. Connecting a UDP
// socket sends nothing.
func outward() (netip.Addr, error) {
	c, err := net.Dial("udp4", "192.0.2.1:9") // TEST-NET-1, RFC 5737
	if err != nil {
		if c, err = net.Dial("udp6", "[2001:db8::1]:9"); err != nil { // RFC 3849
			return netip.Addr{}, err
		}
	}
	defer c.Close()
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	return at.Addr(), err
}

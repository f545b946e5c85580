// Package reach says which addresses a name may lead to: those of the public Internet, and others
// only where a rule of the call names their network and port.
//
//	reach.Check(netip.MustParseAddr("10.0.0.1"))           // 10.0.0.1 is private (10.0.0.0/8, RFC 1918)
//	reach.PermitAll(answers, 443, rules)                   // one bad answer refuses all
//
// Its table is the IANA registries of special-purpose addresses (RFC 6890), and a few addresses
// that are public by number and local by use. IPv6 outside global unicast (2000::/3) is refused
// whether it's in the table or not. An address that carries another inside (IPv4-mapped, NAT64,
// 6to4, Teredo, ISATAP) is judged by both.
//
// What it does not protect against: public addresses that the host's own network treats as its
// own, and a NAT64 prefix that a network chose for itself (RFC 6052 §2.2), which looks like any
// other.
package reach

import (
	"fmt"
	"net/netip"

	"palyra/call/egress"
)

// Range is a range of addresses that no name may lead to without a rule for the network.
type Range struct {
	Prefix netip.Prefix
	Is     string // what an address in it is, "private"
	Source string // the document that says so
	Never  bool   // no rule opens it: a connection there goes elsewhere, or nowhere
}

var p = netip.MustParsePrefix

// table has no range in another, but for those that stand before the wider one.
var table = [...]Range{
	{p("0.0.0.0/8"), "this host", "RFC 1122 §3.2.1.3", true}, // Linux connects to its loopback
	{p("10.0.0.0/8"), "private", "RFC 1918", false},
	{p("100.64.0.0/10"), "shared with a carrier", "RFC 6598", false},
	{p("127.0.0.0/8"), "loopback", "RFC 1122 §3.2.1.3", false},
	{p("168.63.129.16/32"), "a cloud's host agent", "Azure's virtual public address", false},
	{p("169.254.0.0/16"), "link-local, and clouds' metadata", "RFC 3927", false},
	{p("172.16.0.0/12"), "private", "RFC 1918", false},
	{p("192.0.0.0/24"), "for protocols", "RFC 6890 §2.1", false},
	{p("192.0.2.0/24"), "for documentation", "RFC 5737", false},
	{p("192.88.99.0/24"), "6to4 relays", "RFC 7526", false},
	{p("192.168.0.0/16"), "private", "RFC 1918", false},
	{p("198.18.0.0/15"), "for benchmarks", "RFC 2544", false},
	{p("198.51.100.0/24"), "for documentation", "RFC 5737", false},
	{p("203.0.113.0/24"), "for documentation", "RFC 5737", false},
	{p("224.0.0.0/4"), "multicast", "RFC 5771", true},
	{p("255.255.255.255/32"), "broadcast", "RFC 919 §7", true},
	{p("240.0.0.0/4"), "reserved", "RFC 1112 §4", false},

	{p("::/128"), "unspecified", "RFC 4291 §2.5.2", true}, // Linux connects to its loopback
	{p("::1/128"), "loopback", "RFC 4291 §2.5.3", false},
	{p("::/96"), "IPv4-compatible", "RFC 4291 §2.5.5.1", false},
	{p("::ffff:0:0:0/96"), "IPv4-translated", "RFC 2765 §2.1", false},
	{p("64:ff9b:1::/48"), "local NAT64", "RFC 8215", false},
	{p("100::/64"), "discarded", "RFC 6666", false},
	{p("100:0:0:1::/64"), "a dummy", "RFC 9780", false},
	{p("2001::/32"), "Teredo", "RFC 4380", false},
	{p("2001:2::/48"), "for benchmarks", "RFC 5180", false},
	{p("2001:10::/28"), "no address (ORCHID)", "RFC 4843", false},
	{p("2001:20::/28"), "no address (ORCHIDv2)", "RFC 7343", false},
	{p("2001::/23"), "for protocols", "RFC 2928", false},
	{p("2001:db8::/32"), "for documentation", "RFC 3849", false},
	{p("2002::/16"), "6to4", "RFC 3056", false},
	{p("3fff::/20"), "for documentation", "RFC 9637", false},
	{p("5f00::/16"), "segment routing", "RFC 9602", false},
	{p("fc00::/7"), "unique local", "RFC 4193", false},
	{p("fe80::/10"), "link-local", "RFC 4291 §2.5.6", false},
	{p("fec0::/10"), "site-local", "RFC 3879", false},
	{p("ff00::/8"), "multicast", "RFC 4291 §2.7", true},
}

// global is all of IPv6 that is given out. nat64 isn't of it, and good for what it carries.
var (
	global = p("2000::/3")
	nat64  = p("64:ff9b::/96")
	rest   = Range{p("::/0"), "no global unicast", "RFC 4291 §2.4", false}
)

// Touches returns the first range that has an address of p, if there is one.
func Touches(p netip.Prefix) (Range, bool) {
	for _, r := range table {
		if r.Prefix.Overlaps(p) {
			return r, true
		}
	}
	if a := p.Addr(); a.Is6() && !(global.Contains(a) && global.Bits() <= p.Bits()) && !(nat64.Contains(a) && nat64.Bits() <= p.Bits()) {
		return rest, true
	}
	return Range{}, false
}

// Refused says why an address isn't connected to.
type Refused struct {
	Addr  netip.Addr // the address in question
	Inner netip.Addr // the one that Addr carries inside and that is in Range; Addr itself if none
	Range Range
}

// Error names the address, its range and the source.
func (r *Refused) Error() string {
	said := fmt.Sprintf("%s is %s (%s, %s)", r.Inner, r.Range.Is, r.Range.Prefix, r.Range.Source)
	if r.Addr != r.Inner {
		return fmt.Sprintf("%s carries %s", r.Addr, said)
	}
	return said
}

// Check returns nil if addr is of the public Internet, and so is every address that it carries;
// otherwise *Refused.
func Check(addr netip.Addr) error { return check(addr, nil) }

// Permit is Check, but for addresses that a rule names with port, alone or by their network. An
// address inside another needs a rule as well.
func Permit(addr netip.Addr, port uint16, rules egress.Rules) error {
	return check(addr, func(a netip.Addr) bool { return rules.Network(a, port) })
}

// PermitAll returns nil if Permit does for each of addrs: a name with one bad address is refused,
// since its owner chooses which one is tried.
func PermitAll(addrs []netip.Addr, port uint16, rules egress.Rules) error {
	for _, a := range addrs {
		if err := Permit(a, port, rules); err != nil {
			return err
		}
	}
	return nil
}

// NamedAll is PermitAll, and wants a rule for the network of each of addrs.
func NamedAll(addrs []netip.Addr, port uint16, rules egress.Rules) error {
	for _, a := range addrs {
		if !rules.Network(a.WithZone("").Unmap(), port) {
			return fmt.Errorf("%s is in no network that a rule names with port %d", a, port)
		}
	}
	return PermitAll(addrs, port, rules)
}

func check(addr netip.Addr, named func(netip.Addr) bool) error {
	judged := addr.WithZone("").Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		never := rest
		never.Is, never.Never = "no address, or has a zone", true
		return &Refused{addr, addr, never}
	}
	for _, a := range append(carried(judged), judged) {
		r := rangeOf(a)
		if r == nil || !r.Never && named != nil && named(a) {
			continue
		}
		if a == judged {
			a = addr
		}
		return &Refused{addr, a, *r}
	}
	return nil
}

// rangeOf returns the range that a, not IPv4-mapped, may not be in, nil if there is none.
func rangeOf(a netip.Addr) *Range {
	for i := range table {
		if table[i].Prefix.Contains(a) {
			return &table[i]
		}
	}
	if a.Is6() && !global.Contains(a) && !nat64.Contains(a) {
		return &rest
	}
	return nil
}

// carried returns the IPv4 addresses that a may lead to by translation or in a tunnel.
func carried(a netip.Addr) []netip.Addr {
	if !a.Is6() {
		return nil
	}
	b := a.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case a.IsUnspecified() || a == netip.IPv6Loopback():
		return nil
	case nat64.Contains(a), p("64:ff9b:1::/48").Contains(a), p("::/96").Contains(a), p("::ffff:0:0:0/96").Contains(a):
		// A local NAT64 may also put it elsewhere (RFC 6052 §2.2); who names its network knows its own.
		return []netip.Addr{at(12)}
	case p("2002::/16").Contains(a):
		return []netip.Addr{at(2)}
	case p("2001::/32").Contains(a): // the server, and the client with each bit turned
		c := at(12).As4()
		for i := range c {
			c[i] = ^c[i]
		}
		return []netip.Addr{at(4), netip.AddrFrom4(c)}
	case (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214 §6.1
		return []netip.Addr{at(12)}
	}
	return nil
}

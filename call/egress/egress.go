// Package egress is the language of the rules that say which hosts a call may reach: one host and
// one port each, in one spelling.
//
//	r, err := egress.ParseRules([]string{"Packages.example", "*.cdn.example:443", "[2001:db8::1]:8443"})
//	r.Strings()                          // "*.cdn.example:443" "[2001:db8::1]:8443" "packages.example:443"
//	r.Allows("packages.example", 443)    // true
//	r.Network(addr, 8443)                // whether a rule names this address or its network
//
// A rule may bound what the call has of its host ([Bounds]): "packages.example:443 rate:10/s
// sent:10MiB".
//
// [Inspect] and [Use] are rules about the requests to such a host, and about secrets that are put
// into them: an [Inspection].
//
// The grammar is docs/formats/egress.md. Capsule, policy, card and broker hold the canonical
// strings, so a comparison of strings is a comparison of rules. [Name] and [Host] bring the names
// that a program asks for into the same spelling, or refuse them: the name that is compared, asked
// of a resolver and connected to is one string.
//
// What it does not protect against: a name says nothing about the addresses that its owner gives
// it (call/egress/reach does), and an allowed host can pass on what it gets. Unicode names are
// taken as xn-- labels alone, which aren't decoded: two of them may look alike in a browser, but
// not on a card.
package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/fault"
)

// MaxRules is how many rules a call can have.
const MaxRules = 64

// DefaultPort is the port of a rule that names none.
const DefaultPort = 443

// minBits is the shortest prefix of a network rule: the Internet is no network.
const minBits = 8

// Inside4 and Inside6 are the ranges out of which names get addresses in a cell. A rule can't name
// an address there: it would lead to the broker itself. 198.18.0.0/15 is for benchmarks (RFC 2544
// §C.2.2), the other a unique local prefix (RFC 4193): no host of the Internet has either.
var (
	Inside4 = netip.MustParsePrefix("198.18.0.0/15")
	Inside6 = netip.MustParsePrefix("fd70:616c:7972::/64")
)

// RootsFile is the file, in the cell of a call whose requests are inspected, with the host's roots
// and behind them the call's own authority, in PEM.
const RootsFile = "/etc/ssl/palyra/roots.pem"

// Rule lets a call reach one port of a name, of the names below a name, of an address or of a
// network. Make one with ParseRule; the zero Rule allows nothing. Rules can be compared with ==.
type Rule struct {
	name    string // canonical; "" for a network
	below   bool   // the names below name, and not name itself
	network netip.Prefix
	port    uint16
	bounds  Bounds
}

// ParseRule reads HOST or HOST:PORT, and behind it the words of [Bounds] in any order. HOST is a
// name, *.NAME, an IPv4 address or network, or an IPv6 address or network in brackets.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return Rule{}, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("egress rule %q", clip(text)), err).
			WithHint("NAME:PORT, *.NAME:PORT, ADDRESS:PORT or NETWORK/BITS:PORT, IPv6 in brackets, then bounds such as rate:N/s or sent:SIZE: packages.example:443, [2001:db8::1]:443")
	}
	return r, nil
}

func parseRule(text string) (Rule, error) {
	bare, bounds, _ := strings.Cut(text, " ")
	words := strings.FieldsFunc(bounds, func(c rune) bool { return c == ' ' })
	if len(words) == 0 || !isBound(words[0]) || strings.HasSuffix(bounds, " ") {
		return parseBare(text)
	}
	r, err := parseBare(bare)
	if err != nil {
		return Rule{}, err
	}
	r.bounds, err = parseBounds(words)
	if err == nil && r.bounds.ofRequest() != (Bounds{}) {
		err = errors.New("body and answer are of requests, of which rules of inspection are")
	}
	if err != nil {
		return Rule{}, fmt.Errorf("%w: bounds are rate:N/s, open:N, connections:N, sent:SIZE, received:SIZE and time:DURATION", err)
	}
	return r, nil
}

// parseBare reads a rule without bounds.
func parseBare(text string) (Rule, error) {
	if strings.Contains(text, "://") {
		return Rule{}, errors.New("a rule is a host and a port, not a URL")
	}
	host, port, err := split(text)
	if err != nil {
		return Rule{}, err
	}
	r := Rule{port: DefaultPort}
	if port != "" {
		if r.port, err = Port(port); err != nil {
			return Rule{}, err
		}
	}
	if strings.Contains(host, "/") {
		r.network, err = network(host)
		return r, err
	}
	if below, ok := strings.CutPrefix(host, "*."); ok {
		if r.name, err = name(below); err != nil {
			return Rule{}, err
		}
		if !strings.Contains(r.name, ".") {
			return Rule{}, fmt.Errorf("%q would be all names below a top-level domain: name two labels", "*."+r.name)
		}
		r.below = true
		return r, local(r.name)
	}
	if strings.Contains(host, "*") {
		return Rule{}, errors.New("'*' stands for whole labels in front: *.NAME")
	}
	n, addr, err := parseHost(host)
	switch {
	case err != nil:
		return Rule{}, err
	case addr.IsValid():
		r.network = netip.PrefixFrom(addr, addr.BitLen())
		return r, outside(r.network)
	}
	r.name = n
	return r, local(n)
}

// split cuts a rule into its host and its port, "" if it has none.
func split(text string) (host, port string, err error) {
	end := strings.LastIndexByte(text, ':')
	if strings.HasPrefix(text, "[") {
		closing := strings.IndexByte(text, ']')
		if closing < 0 {
			return "", "", errors.New("no ']' after '['")
		}
		if closing == len(text)-1 {
			return text, "", nil
		}
		if end != closing+1 {
			return "", "", errors.New("want ':' and a port after ']'")
		}
	} else if strings.Count(text, ":") > 1 {
		return "", "", errors.New("an IPv6 address stands in brackets")
	}
	if end < 0 {
		return text, "", nil
	}
	if host, port = text[:end], text[end+1:]; port == "" {
		return "", "", errors.New("no port after ':'")
	}
	return host, port, nil
}

// Port reads a port from 1 to 65535: decimal digits, no sign, no zeros in front.
func Port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("port %q: want a number from 1 to 65535", clip(text))
	}
	return uint16(n), nil
}

// network reads a network, which must have one spelling and not lie in the cell's own ranges.
func network(text string) (netip.Prefix, error) {
	inner, bracketed := strings.CutPrefix(text, "[")
	if bracketed {
		inner = strings.TrimSuffix(inner, "]")
	}
	p, err := netip.ParsePrefix(inner)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("no network: want ADDRESS/BITS")
	case p.Addr().Is4In6():
		return netip.Prefix{}, errors.New("an IPv4 network stands as IPv4")
	case p.Addr().Is6() != bracketed:
		return netip.Prefix{}, errors.New("an IPv6 network stands in brackets, an IPv4 network doesn't")
	case p.Bits() < minBits:
		return netip.Prefix{}, fmt.Errorf("a network has at least %d bits", minBits)
	case p.Masked() != p:
		return netip.Prefix{}, fmt.Errorf("bits behind the network's: write %s", p.Masked())
	}
	return p, outside(p)
}

// outside refuses what lies in the cell's own ranges. A network around one is a rule about the rest
// of it.
func outside(p netip.Prefix) error {
	for _, own := range []netip.Prefix{Inside4, Inside6} {
		if own.Contains(p.Addr()) && own.Bits() <= p.Bits() {
			return fmt.Errorf("%s is where names have their addresses in a cell", own)
		}
	}
	return nil
}

// local refuses the names that mean the cell itself (RFC 6761 §6.3).
func local(name string) error {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return errors.New("localhost is the cell itself and needs no rule")
	}
	return nil
}

// String returns the canonical text, which ParseRule reads as r.
func (r Rule) String() string {
	host := r.name
	switch {
	case r == Rule{}:
		return ""
	case r.below:
		host = "*." + r.name
	case r.network.IsValid() && r.network.IsSingleIP():
		host = r.network.Addr().String()
	case r.network.IsValid():
		host = r.network.String()
	}
	if r.network.IsValid() && r.network.Addr().Is6() {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(r.port)) + r.bounds.String()
}

// Bounds returns what r bounds.
func (r Rule) Bounds() Bounds { return r.bounds }

// Bare returns r without bounds: the host and port alone. It allows the same hosts.
func (r Rule) Bare() Rule {
	r.bounds = Bounds{}
	return r
}

// Port returns the one port that r allows.
func (r Rule) Port() uint16 { return r.port }

// Name returns the name of r, and whether r is about the names below it and not about itself. It's
// "" for an address or a network.
func (r Rule) Name() (name string, below bool) { return r.name, r.below }

// Prefix returns the network of r, of full length for an address. It's invalid for names.
func (r Rule) Prefix() netip.Prefix { return r.network }

// names reports whether r is about name, which is canonical. The zero Rule is about none.
func (r Rule) names(name string) bool {
	if r.below {
		host, ok := strings.CutSuffix(name, "."+r.name)
		return ok && host != ""
	}
	return r.name != "" && r.name == name
}

// Rules are what a call may reach. The zero Rules allow nothing. They're immutable.
type Rules struct{ all []Rule }

// ParseRules reads rules in any order. Those about one host and port become one, with the narrowest
// of each bound.
func ParseRules(texts []string) (Rules, error) {
	if len(texts) > MaxRules {
		return Rules{}, fault.New(fault.Usage, "invalid_input", "egress rules", fmt.Errorf("%d rules, at most %d are allowed", len(texts), MaxRules))
	}
	var rs Rules
	for _, t := range texts {
		r, err := ParseRule(t)
		if err != nil {
			return Rules{}, err
		}
		rs.all = append(rs.all, r)
	}
	slices.SortFunc(rs.all, func(a, b Rule) int { return strings.Compare(a.String(), b.String()) })
	one := rs.all[:0] // those of one host stand together: the text of each begins with the bare one's
	for _, r := range rs.all {
		if n := len(one); n == 0 || one[n-1].Bare() != r.Bare() {
			one = append(one, r)
		} else {
			one[n-1].bounds = one[n-1].bounds.tighter(r.bounds)
		}
	}
	rs.all = one
	return rs, nil
}

// ParseCanonical reads rules that are as Strings gives them: canonical, sorted and unique.
func ParseCanonical(texts []string) (Rules, error) {
	rs, err := ParseRules(texts)
	if err == nil && !slices.Equal(rs.Strings(), texts) {
		err = fault.New(fault.Usage, "invalid_input", "egress rules", errors.New("not canonical, sorted and unique"))
	}
	if err != nil {
		return Rules{}, err
	}
	return rs, nil
}

// Strings returns the canonical texts, sorted. It's never nil.
func (rs Rules) Strings() []string {
	out := make([]string, len(rs.all))
	for i, r := range rs.all {
		out[i] = r.String()
	}
	return out
}

// All returns a copy of the rules, in the order of Strings.
func (rs Rules) All() []Rule { return slices.Clone(rs.all) }

// Empty reports whether rs allows nothing.
func (rs Rules) Empty() bool { return len(rs.all) == 0 }

// Allows reports whether a rule is about name, which Name or Host returned, and port.
func (rs Rules) Allows(name string, port uint16) bool {
	return slices.ContainsFunc(rs.all, func(r Rule) bool { return r.port == port && r.names(name) })
}

// Ports returns the ports that rules name for name, which Name or Host returned, in order.
func (rs Rules) Ports(name string) []uint16 {
	return rs.ports(func(r Rule) bool { return r.names(name) })
}

// Network reports whether a rule names addr, or a network that has it, with port. An address that
// stands in another (IPv4-mapped) is looked at as itself. No rule is about a cell's own ranges.
func (rs Rules) Network(addr netip.Addr, port uint16) bool {
	return slices.Contains(rs.NetworkPorts(addr), port)
}

// NetworkPorts returns the ports that rules name for addr or for a network that has it, in order.
func (rs Rules) NetworkPorts(addr netip.Addr) []uint16 {
	if addr = addr.Unmap(); addr.Zone() != "" || Inside4.Contains(addr) || Inside6.Contains(addr) {
		return nil
	}
	return rs.ports(func(r Rule) bool { return r.network.IsValid() && r.network.Contains(addr) })
}

// Addresses returns the single addresses that rules name, in the order of Strings.
func (rs Rules) Addresses() []netip.Addr {
	var out []netip.Addr
	for _, r := range rs.all {
		if r.network.IsValid() && r.network.IsSingleIP() && !slices.Contains(out, r.network.Addr()) {
			out = append(out, r.network.Addr())
		}
	}
	return out
}

// Bounded returns the rules with bounds that are about a connection to a name, which Name or Host
// returned, or to an address, in the order of Strings.
func (rs Rules) Bounded(host string, port uint16) (out []Rule) {
	addr, err := netip.ParseAddr(host)
	if err == nil && (Inside4.Contains(addr) || Inside6.Contains(addr)) {
		return nil
	}
	for _, r := range rs.all {
		if r.bounds != (Bounds{}) && r.port == port && (r.names(host) || err == nil && r.network.IsValid() && r.network.Contains(addr)) {
			out = append(out, r)
		}
	}
	return out
}

func (rs Rules) ports(about func(Rule) bool) []uint16 {
	var out []uint16
	for _, r := range rs.all {
		if about(r) {
			out = append(out, r.port)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

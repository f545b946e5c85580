package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"palyra/internal/fault"
)

// The bounds of a name, in its text form (RFC 1035 §2.3.4, without the root's dot).
const (
	maxName  = 253
	maxLabel = 63
)

// Name returns the canonical form of a name that a program asks for: lower case, without the
// root's dot. It refuses everything that isn't the name of a host in the DNS, addresses in every
// spelling included. The wrapped error is the reason alone, without the name.
func Name(text string) (string, error) {
	n, err := name(text)
	if err != nil {
		return "", fault.New(fault.Usage, "invalid_input", fmt.Sprintf("name %q", clip(text)), err)
	}
	return n, nil
}

// Host is Name for places that take addresses, too: a name, an IPv4 address in four decimal parts,
// or an IPv6 address in brackets. addr is invalid for a name.
func Host(text string) (name string, addr netip.Addr, err error) {
	if name, addr, err = parseHost(text); err != nil {
		return "", netip.Addr{}, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("host %q", clip(text)), err)
	}
	return name, addr, nil
}

func parseHost(text string) (string, netip.Addr, error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		a, err := address6(inner)
		return "", a, err
	}
	// ParseAddr takes four decimal parts without zeros in front, and nothing else of IPv4.
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return "", a, nil
	}
	n, err := name(text)
	return n, netip.Addr{}, err
}

func address6(inner string) (netip.Addr, error) {
	inner, ok := strings.CutSuffix(inner, "]")
	a, err := netip.ParseAddr(inner)
	switch {
	case strings.Contains(inner, "%"):
		return netip.Addr{}, errors.New("an address has no zone here")
	case !ok || err != nil || !a.Is6():
		return netip.Addr{}, errors.New("no IPv6 address between '[' and ']'")
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("an IPv4 address stands as IPv4: %s", a.Unmap())
	}
	return a, nil
}

func name(text string) (string, error) {
	n := strings.TrimSuffix(text, ".")
	switch {
	case n == "":
		return "", errors.New("no name")
	case len(n) > maxName:
		return "", fmt.Errorf("a name has at most %d bytes", maxName)
	}
	b := []byte(n)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z':
			b[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return "", odd(c)
		}
	}
	n = string(b)
	labels := strings.Split(n, ".")
	for _, l := range labels {
		switch {
		case l == "":
			return "", errors.New("an empty label")
		case len(l) > maxLabel:
			return "", fmt.Errorf("a label has at most %d bytes", maxLabel)
		case l[0] == '-' || l[len(l)-1] == '-':
			return "", errors.New("a label neither begins nor ends with '-'")
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", errors.New("its last label is a number: an address has four decimal parts without zeros in front, and a name ends otherwise")
	}
	return n, nil
}

// odd says why a character stands in no name.
func odd(c byte) error {
	switch {
	case c == 0:
		return errors.New("NUL in a name")
	case c == '@':
		return errors.New("a user in front of a host")
	case c == '%':
		return errors.New("'%' in a name: nothing is decoded, and an address has no zone here")
	case c == ':':
		return errors.New("':' in a name: an IPv6 address stands in brackets")
	case c >= 0x80:
		return errors.New("not ASCII: write it as xn--…")
	}
	return fmt.Errorf("%q in a name", rune(c))
}

// numeric reports whether a resolver or a URL parser might read a name that ends in this label as
// an IPv4 address: inet_aton takes decimal, octal and hexadecimal, in one to four parts, and the
// URL standard decides by the last part alone ("ends in a number").
func numeric(label string) bool {
	if digits, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// clip bounds foreign text in an error.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

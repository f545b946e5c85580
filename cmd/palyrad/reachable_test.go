package main

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

// TestReachable: no device is told an address that is every host's, or this host's own if there is
// another.
func TestReachable(t *testing.T) {
	for _, c := range []struct {
		listen, route string
		all           []string
		want          string
	}{
		{"192.168.7.4:7445", "10.0.0.2", nil, "192.168.7.4:7445"},
		{"127.0.0.1:7445", "10.0.0.2", nil, "127.0.0.1:7445"},
		{"0.0.0.0:7445", "10.0.0.2", []string{"192.168.7.4/24"}, "10.0.0.2:7445"},
		{"[::]:7445", "10.0.0.2", nil, "10.0.0.2:7445"},
		{"[::]:7445", "2001:db8::7", nil, "[2001:db8::7]:7445"},
		{"0.0.0.0:7445", "2001:db8::7", []string{"127.0.0.1/8", "fe80::1/64", "2001:db8::7/64", "192.168.7.4/24"}, "192.168.7.4:7445"},
		{"0.0.0.0:7445", "127.0.0.1", []string{"192.168.7.4/24"}, "192.168.7.4:7445"},
		{"0.0.0.0:7445", "", []string{"127.0.0.1/8", "169.254.0.9/16"}, "127.0.0.1:7445"},
		{"[::]:7445", "", []string{"::1/128", "fe80::1/64"}, "[::1]:7445"},
	} {
		got := reachable(netip.MustParseAddrPort(c.listen), func() (netip.Addr, error) { return netip.ParseAddr(c.route) }, func() (list []net.Addr, _ error) {
			for _, a := range c.all {
				ip, n, err := net.ParseCIDR(a)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, &net.IPNet{IP: ip, Mask: n.Mask})
			}
			return list, errors.New("the rest can't be read")
		})
		if got.String() != c.want {
			t.Errorf("%s, with %q and %q: %s, want %s", c.listen, c.route, c.all, got, c.want)
		}
	}
}

package reach

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"palyra/call/egress"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// TestEdges looks at the first and last address of every range, and at their neighbours.
func TestEdges(t *testing.T) {
	in := func(a netip.Addr) bool {
		return slices.ContainsFunc(table[:], func(r Range) bool { return r.Prefix.Contains(a) })
	}
	for _, r := range table {
		if r.Prefix != r.Prefix.Masked() || r.Is == "" || r.Source == "" {
			t.Errorf("%v: malformed row", r)
		}
		first, end := r.Prefix.Addr(), last(r.Prefix)
		for _, a := range []netip.Addr{first, end} {
			var refused *Refused
			if err := Check(a); !errors.As(err, &refused) {
				t.Errorf("Check(%s) = %v, want %s", a, err, r.Prefix)
			}
		}
		for _, a := range []netip.Addr{first.Prev(), end.Next()} {
			if !a.IsValid() || in(a) || a.Is6() && !p("2000::/3").Contains(a) {
				continue
			}
			if err := Check(a); err != nil {
				t.Errorf("Check(%s) = %v beside %s, want nil", a, err, r.Prefix)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ addr, want string }{
		{"1.1.1.1", ""},
		{"9.255.255.255", ""},
		{"172.32.0.1", ""},
		{"2606:4700::1111", ""},
		{"2001:200::1", ""},
		{"64:ff9b::101:101", ""}, // NAT64 of a public address
		{"::ffff:1.1.1.1", ""},
		{"169.254.169.254", "metadata"},
		{"168.63.129.16", "Azure"},
		{"100.100.100.200", "carrier"},
		{"192.0.0.192", "for protocols"},
		{"fd00:ec2::254", "unique local"},
		{"0.0.0.0", "this host"},
		{"::", "unspecified"},
		{"::1", "loopback (::1/128"},
		{"::ffff:127.0.0.1", "loopback"},
		{"::ffff:169.254.169.254", "metadata"},
		{"::7f00:1", "carries 127.0.0.1"},
		{"::ffff:0:7f00:1", "carries 127.0.0.1"},
		{"64:ff9b::7f00:1", "carries 127.0.0.1"},
		{"64:ff9b::a9fe:a9fe", "carries 169.254.169.254"},
		{"64:ff9b:1::a00:1", "carries 10.0.0.1"},
		{"64:ff9b:1::101:101", "local NAT64"},
		{"64:ff9b:0:1::1", "no global unicast"},
		{"2002:7f00:1::1", "carries 127.0.0.1"},
		{"2002:101:101::1", "6to4"},
		{"2001:0:a00:1::", "carries 10.0.0.1"},
		{"2001:0:101:101::80ff:fffe", "carries 127.0.0.1"},
		{"2606:4700::5efe:7f00:1", "carries 127.0.0.1"},
		{"2606:4700::200:5efe:a00:1", "carries 10.0.0.1"},
		{"2606:4700::5efe:101:101", ""},
		{"2001:db8::1", "documentation"},
		{"2001:10::1", "ORCHID"},
		{"2001:1ff::1", "for protocols"},
		{"3fff::1", "documentation"},
		{"fe80::1", "link-local"},
		{"fe80::1%eth0", "zone"},
		{"2606:4700::1111%eth0", "zone"},
		{"fec0::1", "site-local"},
		{"ff02::1", "multicast"},
		{"4000::1", "no global unicast"},
		{"255.255.255.255", "broadcast"},
		{"240.0.0.1", "reserved"},
	} {
		err := Check(addr(c.addr))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check(%s) = %v, want %q", c.addr, err, c.want)
		}
	}
	if Check(netip.Addr{}) == nil {
		t.Error("Check takes the zero address")
	}
}

func TestPermit(t *testing.T) {
	rules, err := egress.ParseRules([]string{"db.example:5432", "10.1.0.0/16:5432", "127.0.0.1:8080", "[2002::/16]:443", "[64:ff9b::/96]:443",
		"0.0.0.0/8:443", "224.0.0.0/8:443", "[ff00::/8]:443", "[2001:db8::1]:443"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr string
		port uint16
		want bool
	}{
		{"10.1.2.3", 5432, true},
		{"::ffff:10.1.2.3", 5432, true},
		{"10.1.2.3", 443, false},
		{"10.2.2.3", 5432, false},
		{"127.0.0.1", 8080, true},
		{"127.0.0.2", 8080, false},
		{"1.1.1.1", 5432, true},
		{"0.0.0.0", 443, false},   // Never
		{"224.0.0.1", 443, false}, // Never
		{"ff02::1", 443, false},   // Never
		{"2002:101:101::1", 443, true},
		{"2002:a01:203::1", 443, false}, // the address inside has no rule with 443
		{"64:ff9b::a01:203", 443, false},
		{"64:ff9b::a01:203", 5432, true}, // the prefix needs none, the address inside has one
		{"198.18.0.1", 443, false},
		{"2001:db8::1", 443, true},
	} {
		if err := Permit(addr(c.addr), c.port, rules); (err == nil) != c.want {
			t.Errorf("Permit(%s, %d) = %v, want %v", c.addr, c.port, err, c.want)
		}
	}
	good, bad := addr("1.1.1.1"), addr("10.9.9.9")
	if err := PermitAll([]netip.Addr{good, bad, good}, 443, rules); err == nil {
		t.Error("one bad answer among good ones is taken")
	}
	if err := PermitAll([]netip.Addr{good, good}, 443, egress.Rules{}); err != nil {
		t.Error(err)
	}
	named := addr("10.1.2.3")
	for _, c := range []struct {
		addrs []netip.Addr
		port  uint16
		want  bool
	}{{[]netip.Addr{named, named}, 5432, true}, {[]netip.Addr{named, good}, 5433, false}, {[]netip.Addr{good}, 5433, false}, {[]netip.Addr{named}, 5433, false}, {[]netip.Addr{addr("1.1.1.1")}, 5432, false}, {[]netip.Addr{addr("0.0.0.0")}, 443, false}} {
		if err := NamedAll(c.addrs, c.port, rules); (err == nil) != c.want {
			t.Errorf("NamedAll(%v, %d) = %v, want %v", c.addrs, c.port, err, c.want)
		}
	}
}

// FuzzCheck holds Check to the predicates of net/netip, which know some of the ranges.
func FuzzCheck(f *testing.F) {
	for _, r := range table {
		f.Add(r.Prefix.Addr().AsSlice())
	}
	f.Add(addr("64:ff9b::7f00:1").AsSlice())
	f.Add(addr("2606:4700::5efe:7f00:1").AsSlice())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		local := func(a netip.Addr) bool {
			a = a.Unmap()
			return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || !a.IsGlobalUnicast()
		}
		err := Check(a)
		if err == nil && (local(a) || slices.ContainsFunc(carried(a.Unmap()), local)) {
			t.Errorf("Check(%s) = nil", a)
		}
		if a.Is4() && (err == nil) != (Check(netip.AddrFrom16(a.As16())) == nil) {
			t.Errorf("Check(%s) differs when it's IPv4-mapped", a)
		}
		if err == nil && Permit(a, 443, egress.Rules{}) != nil {
			t.Errorf("Permit(%s) refuses what Check takes", a)
		}
		var r *Refused
		if err != nil && (!errors.As(err, &r) || r.Error() == "") {
			t.Errorf("Check(%s) = %v", a, err)
		}
	})
}

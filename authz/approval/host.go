package approval

import (
	"fmt"
	"net/netip"
	"slices"

	"palyra/call/egress"
)

// private are networks whose hosts are this one, its neighbours or their services, and not the
// Internet's (RFC 1918, 1122, 3927, 6598, 4193, 4291). The card says so. What may be reached is
// isolate/egress/reach's to say, whose table is longer.
var private = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// host is a host that a call can reach, with what its spelling doesn't say loudly: that the rule is
// for many hosts, or for hosts that aren't the Internet's.
func host(rule string) string {
	text := shown(rule)
	r, err := egress.ParseRule(rule)
	if err != nil {
		return text + " (no rule that this Palyra can read)"
	}
	if name, below := r.Name(); below {
		return fmt.Sprintf("%s: ANY NAME below %s", text, Escape(name))
	} else if name != "" {
		return text
	}
	p, what := r.Prefix(), "an address"
	if !p.IsSingleIP() {
		what = "ANY ADDRESS of this network"
	}
	if slices.ContainsFunc(private, p.Overlaps) {
		what += ", PRIVATE: this host or its neighbours"
	}
	return text + ": " + what
}

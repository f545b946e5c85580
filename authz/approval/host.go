package approval

import (
	"fmt"

	"palyra/call/egress"
	"palyra/call/egress/reach"
)

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
	if r, ok := reach.Touches(p); ok {
		what += ", NOT THE INTERNET'S: " + r.Is
	}
	return text + ": " + what
}

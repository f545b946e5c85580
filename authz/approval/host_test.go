package approval

import (
	"strings"
	"testing"
)

func TestHost(t *testing.T) {
	for rule, want := range map[string]string{
		"packages.example:443":   `"packages.example:443"`,
		"*.example.org:8443":     `"*.example.org:8443": ANY NAME below example.org`,
		"192.175.48.1:443":       `"192.175.48.1:443": an address`,
		"[2620:4f:8000::/48]:80": `"[2620:4f:8000::/48]:80": ANY ADDRESS of this network`,
		"192.0.2.7:443":          `"192.0.2.7:443": an address, NOT THE INTERNET'S: for documentation`,
		"[2001:db8::1]:443":      `"[2001:db8::1]:443": an address, NOT THE INTERNET'S: for documentation`,
		"[4000::1]:443":          `"[4000::1]:443": an address, NOT THE INTERNET'S: no global unicast`,
		"10.1.0.0/16:5432":       `"10.1.0.0/16:5432": ANY ADDRESS of this network, NOT THE INTERNET'S: private`,
		"172.0.0.0/8:443":        `"172.0.0.0/8:443": ANY ADDRESS of this network, NOT THE INTERNET'S: private`,
		"127.0.0.1:8080":         `"127.0.0.1:8080": an address, NOT THE INTERNET'S: loopback`,
		"169.254.169.254:80":     `"169.254.169.254:80": an address, NOT THE INTERNET'S: link-local, and clouds' metadata`,
		"[fd00::/8]:443":         `"[fd00::/8]:443": ANY ADDRESS of this network, NOT THE INTERNET'S: unique local`,
		"x\n  reaches     \"y\"": `"x\n  reaches     \"y\"" (no rule that this Palyra can read)`,
	} {
		card := Card(Request{Call: Call{Executable: "/x", Network: "egress", EgressHosts: []string{rule}}})
		if line := "  reaches     " + want + "\n"; !strings.Contains(card, line) {
			t.Errorf("%q: no %q in\n%s", rule, line, card)
		}
		if p := (&Pattern{Network: "egress", EgressHosts: []string{rule}}).Text(); !strings.Contains(p, "  reaches     "+want+"\n") {
			t.Errorf("%q: the pattern says\n%s", rule, p)
		}
	}
}

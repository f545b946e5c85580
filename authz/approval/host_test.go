package approval

import (
	"strings"
	"testing"

	"palyra/call"
	"palyra/internal/canon"
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

// TestUseRow: the card says which secret goes where, and that the program can't read it.
func TestUseRow(t *testing.T) {
	record := canon.Sum([]byte("a record"))
	for use, want := range map[string]string{
		"TOKEN=vault://global/npm header:authorization GET,HEAD packages.example:443/simple/ revoke": `"vault://global/npm" version 3, which palyra-egress PUTS INTO GET,HEAD to ` +
			`"packages.example:443/simple/" ("header:authorization"), and the program CAN'T READ: it has a placeholder in TOKEN; record ` + record.String() + `; if the placeholder leaks, this version expires`,
		"T=vault://global/t query:key a.example:443 keep revoke": `"vault://global/t" version 3, which palyra-egress PUTS INTO all requests to "a.example:443" ("query:key"), ` +
			`and the program CAN'T READ: it has a placeholder in T; record ` + record.String() + `; the call's FILES MAY KEEP THE PLACEHOLDER; if the placeholder leaks, this version expires`,
		"K=vault://global/k query:key a.example:8443": `"vault://global/k" version 3, which palyra-egress PUTS INTO all requests to "a.example:8443" ("query:key"), ` +
			`and the program CAN'T READ: it has a placeholder in K; record ` + record.String(),
	} {
		card := Card(Request{Call: Call{Executable: "/x", Network: "egress", EgressInspect: []string{"GET a.example:443/v1"}, EgressSecrets: []call.EgressSecret{{Use: use, Version: 3, Record: record}}}})
		for _, line := range []string{"  uses        " + want + "\n", "  requests    \"GET a.example:443/v1\"; palyra-egress reads them, and refuses the host's others\n"} {
			if !strings.Contains(card, line) {
				t.Errorf("no %q in\n%s", line, card)
			}
		}
	}
}

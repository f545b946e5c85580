package account

import (
	"strings"
	"testing"

	"palyra/isolate/evidence"
)

// TestHostsAreShown: a receipt's connections and denials have a row each, in no other characters.
func TestHostsAreShown(t *testing.T) {
	var r Rows
	evidenceRows(&r, &evidence.Evidence{Network: evidence.Network{Mode: evidence.NetworkEgress}, Egress: evidence.Egress{
		Connections: []evidence.Connection{
			{Host: "packages.example", Port: 443, Address: "203.0.113.7", Outcome: evidence.ConnClosed, Sent: 5, Received: 7, TLS: "TLS 1.3", ServerName: "packages.example"},
			{Host: "b.example", Port: 22, Outcome: evidence.ConnRefused},
		},
		Denied: []evidence.Denial{{Host: "evil\x1b[2J\n  outcome", Port: 53, Why: evidence.DenyNotListed, Times: 3}},
	}})
	got := r.String()
	for _, want := range []string{
		`connected  "packages.example" port 443 at "203.0.113.7", closed, 5 bytes sent, 7 received, TLS 1.3 for "packages.example"` + "\n",
		`connected  "b.example" port 22, refused, 0 bytes sent, 0 received` + "\n",
		`(not_listed)", EgressDenied 3 times` + "\n",
		`network    TCP to its hosts, and UDP to the resolver for them; none other (QUIC) left the cell` + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\x1b") || strings.Count(got, "denied  ") != 1 || strings.Contains(got, "\n  outcome") {
		t.Errorf("a name forges a row:\n%q", got)
	}
}

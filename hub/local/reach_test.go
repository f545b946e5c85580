package local

import (
	"encoding/json"
	"slices"
	"testing"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/isolate/evidence"
)

// TestReached: calls add up by host, a denial has the rule that would allow it unless that is no
// one's to propose, and what goes beyond the bounds is said to be left out.
func TestReached(t *testing.T) {
	statement := func(e *evidence.Evidence, hosts ...string) *receipt.Statement {
		t.Helper()
		st := &receipt.Statement{PredicateType: receipt.ResultType}
		st.Predicate.Capsule.EgressHosts, st.Predicate.Capsule.Network = hosts, "egress"
		if e == nil {
			st.PredicateType = receipt.IntentType
			return st
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		st.Predicate.Evidence = b
		return st
	}
	one := &evidence.Evidence{Egress: evidence.Egress{
		Connections: []evidence.Connection{{Host: "a.example", Port: 443, Sent: 1, Received: 2}, {Host: "a.example", Port: 443, Sent: 3, Received: 4}},
		Denied: []evidence.Denial{{Host: "b.example", Port: 443, Why: evidence.DenyNotListed, Times: 2}, {Host: "169.254.169.254", Port: 80, Why: evidence.DenyNotListed, Times: 1},
			{Host: "a.example", Port: 443, Why: evidence.DenyRequest, Times: 1}},
	}}
	var s hub.SessionReach
	for i, st := range []*receipt.Statement{statement(nil, "a.example:443"), statement(one, "a.example:443"), statement(one, "0.example:443")} {
		if reached(&s, st, uint64(9-i)) {
			t.Error("something is left out")
		}
	}
	if s.Calls != 3 || s.Open != 1 || !slices.Equal(s.May, []string{"0.example:443", "a.example:443"}) || !slices.Equal(s.Networks, []string{"egress"}) {
		t.Errorf("%+v", s)
	}
	if want := []hub.HostReached{{Host: "a.example", Port: 443, Connections: 4, Sent: 8, Received: 12, Entry: 8}}; !slices.Equal(s.Connected, want) {
		t.Errorf("connected: %+v", s.Connected)
	}
	if want := []hub.HostDenied{{Host: "b.example", Port: 443, Why: evidence.DenyNotListed, Times: 4, Entry: 8, Rule: "b.example:443"},
		{Host: "169.254.169.254", Port: 80, Why: evidence.DenyForbidden, Times: 2, Entry: 8},
		{Host: "a.example", Port: 443, Why: evidence.DenyRequest, Times: 2, Entry: 8}}; !slices.Equal(s.Denied, want) {
		t.Errorf("denied: %+v", s.Denied)
	}
	many := new(evidence.Evidence)
	for i := range reachHosts + 1 {
		many.Egress.Connections = append(many.Egress.Connections, evidence.Connection{Host: "a.example", Port: uint32(i + 1)})
	}
	s = hub.SessionReach{}
	if !reached(&s, statement(many), 1) || len(s.Connected) != reachHosts {
		t.Errorf("%d hosts", len(s.Connected))
	}
}

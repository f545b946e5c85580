package kernel

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// hostly proposes a call of /bin/true with hosts.
func hostly(hosts ...string) *Proposal {
	p := proposal("/bin/true")
	p.EgressHosts = hosts
	return p
}

// TestHostsAreSealed: whatever spelling and order they were asked for in, the capsule has one, and
// the runner is told the network, the addresses and how many sockets.
func TestHostsAreSealed(t *testing.T) {
	var ids []string
	for _, hosts := range [][]string{
		{"Packages.example", "*.CDN.example:443", "[2001:DB8::1]:8443", "10.1.0.0/16:5432", "192.0.2.70:22", "192.0.2.7:22", "127.0.0.1:80"},
		{"192.0.2.70:22", "127.0.0.1:80", "*.cdn.example.:443", "packages.example:443", "packages.example:443", "10.1.0.0/16:5432", "[2001:db8::1]:8443", "192.0.2.7:22"},
	} {
		p := hostly(hosts...)
		p.Network = []string{isolate.NetworkFresh, isolate.NetworkLoopback}[len(ids)]
		s, err := seal(t.Context(), p, nil, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if want := []string{"*.cdn.example:443", "10.1.0.0/16:5432", "127.0.0.1:80", "192.0.2.70:22", "192.0.2.7:22", "[2001:db8::1]:8443", "packages.example:443"}; !slices.Equal(s.capsule.EgressHosts, want) {
			t.Errorf("the capsule has %q, want %q", s.capsule.EgressHosts, want)
		}
		want := &isolate.Egress{Addresses: []string{"192.0.2.7", "192.0.2.70", "2001:db8::1"}, Sockets: fixedSockets + suffixSockets + 5}
		if x := s.spec(); x.Network != isolate.NetworkEgress || !reflect.DeepEqual(x.Egress, want) || isolate.CheckEgress(tier.C, x.Network, x.Egress) != nil {
			t.Errorf("the runner is told %q, %+v, want %+v", x.Network, x.Egress, want)
		}
		if !slices.Contains(capabilities(s.capsule), policy.CapNetwork) {
			t.Error("policy isn't told of the network")
		}
		ids = append(ids, s.id.String())
	}
	if ids[0] != ids[1] {
		t.Error("two spellings of the same hosts are two calls")
	}
	s, err := seal(t.Context(), proposal("/bin/true"), nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if x := s.spec(); x.Egress != nil || x.Network != isolate.NetworkFresh || slices.Contains(capabilities(s.capsule), policy.CapNetwork) {
		t.Errorf("a call without hosts: %+v", x)
	}
}

// TestManyHosts: the sockets of a call are bounded, whatever it names.
func TestManyHosts(t *testing.T) {
	var hosts []string
	for i := range 64 {
		hosts = append(hosts, fmt.Sprintf("*.x%d.example", i))
	}
	s, err := seal(t.Context(), hostly(hosts...), nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if x := s.spec(); isolate.CheckEgress(tier.C, x.Network, x.Egress) != nil || x.Egress.Sockets != isolate.MaxEgressSockets {
		t.Errorf("%+v", x.Egress)
	}
	if _, err := seal(t.Context(), hostly(append(hosts, "one.more.example")...), nil, "", nil); fault.KindOf(err) != fault.Usage {
		t.Errorf("one more: %v", err)
	}
}

func TestHostsRefused(t *testing.T) {
	for name, change := range map[string]func(*Proposal){
		"a URL":                 func(p *Proposal) { p.EgressHosts = []string{"https://a.example/"} },
		"no host":               func(p *Proposal) { p.EgressHosts = []string{""} },
		"another name in front": func(p *Proposal) { p.EgressHosts = []string{"evil.example\x00.a.example:443"} },
		"user info":             func(p *Proposal) { p.EgressHosts = []string{"a.example@evil.example:443"} },
		"an odd address":        func(p *Proposal) { p.EgressHosts = []string{"0x7f.1:80"} },
		"all names":             func(p *Proposal) { p.EgressHosts = []string{"*:443"} },
		"the cell's own":        func(p *Proposal) { p.EgressHosts = []string{"198.18.0.1:53"} },
		"tier b":                func(p *Proposal) { p.TierFloor = tier.B },
		"the session's network": func(p *Proposal) { p.Network, p.SessionID = isolate.NetworkSession, "s" },
		"the void network":      func(p *Proposal) { p.Network = isolate.NetworkVoid },
		"no hosts":              func(p *Proposal) { p.EgressHosts, p.Network = nil, isolate.NetworkEgress },
		"the host's network":    func(p *Proposal) { p.Network = isolate.NetworkHost },
		"requests there":        func(p *Proposal) { p.Network, p.EgressInspect = isolate.NetworkPreflight, []string{"a.example:443"} },
		"secrets there": func(p *Proposal) {
			p.Network, p.EgressSecrets = isolate.NetworkPreflight, []string{"T=vault://global/t header:authorization a.example"}
		},
		"any name looked up": func(p *Proposal) { p.Network, p.EgressHosts = isolate.NetworkPreflight, []string{"*.a.example:443"} },
		"a bound there": func(p *Proposal) {
			p.Network, p.EgressHosts = isolate.NetworkPreflight, []string{"a.example:443 sent:1MiB"}
		},
		"no name looked up": func(p *Proposal) { p.Network, p.EgressHosts = isolate.NetworkPreflight, nil },
		"looked up at b":    func(p *Proposal) { p.Network, p.TierFloor = isolate.NetworkPreflight, tier.B },
	} {
		p := hostly("a.example:443")
		change(p)
		s, err := seal(t.Context(), p, nil, "", nil)
		if err == nil {
			s.close()
		}
		if fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostsNeedBroker: without palyra-egress a call with hosts is refused before a person is asked,
// and its receipt says which it named; one that policy denies is denied.
func TestHostsNeedBroker(t *testing.T) {
	h := openHouse(t, Config{Approver: unasked{t}})
	o := h.call(hostly("a.example"), IO{})
	if o.Outcome != receipt.Refused || o.Error == nil || o.Error.Reason != "egress_lost" || !strings.Contains(o.Error.Hint, "palyra-egress") || o.Intent != nil || o.Approval != nil {
		t.Errorf("%s, %+v", o.Outcome, o.Error)
	}
	if p := h.verify(o).Statement.Predicate; !slices.Equal(p.Capsule.EgressHosts, []string{"a.example:443"}) || p.Capsule.Network != isolate.NetworkEgress {
		t.Errorf("the receipt says %+v", p.Capsule)
	}
	denied := hostly("a.example")
	denied.Argv = []string{"/bin/sh"}
	if o := h.call(denied, IO{}); o.Outcome != receipt.Denied {
		t.Errorf("a shell: %s", o.Outcome)
	}
}

// unasked is an approver whom no call may reach.
type unasked struct{ t *testing.T }

func (a unasked) Ask(context.Context, approval.Request) (approval.Answer, error) {
	a.t.Error("a person was asked")
	return approval.Answer{}, nil
}

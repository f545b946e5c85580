package serve

import (
	"testing"

	"palyra/isolate"
	"palyra/isolate/tier"
)

// TestSocketsFor: every cell shows the host's /usr, where a daemon may listen, with or without
// a workspace. Unix sockets are allowed only if Landlock confines them.
func TestSocketsFor(t *testing.T) {
	workspace := &isolate.Mount{Source: "/somewhere"}
	for _, c := range []struct {
		tier tier.Tier
		abi  int
		spec isolate.Spec
		want sockets
	}{
		{tier.C, unixABI - 1, isolate.Spec{}, innerSockets},
		{tier.C, unixABI - 1, isolate.Spec{Workspace: workspace}, innerSockets},
		{tier.C, unixABI, isolate.Spec{}, allSockets},
		{tier.C, unixABI, isolate.Spec{Workspace: workspace}, allSockets},
		{tier.C, unixABI, isolate.Spec{Network: isolate.NetworkVoid}, noSockets},
		{tier.C, 1, isolate.Spec{Network: isolate.NetworkVoid}, noSockets},
		{tier.C, 1, isolate.Spec{Network: isolate.NetworkLoopback}, netSockets},
		{tier.B, unixABI, isolate.Spec{}, innerSockets},
	} {
		s := &server{tier: c.tier, abi: c.abi}
		if got := s.socketsFor(&c.spec); got != c.want {
			t.Errorf("tier %v, ABI %d, workspace %v, network %q: sockets %d, want %d", c.tier, c.abi, c.spec.Workspace != nil, c.spec.Network, got, c.want)
		}
	}
}

// TestFilterOptions: sockets of the Internet's families are for the loopback network alone, and
// unix sockets there, too, only where Landlock confines them.
func TestFilterOptions(t *testing.T) {
	for _, c := range []struct {
		sockets           sockets
		abi               int
		inet, unix, pairs bool
	}{
		{noSockets, unixABI, false, false, false},
		{innerSockets, unixABI, false, false, true},
		{allSockets, unixABI, false, true, true},
		{netSockets, unixABI, true, true, true},
		{netSockets, unixABI - 1, true, false, true},
	} {
		s := &server{tier: tier.C, abi: c.abi, ownsIPC: func() bool { return true }}
		if o := s.filterOptions(filterKind{sockets: c.sockets}); o.AllowInet != c.inet || o.AllowUnix != c.unix || o.NoPair == c.pairs {
			t.Errorf("sockets %d, ABI %d: %+v", c.sockets, c.abi, o)
		}
	}
}

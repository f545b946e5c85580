package serve

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
)

// TestCheckNetwork: the gate opens for a network with egress that has exactly the ordered addresses.
func TestCheckNetwork(t *testing.T) {
	want := []string{"192.0.2.7", "198.18.0.0/15", "fd70:616c:7972::/64"}
	good := func() evidence.Network {
		none := int64(0)
		return evidence.Network{Mode: evidence.NetworkEgress, Interfaces: []string{"lo"}, Routes: &none,
			Addresses: []string{"127.0.0.1", "192.0.2.7", "198.18.0.0/15", "::1", "fd70:616c:7972::/64"}}
	}
	for name, c := range map[string]struct {
		change func(*evidence.Network)
		open   bool
	}{
		"as ordered":        {func(*evidence.Network) {}, true},
		"another address":   {func(n *evidence.Network) { n.Addresses = append(n.Addresses, "10.0.0.1") }, false},
		"a missing one":     {func(n *evidence.Network) { n.Addresses = slices.Delete(n.Addresses, 2, 3) }, false},
		"lo is down":        {func(n *evidence.Network) { n.Addresses = slices.Delete(n.Addresses, 0, 1) }, false},
		"another device":    {func(n *evidence.Network) { n.Interfaces = []string{"lo", "eth0"} }, false},
		"a route leads out": {func(n *evidence.Network) { *n.Routes = 1 }, false},
		"routes not read":   {func(n *evidence.Network) { n.Routes = nil }, false},
		"a loopback cell's": {func(n *evidence.Network) {
			n.Mode, n.Addresses = evidence.NetworkLoopback, []string{"127.0.0.1", "::1"}
		}, true},
	} {
		n := good()
		c.change(&n)
		if err := checkNetwork(&n, want); (err == nil) != c.open {
			t.Errorf("%s: %v, want it open: %t", name, err, c.open)
		}
	}
}

const egressEnv = "PALYRA_TEST_EGRESS_NETWORK"

// TestEgressNetwork makes such a network as palyra-cell does, in a process of its own, and has the
// kernel's tables read as the gate does.
func TestEgressNetwork(t *testing.T) {
	if os.Getenv(egressEnv) != "" {
		inEgressNetwork(t)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestEgressNetwork$", "-test.v")
	cmd.Env = append(os.Environ(), egressEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(err.Error(), "fork/exec") {
		t.Skip("needs user namespaces: ", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestEgressNetwork") {
		t.Errorf("%v\n%s", err, out)
	}
}

func inEgressNetwork(t *testing.T) {
	if err := sys.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	six, err := sys.HasIPv6()
	if err != nil {
		t.Fatal(err)
	}
	local := egressPrefixes(&isolate.Egress{Addresses: []string{"192.0.2.7", "2001:db8::7"}}, six)
	if err := sys.AddLocal(local); err != nil {
		t.Fatal(err)
	}
	if err := sys.AddLocal(local[:1]); err == nil {
		t.Error("a route was added twice")
	}
	// One without any meaning to the kernel is an error by its name.
	if err := sys.AddLocal([]netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}); err == nil || !strings.Contains(err.Error(), "192.0.2.9/24") {
		t.Errorf("a network with bits beyond its length: %v, want an error", err)
	}
	r, err := evidence.NewReader("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var e evidence.Evidence
	if err := r.ReadNetwork(&e, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, p := range local {
		want = append(want, localText(p))
	}
	slices.Sort(want)
	e.Network.Mode = evidence.NetworkEgress
	if err := checkNetwork(&e.Network, want); err != nil {
		t.Errorf("%v: %+v", err, e.Network)
	}
	if err := checkNetwork(&e.Network, want[1:]); err == nil {
		t.Errorf("an address that wasn't ordered passes: %+v", e.Network)
	}
}

package isolatetest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// testHostNetwork runs programs in the host's network, and holds to what is confined there all the
// same.
func testHostNetwork(t *testing.T, h *harness) {
	networks := []string{isolate.NetworkHost, isolate.NetworkPreflight}
	in := func(network, script string) *call {
		c := h.program(t, "/bin/bash", "bash", "-c", script)
		c.spec.Network, c.spec.Session, c.spec.Egress = network, "", nil
		if network == isolate.NetworkPreflight {
			c.spec.Ports = []uint16{443}
		}
		return c
	}
	if h.sub.Tier != tier.C {
		for _, network := range networks {
			if o := in(network, "echo ran").run(); fault.KindOf(o.err) != fault.Usage || o.stdout != "" {
				t.Errorf("network %s at tier %v: %s, %v; want a refusal", network, h.sub.Tier, o, o.err)
			}
		}
		return
	}
	for name, mend := range map[string]func(*isolate.Spec){
		"no ports":      func(s *isolate.Spec) { s.Ports = nil },
		"a port twice":  func(s *isolate.Spec) { s.Ports = []uint16{443, 443} },
		"ports of none": func(s *isolate.Spec) { s.Network = isolate.NetworkHost },
	} {
		c := in(isolate.NetworkPreflight, "echo ran")
		mend(c.spec)
		if o := c.run(); fault.ReasonOf(o.err) != "invalid_input" || o.stdout != "" {
			t.Errorf("%s: %s, %v; want invalid_input", name, o, o.err)
		}
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "heard")
			c.Close()
		}
	}()
	port := tcp.Addr().(*net.TCPAddr).Port
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	resolver, _ := os.ReadFile("/etc/resolv.conf")
	script := fmt.Sprintf(`readlink /proc/self/ns/net; (head -1 </dev/tcp/127.0.0.1/%d) 2>&1 | sed 's/.*: //' | tail -1; cat /etc/resolv.conf`, port)
	for _, x := range []struct {
		network string
		ports   []uint16
		heard   bool
		says    string
	}{
		{isolate.NetworkHost, nil, true, "network: the host's, and nothing is enforced"},
		{isolate.NetworkPreflight, []uint16{uint16(port)}, true, "names were checked before the start only"},
		{isolate.NetworkPreflight, []uint16{uint16(port) - 1}, false, "names were checked before the start only"},
	} {
		c := in(x.network, script)
		c.spec.Ports = x.ports
		o := c.run()
		if fault.ReasonOf(o.err) == "network_namespace" && !leads(t) {
			t.Skip("host control missing: a network that leads somewhere")
		}
		o.exited(t, 0)
		e := o.res.Evidence
		lines := strings.SplitN(o.stdout, "\n", 3)
		heard := "heard"
		if !x.heard && e.Landlock.HandledNet != 0 {
			heard = "Permission denied"
		}
		if len(lines) != 3 || lines[0] != own || lines[1] != heard || lines[2] != string(resolver) {
			t.Errorf("%s, ports %v: printed %q; want %s, %q and the host's %s", x.network, x.ports, o.stdout, own, heard, "/etc/resolv.conf")
		}
		if e.Network.Mode != x.network || e.Network.Routes == nil || *e.Network.Routes == 0 || len(e.Network.Interfaces) != 0 ||
			e.Namespaces.Cell["net"] != e.Namespaces.Host["net"] || slices.Contains(e.Namespaces.Fresh, "net") {
			t.Errorf("%s: evidence %+v, namespaces %v, fresh %v", x.network, e.Network, e.Namespaces.Cell, e.Namespaces.Fresh)
		}
		if strings.Contains(e.Executor, "sandbox") || !slices.ContainsFunc(e.Degraded, func(d string) bool { return strings.Contains(d, x.says) }) {
			t.Errorf("%s: executor %q, degraded %q", x.network, e.Executor, e.Degraded)
		}
		if rule := fmt.Sprintf("connect %d", port); slices.Contains(e.Landlock.Rules, rule) != (x.heard && x.network == isolate.NetworkPreflight && e.Landlock.HandledNet != 0) {
			t.Errorf("%s: rules %q", x.network, e.Landlock.Rules)
		}
	}
	// The next call has a network of its own again.
	o := h.shell(t, "readlink /proc/self/ns/net").run()
	o.exited(t, 0)
	if strings.TrimSpace(o.stdout) == own || strings.Contains(o.res.Evidence.Executor, "host") {
		t.Errorf("a later call is in %q of the host, by %s", o.stdout, o.res.Evidence.Executor)
	}
}

// leads reports whether an interface but lo is up here.
func leads(t *testing.T) bool {
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(i net.Interface) bool { return i.Name != evidence.Loopback && i.Flags&net.FlagUp != 0 })
}

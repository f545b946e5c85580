package isolatetest

import (
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// testNetwork looks at the network from inside, twice, and holds the evidence to
// what it sees.
func testNetwork(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C {
		c := h.shell(t, "echo ran")
		c.spec.Network = isolate.NetworkVoid
		if o := c.run(); fault.KindOf(o.err) != fault.Usage || o.stdout != "" {
			t.Errorf("the void network at tier %v: %s, %v; want a refusal", h.sub.Tier, o, o.err)
		}
		return
	}
	bad := h.shell(t, "echo ran")
	bad.spec.Network = "host"
	if o := bad.run(); fault.ReasonOf(o.err) != "invalid_input" || o.stdout != "" {
		t.Errorf("network %q: %s, %v; want a refusal", "host", o, o.err)
	}
	var ids []uint64
	for range 2 {
		// bash connects by itself; the two files show what other calls would.
		o := h.program(t, "/bin/bash", "bash", "-c", `
			(exec 3<>/dev/tcp/127.0.0.1/1) 2>&1 | sed 's/.*: //'
			grep -c : /proc/self/net/dev; wc -l </proc/self/net/unix; readlink /proc/self/ns/net`).run()
		o.exited(t, 0)
		lines := strings.Split(o.stdout, "\n")
		if len(lines) < 4 {
			t.Fatalf("stdout %q", o.stdout)
		}
		e := o.res.Evidence
		// No program has a use for a socket of the Internet's families here, so there are none.
		const connect = "Address family not supported by protocol"
		mode := []string{evidence.NetworkFresh, evidence.NetworkPooled}
		if h.sub.Network == isolate.NetworkVoid {
			mode = []string{evidence.NetworkVoid}
		}
		if lines[0] != connect || lines[2] != "1" {
			t.Errorf("connect says %q, want %q; %s lines of sockets, want the heading", lines[0], connect, lines[2])
		}
		if !slices.Contains(mode, e.Network.Mode) || e.Network.Basis != evidence.Observed {
			t.Errorf("evidence %+v, want one of %q", e.Network, mode)
		}
		ids = append(ids, e.Namespaces.Cell["net"])
	}
	// Elsewhere the number of the first may be free again.
	if h.sub.Network == isolate.NetworkVoid && ids[0] != ids[1] {
		t.Errorf("two calls of the void network are in the namespaces %v", ids)
	}
}

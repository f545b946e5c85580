package isolatetest

import (
	"os"
	"slices"
	"strings"
	"syscall"
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
		for _, network := range []string{isolate.NetworkVoid, isolate.NetworkLoopback, isolate.NetworkSession} {
			c := h.shell(t, "echo ran")
			c.spec.Network = network
			if o := c.run(); fault.KindOf(o.err) != fault.Usage || o.stdout != "" {
				t.Errorf("the %s network at tier %v: %s, %v; want a refusal", network, h.sub.Tier, o, o.err)
			}
		}
		return
	}
	bad := h.shell(t, "echo ran")
	bad.spec.Network = "none"
	if o := bad.run(); fault.ReasonOf(o.err) != "invalid_input" || o.stdout != "" {
		t.Errorf("network %q: %s, %v; want a refusal", "none", o, o.err)
	}
	if isolate.Connects(h.sub.Network) {
		testHostSockets(t, h)
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
		connect := "Address family not supported by protocol"
		mode := []string{evidence.NetworkFresh, evidence.NetworkPooled}
		switch h.sub.Network {
		case isolate.NetworkVoid:
			mode = []string{evidence.NetworkVoid}
		case isolate.NetworkLoopback, isolate.NetworkSession, isolate.NetworkEgress: // no program listens there
			connect, mode = "Connection refused", []string{h.sub.Network} // which evidence calls the same
			n := e.Network
			if !slices.Equal(n.Interfaces, []string{"lo"}) || !slices.Contains(n.Addresses, "127.0.0.1") || n.Routes == nil || *n.Routes != 0 || e.Landlock.HandledNet != 0 {
				t.Errorf("evidence %+v, ports %#x; want lo alone with its address, and all ports", n, e.Landlock.HandledNet)
			}
		}
		if !strings.HasSuffix(lines[0], connect) || lines[2] != "1" {
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

// testHostSockets: a socket of the host that a program could connect or listen with is no standard
// stream in a cell whose filter lets it.
func testHostSockets(t *testing.T, h *harness) {
	for _, s := range []struct {
		name         string
		family, kind int
		pair, runs   bool
	}{
		{"TCP", syscall.AF_INET, syscall.SOCK_STREAM, false, false},
		{"UDP over IPv6", syscall.AF_INET6, syscall.SOCK_DGRAM, false, false},
		{"unix, not connected", syscall.AF_UNIX, syscall.SOCK_STREAM, false, false},
		{"unix datagrams", syscall.AF_UNIX, syscall.SOCK_DGRAM, true, false},
		{"unix, connected", syscall.AF_UNIX, syscall.SOCK_STREAM, true, true},
	} {
		fds := [2]int{-1, -1}
		var err error
		if s.pair {
			fds, err = syscall.Socketpair(s.family, s.kind|syscall.SOCK_CLOEXEC, 0)
		} else {
			fds[0], err = syscall.Socket(s.family, s.kind|syscall.SOCK_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		f := os.NewFile(uintptr(fds[0]), s.name)
		c := h.shell(t, "echo ran")
		c.spec.Stdin, c.files.Stdin = "stream", f
		o := c.run()
		if ran := o.err == nil && o.stdout == "ran\n"; ran != s.runs || !ran && fault.ReasonOf(o.err) != "invalid_input" {
			t.Errorf("standard input is a socket, %s: %s, %v; want it to run: %t", s.name, o, o.err, s.runs)
		}
		f.Close()
		syscall.Close(fds[1])
	}
}

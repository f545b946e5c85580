package serve

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

// networks are the network namespaces that cells don't make themselves.
//
// Cloning threads enter the void namespace once and for ever, so that a cell cloned without a
// new one inherits it. Only calls whose filter forbids all sockets get it (filterFor). Without
// sockets no program can change the namespace's table or move its counters.
type networks struct {
	mu   sync.Mutex
	void network // guarded by mu; set once
}

func (n *networks) voidID() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.void.id
}

// enterVoid moves the thread into the void namespace. The first caller makes it.
func (t *thread) enterVoid() error {
	if t.void {
		return nil
	}
	n := &t.s.nets
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.void.file != nil {
		if err := sys.EnterNetwork(n.void.file); err != nil {
			return refuse("network_namespace", "enter the void network namespace", err)
		}
		t.void = true
		return nil
	}
	const op = "make the void network namespace"
	if err := sys.UnshareNetwork(); err != nil {
		return refuse("network_namespace", op, err)
	}
	up, err := sys.InterfacesUp()
	if err != nil {
		return refuse("network_namespace", op, err)
	}
	if len(up) > 0 {
		return refuse("network_namespace", op, fmt.Errorf("%s is up in a new one", strings.Join(up, ", ")))
	}
	f, id, err := sys.Network()
	if err != nil {
		return refuse("network_namespace", op, err)
	}
	n.void = network{f, id}
	t.void = true
	return nil
}

// network is a network namespace made before its cell. Its zero value is none.
type network struct {
	file *os.File
	id   uint64 // inode number
}

func (n *network) close() {
	if n.file != nil {
		n.file.Close()
		n.file = nil
	}
}

// network chooses the call's namespace and prepares the thread for it. It runs on the thread
// right before the clone; the caller must call back right after it.
func (r *run) network(t *thread) (back func() error, err error) {
	stay := func() error { return nil }
	if r.s.tier != tier.C {
		return stay, nil
	}
	r.ns = native.SharedNetwork
	if r.spec.Network == isolate.NetworkVoid {
		if err := t.enterVoid(); err != nil {
			return nil, err
		}
		r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkVoid}
		r.net.id = r.s.nets.voidID()
		return stay, nil
	}
	if r.spec.Network == isolate.NetworkLoopback { // its interface is set up by the tape
		r.ns = native.Namespaces
		r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkLoopback}
		return stay, nil
	}
	if r.spec.Network == isolate.NetworkSession {
		return r.joinSession(t)
	}
	if r.spec.Network == isolate.NetworkEgress {
		return r.makeEgress(t)
	}
	if isolate.AllowsHostNetwork(r.spec.Network) {
		return stay, r.shareHost(t)
	}
	if r.net.file == nil {
		r.net = r.s.pool.network()
	}
	if r.net.file == nil || t.enterVoid() != nil { // without the void one there is no way back
		r.net.close()
		r.net.id = 0
		r.ns = native.Namespaces
		r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkFresh}
		return stay, nil
	}
	if err := sys.EnterNetwork(r.net.file); err != nil {
		return nil, refuse("network_namespace", "enter a network namespace that was made ahead", err)
	}
	r.net.close() // only the cell keeps it alive now
	r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkPooled}
	return t.leaveNetwork, nil
}

// leaveNetwork moves the thread back into the void namespace.
func (t *thread) leaveNetwork() error {
	t.void = false
	if err := t.enterVoid(); err != nil {
		return refuse("network_namespace", "leave the network namespace of a cell", err)
	}
	return nil
}

// checkNamespaces refuses a cell that shares a namespace with palyra-cell that it should have
// for itself, or whose network isn't the intended one: net, if that isn't 0, else a new one.
func checkNamespaces(e *evidence.Evidence, own map[string]uint64, net, void uint64) error {
	host := e.Network.Mode == evidence.NetworkHost || e.Network.Mode == evidence.NetworkPreflight
	for kind, id := range own {
		got := e.Namespaces.Cell[kind]
		if got == 0 || got == id && !(host && kind == "net") {
			return fmt.Errorf("the %s namespace is not its own", kind)
		}
	}
	got := e.Namespaces.Cell["net"]
	if host && (got != own["net"] || net != own["net"]) {
		return errors.New("the network namespace isn't palyra-cell's own, as was meant")
	}
	made := e.Network.Mode == evidence.NetworkFresh || e.Network.Mode == evidence.NetworkLoopback // with the cell
	if e.Network.Mode == "" || got == 0 || net != 0 && got != net || net == 0 && !made ||
		(e.Network.Mode == evidence.NetworkVoid) != (got == void) {
		return errors.New("the network namespace is another one than was meant")
	}
	return nil
}

// checkNetwork refuses a cell in which the loopback interface should be up and isn't, or isn't all.
// egress are the other addresses that it has, sorted.
func checkNetwork(n *evidence.Network, egress []string) error {
	switch {
	case n.Mode != evidence.NetworkLoopback && n.Mode != evidence.NetworkSession && n.Mode != evidence.NetworkEgress:
		return nil
	case len(n.Interfaces) != 1 || n.Interfaces[0] != evidence.Loopback:
		return fmt.Errorf("its interfaces are %q", n.Interfaces)
	case !slices.Contains(n.Addresses, "127.0.0.1"):
		return fmt.Errorf("its addresses are %q", n.Addresses)
	case n.Mode == evidence.NetworkEgress && !slices.Equal(slices.DeleteFunc(slices.Clone(n.Addresses), ownAddress), egress):
		return fmt.Errorf("its addresses are %q, want those of a loopback interface and %q", n.Addresses, egress)
	case n.Routes == nil || *n.Routes != 0:
		return errors.New("a route leads out of it")
	}
	return nil
}

// ownAddress reports whether every loopback interface that is up has an address.
func ownAddress(a string) bool { return a == "127.0.0.1" || a == "::1" }

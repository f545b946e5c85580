package cell

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

// networks are the network namespaces that cells do not make themselves. It is
// used on the launcher thread only.
//
// The void namespace is the thread's own, entered once and for ever, so that a
// cell which is cloned without a new one inherits it. Only calls whose filter
// lets them make no socket at all do (filterFor): what is left of a network
// namespace without sockets is a table that nobody can change and counters that
// nobody can move.
type networks struct {
	void   *os.File // nil until the thread is in it
	voidID uint64   // its inode number
}

// enterVoid moves the launcher thread into the void namespace.
func (n *networks) enterVoid() error {
	if n.void != nil {
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
	n.void, n.voidID = f, id
	return nil
}

// network says which namespace the call gets, and prepares the thread for it.
// It runs on the launcher thread right before the clone.
func (r *run) network() error {
	if r.s.tier != tier.C {
		return nil
	}
	if r.spec.Network == isolate.NetworkVoid {
		if err := r.s.nets.enterVoid(); err != nil {
			return err
		}
		r.ns = native.SharedNetwork
		r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkVoid}
		r.voidID = r.s.nets.voidID
		return nil
	}
	r.ns = native.Namespaces
	r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: evidence.NetworkFresh}
	r.voidID = r.s.nets.voidID
	return nil
}

// checkNamespaces refuses a cell that shares with palyra-cell what it should have
// for itself, or with others what is not the void network.
func checkNamespaces(e *evidence.Evidence, own map[string]uint64, voidID uint64) error {
	for kind, id := range own {
		got := e.Namespaces.Cell[kind]
		if got == 0 || got == id {
			return fmt.Errorf("the %s namespace is not its own", kind)
		}
	}
	switch net := e.Namespaces.Cell["net"]; {
	case (e.Network.Mode == evidence.NetworkVoid) != (net == voidID):
		return errors.New("the network namespace is another one than was meant")
	case net == 0:
		return errors.New("the network namespace is unknown")
	}
	return nil
}

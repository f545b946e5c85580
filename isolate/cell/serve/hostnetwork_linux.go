package serve

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
	"palyra/isolate/native/landlock"
)

// A cell in the host's network (isolate.NetworkHost, NetworkPreflight) has all of a cell but a
// network namespace of its own: files, processes, IPC, limits and privileges are confined as
// elsewhere.
//
//   - Sockets: those of a loopback cell, by the same filter, which refuses fast open besides
//     (seccomp.Options.NoFastOpen). Raw, packet, netlink and other sockets don't exist here either.
//   - Abstract unix sockets are in the network namespace. Landlock's scope keeps the program from the
//     host's, and where it lacks ABI 9 the filter refuses all but connected pairs.
//   - The host's variables of its network (tcp_rmem and others) are root's there. Its own user
//     namespace gives the program no capability over it. sysfs isn't mounted.
//   - /proc/net shows the connections of the host.
//   - Connections without a descriptor can't be told from the host's, so samples don't count them.
//
// The namespace must be palyra-cell's own. A thread that has left that can't come back without
// privileges over it, so one thread stays there and clones these cells alone.

// newHostLauncher starts that thread. It enters the template before it clones.
func (s *server) newHostLauncher() (*launcher, error) {
	l, err := s.newLauncher(func() error { return nil })
	if err != nil {
		return nil, refuse("cell_start", "start a thread in the host's network", err)
	}
	l.home = false
	return l, nil
}

const hostOp = "share the host's network"

// shareHost checks that palyra-cell's own network is one that leads somewhere. A service manager
// may have given it an empty one (PrivateNetwork=), which evidence mustn't call the host's.
func (r *run) shareHost(t *thread) error {
	if t.void {
		return refuse("network_namespace", hostOp, errors.New("internal error: the thread has left it"))
	}
	f, id, err := sys.Network()
	if err != nil {
		return refuse("network_namespace", hostOp, err)
	}
	f.Close()
	up, err := sys.InterfacesUp()
	if err != nil {
		return refuse("network_namespace", hostOp, err)
	}
	if !slices.ContainsFunc(up, func(name string) bool { return name != evidence.Loopback }) {
		return refuse("network_namespace", hostOp, errors.New("no interface but lo is up in palyra-cell's: it isn't the host's, or leads nowhere")).
			WithHint("palyra-cell.service has PrivateNetwork=yes; palyra exec and a user's own palyrad have the host's network")
	}
	r.net.id = id
	mode := evidence.NetworkHost
	if r.spec.Network == isolate.NetworkPreflight {
		mode = evidence.NetworkPreflight
	}
	r.ev.Network = evidence.Network{Basis: evidence.Observed, Mode: mode}
	return nil
}

// resolverFile is where programs look for name servers.
const resolverFile = "/etc/resolv.conf"

// hostResolver shows the program the host's name servers. Where the host has no such file the
// cell's own stays, which names a server that isn't there: names aren't resolved.
func (r *run) hostResolver(c *native.Cell) error {
	if !isolate.AllowsHostNetwork(r.spec.Network) {
		return nil
	}
	var m *os.File
	var err error
	elsewhere(func() { m, err = sys.OpenTree(sys.AtCWD, resolverFile, false) }) // it follows links
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return refuse("cell_start", hostOp, err)
	}
	if _, err := r.place(c, "resolver", resolverFile, m, "r"); err != nil { // the rule for the template covers it
		return err
	}
	if err := sys.SetAttr(m, sys.AttrReadOnly|sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec); err != nil {
		return refuse("cell_start", hostOp, err)
	}
	r.resolver = true
	return nil
}

// namePort is that of name servers, asked over TCP where an answer is long.
const namePort = 53

// connectPorts are the ports that a program in the network preflight may connect to over TCP.
func connectPorts(ports []uint16) []uint16 {
	out := append(slices.Clone(ports), namePort)
	slices.Sort(out)
	return slices.Compact(out)
}

// hostNetworkDegraded says what isn't enforced for a program in the host's network. handled are the
// rights of Landlock about ports.
func hostNetworkDegraded(network string, handled uint64) []string {
	if !isolate.AllowsHostNetwork(network) {
		return nil
	}
	text := "network: the host's, and nothing is enforced"
	switch ports := handled&landlock.NetConnectTCP != 0; {
	case network == isolate.NetworkPreflight && ports:
		text = "network: the host's; names were checked before the start only, and ports of TCP are enforced"
	case network == isolate.NetworkPreflight:
		text = "network: the host's; names were checked before the start only, and nothing is enforced"
	}
	return []string{text, "memory: connections that the program has closed or not accepted aren't counted"}
}

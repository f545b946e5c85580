// Package isolate runs programs in confinement that the kernel enforces.
//
// A [Spec] says what to run and within which limits; it is plain data and
// serialises. [Files] are the descriptors that go with it: the executable and
// the workspaces are opened once, by whoever sealed the call, and never looked
// up by path again. A [Runner] takes both together with a grant and returns a
// [Result] whose evidence was read from the kernel. Without a valid grant for
// exactly this Spec every Runner refuses.
//
// Runners: palyra/isolate/cell speaks to the palyra-cell process, which runs
// tier C (isolate/native) and tier B (isolate/rlimit). isolatetest is the
// contract that each is put through.
//
// What it does not protect against: kernel bugs reachable through the system
// calls that the filter allows, and side channels between programs that share
// a core.
package isolate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"palyra/authz/grant"
	"palyra/call"
	"palyra/internal/canon"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// Spec is everything a Runner must know besides descriptors. It is derived from
// a capsule; its canonical JSON is what the grant is bound to (Digest).
type Spec struct {
	Version int          `json:"version"` // 1
	Capsule canon.Digest `json:"capsule"` // digest of the capsule it was derived from
	Tier    tier.Tier    `json:"tier"`    // the tier to run at, exactly

	// Argv is handed to the program unchanged; Argv[0] is what the program sees
	// as its name. For a script it is what the kernel would have built:
	// interpreter, optional argument, script path, arguments.
	Argv []string `json:"argv"`
	// Env is the complete environment, "NAME=VALUE", sorted by name.
	Env []string `json:"env"`
	// Cwd is the working directory as the program sees it, "/workspace" by
	// default. At tier B it is a path on the host.
	Cwd string `json:"cwd"`
	// CwdInode is the folder that Cwd named when the call was sealed, as [Inode]
	// prints it, if that is one in the workspace; else "". Whoever sealed the call
	// keeps the folder open until the run is over: else its number may be another's.
	CwdInode string `json:"cwd_inode,omitempty"`

	Exec      File         `json:"exec"`             // what Files.Exec must be
	Workspace *Mount       `json:"workspace"`        // nil: a private empty one (tmpfs at tier C)
	Mounts    []call.Mount `json:"mounts,omitempty"` // at tier C only; Files.Mounts in this order
	// Caches are names of package isolate/cache, sorted; Files.Caches in this order. At tier C
	// only, and with a workspace.
	Caches   []string `json:"caches,omitempty"`
	Secrets  []string `json:"secrets,omitempty"` // names, sorted; Files.Secrets in this order. At tier C only; see CheckSecrets
	Operands []File   `json:"operands"`          // sealed copies, Files.Operands in this order
	Script   *File    `json:"script,omitempty"`  // sealed script, given as /dev/fd/<ScriptFD>
	Limits   Limits   `json:"limits"`
	Stdin    string   `json:"stdin"` // "none" (empty), "sealed" or "stream"
	// Network is NetworkFresh, or at tier C one of the others.
	Network string `json:"network,omitempty"`
	// Session names whose network NetworkSession is; "" for every other network.
	Session string `json:"session,omitempty"`
	// Egress is what NetworkEgress needs; nil for every other network.
	Egress *Egress `json:"egress,omitempty"`
	// Ports are the TCP ports that a program in NetworkPreflight may connect to: sorted, each once,
	// 64 at most; none for every other network.
	Ports []uint16 `json:"ports,omitempty"`
	// TTY gives the program a terminal of its own, at tier C only. What Stdin says is typed there,
	// by whoever has the other side.
	TTY *call.TTY `json:"tty,omitempty"`
}

// Inode prints what identifies a file while somebody holds it: device and inode, as
// stat(2) has them. A JSON number holds neither.
func Inode(dev, ino uint64) string {
	return strconv.FormatUint(dev, 10) + ":" + strconv.FormatUint(ino, 10)
}

// The values of Spec.Network.
const (
	// NetworkFresh is a network namespace that no other call ever sees.
	NetworkFresh = ""
	// NetworkVoid is one that all calls of a palyra-cell share: it has a loopback
	// interface that is down, and nothing else. The program can make no socket in
	// it of any kind, and no pair of connected ones either.
	NetworkVoid = "void"
	// NetworkLoopback is one that no other call ever sees, with a loopback interface
	// that is up and nothing else. The program can make TCP and UDP sockets in it, and
	// reaches with them what the same call listens on.
	NetworkLoopback = "loopback"
	// NetworkSession is a NetworkLoopback that the calls of a session share, and no other
	// call ever sees: those that a palyra-cell runs at once for one Spec.Session. It begins
	// with the first of them and ends with the last.
	NetworkSession = "session"
	// NetworkEgress is a NetworkLoopback in which palyra-egress answers too: at addresses that
	// lead to the loopback interface, with sockets of that namespace. Files.Egress leads there.
	NetworkEgress = "egress"
	// NetworkHost is that of palyra-cell, the host's, for what can't be had in another: the program
	// reaches what the host reaches, its loopback services and neighbours too. It isn't confined.
	NetworkHost = "host"
	// NetworkPreflight is the same for a call whose hosts were looked up and judged before it began.
	// What the program connects to then isn't judged, but for the ports of TCP where Landlock has
	// them.
	NetworkPreflight = "preflight"
)

// AllowsHostNetwork reports whether programs in such a network are in the host's.
func AllowsHostNetwork(network string) bool {
	return network == NetworkHost || network == NetworkPreflight
}

// HasNetwork reports whether a tier has such a network: a value of Spec.Network.
func HasNetwork(t tier.Tier, network string) bool {
	switch network {
	case NetworkFresh:
		return true
	case NetworkVoid, NetworkLoopback, NetworkSession, NetworkEgress, NetworkHost, NetworkPreflight:
		return t == tier.C
	}
	return false
}

// maxPorts is as many as a call can have rules of hosts.
const maxPorts = 64

// CheckPorts returns an error unless NetworkPreflight, and no other network, comes with ports.
func CheckPorts(network string, ports []uint16) error {
	switch {
	case network != NetworkPreflight && len(ports) > 0:
		return fmt.Errorf("network %q has no list of ports", network)
	case network == NetworkPreflight && (len(ports) == 0 || len(ports) > maxPorts):
		return fmt.Errorf("%d ports for the network %s: want 1 to %d", len(ports), network, maxPorts)
	}
	for i, p := range ports {
		if p == 0 || i > 0 && ports[i-1] >= p {
			return errors.New("ports are not sorted, or one is 0 or given twice")
		}
	}
	return nil
}

// CheckSession returns an error unless a session is named for NetworkSession, and for no other
// network.
func CheckSession(network, session string) error {
	switch {
	case network == NetworkSession && session == "":
		return errors.New("no session to share a network with")
	case network != NetworkSession && session != "":
		return fmt.Errorf("network %q is no session's", network)
	}
	return nil
}

// Connects reports whether programs in such a network make TCP and UDP sockets.
func Connects(network string) bool {
	return network == NetworkLoopback || network == NetworkSession || network == NetworkEgress || AllowsHostNetwork(network)
}

// ScriptFD is the descriptor at which a sealed script is open in the program,
// as execveat(2) would have done it for a script opened by descriptor.
const ScriptFD = 3

// File is a file of the call, as its capsule has it.
type File = call.File

// Mount is the workspace. Files.Workspace is what is mounted.
type Mount = call.Workspace

// Limits bound the call.
type Limits = call.Limits

// Files are the descriptors that belong to a Spec. The Runner does not close
// them. Stdin may be nil (empty stdin); Stdout and Stderr are required and are
// handed to the program as they are: capping is the caller's, who reads the
// other end.
type Files struct {
	Exec      *os.File   // opened O_RDONLY (or a sealed memfd)
	Script    *os.File   // sealed memfd; nil unless Spec.Script
	Workspace *os.File   // O_PATH|O_DIRECTORY; nil unless Spec.Workspace
	Mounts    []*os.File // O_PATH|O_DIRECTORY
	Caches    []*os.File // O_PATH|O_DIRECTORY
	Layer     *os.File   // of isolate/stage, locked; nil unless Spec.Workspace.Staged
	Operands  []*os.File // sealed memfds
	Secrets   []*os.File // sealed memfds with the values
	Stdin     *os.File
	Stdout    *os.File
	Stderr    *os.File
	// Terminal is an end of a [TerminalLine], in place of the three above; nil unless Spec.TTY.
	Terminal *os.File
	// Egress is a SOCK_SEQPACKET connection to palyra-egress, as package egress/handover speaks it;
	// nil unless Spec.Egress.
	Egress *os.File
	// Roots is a sealed memfd with the certificate of the call's authority, as CheckRoots wants it;
	// nil unless Spec.Egress.Roots.
	Roots *os.File
}

// Outcome says how a run ended. The zero Outcome is Unknown.
type Outcome string

// The outcomes of a started or refused run.
const (
	Unknown  Outcome = ""          // it was handed over, and the runner died: it may have run, in part or to its end
	Exited   Outcome = "executed"  // the program ended by itself, whatever its status
	TimedOut Outcome = "timed_out" // Limits.Wall passed; the tree was killed
	Killed   Outcome = "killed"    // by a limit (Evidence.Exit.LimitHit) or by cancel
	Failed   Outcome = "failed"    // it could not be started (step and errno in the error), or a sealed operand was uncovered while it ran
	Refused  Outcome = "refused"   // the host cannot enforce the tier, or the grant is no good
)

// Result is what a Runner observed.
type Result struct {
	Outcome  Outcome            `json:"outcome"`
	Evidence *evidence.Evidence `json:"evidence"` // never nil once a process existed, unless that is Unknown
}

// Runner runs one Spec. Run returns a Result with every error that happened
// after a process existed, or may have (then its Outcome is Unknown), and a
// fault.Error of kind Refused (with the missing control as reason) when the host
// cannot enforce the Spec. After Run returns no process of the run is left. A
// done ctx kills the run.
type Runner interface {
	Run(ctx context.Context, g grant.Grant, s *Spec, f *Files) (*Result, error)
}

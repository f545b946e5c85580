// Package evidence is the record of what was observed from the kernel while a
// program ran.
//
// Every field group carries a [Basis]: verified (recomputed and compared),
// observed (read from the kernel), reported (we did it and nothing contradicted
// us) or absent (could not be known here). Nothing in it is copied from the
// configuration without saying "reported".
//
// A field is declared once, with its unit, the bases that it may have, and a sentence.
// [Fields] is the table of them, from which docs/formats/receipt.md is printed, and
// [Evidence.Lines] is what people are shown. A field that came after the others has
// omitempty, so that older evidence keeps its bytes; it is a pointer if zero isn't absence.
package evidence

import (
	"encoding/json"

	"palyra/internal/canon"
)

// Basis says how we know. The zero Basis is Absent.
type Basis string

// The bases, strongest first.
const (
	Verified Basis = "verified"
	Observed Basis = "observed"
	Reported Basis = "reported"
	Absent   Basis = ""
)

// Evidence is what one run left behind. JSON field names are part of the receipt format
// (docs/formats/receipt.md). Other tags: unit is that of a number. basis lists the bases
// that a group may have, or a field other than its group. show is the words that a field's
// value is put into for people, and another name for a group.
type Evidence struct {
	// Executor is the code that confined: sandbox_tier_c_linux_native or sandbox_tier_b;
	// tier_c_linux_native_host_network, which is no sandbox, in the host's network; mcp_exchange
	// where no program was started and one that ran already was asked.
	Executor string `json:"executor" basis:"reported"`
	// Tier is the tier observed, not the one asked for.
	Tier       string     `json:"tier" basis:"observed"`
	Host       Host       `json:"host"`
	Cell       Cell       `json:"cell"`
	Namespaces Namespaces `json:"namespaces"`
	Network    Network    `json:"network"`
	Process    Process    `json:"process"`
	Seccomp    Seccomp    `json:"seccomp"`
	Landlock   Landlock   `json:"landlock"`
	Limits     Limits     `json:"limits"`
	Mounts     Mounts     `json:"mounts"`
	Cgroup     Cgroup     `json:"cgroup"`
	Executable Executable `json:"executable"`
	Tape       Tape       `json:"tape"`
	Exit       Exit       `json:"exit"`
	Usage      Usage      `json:"usage" show:"used"`
	Output     Output     `json:"output"` // filled by the kernel room, which reads the pipes
	// Degraded is what the host couldn't enforce, or only in part.
	Degraded []string `json:"degradations" basis:"reported"`
	// Scripts are the files with a #! line that led to the executable, outermost first; each
	// has the members of executable.
	Scripts []Executable `json:"scripts,omitempty" basis:"reported"` // filled by the kernel room; the cell knows only what it executes
	// Terminal is absent for a program without one.
	Terminal Terminal `json:"terminal,omitzero"`
	// Exchange is what answered, if the call started no program; the groups of a program are
	// absent then.
	Exchange Exchange `json:"exchange,omitzero"` // filled by the kernel room
	// Secrets is absent for a call without any.
	Secrets Secrets `json:"secrets,omitzero"`
	// Egress is absent for a call without hosts.
	Egress Egress `json:"egress,omitzero"` // filled by the kernel room, which asks palyra-egress
	// Roots is absent for a call without an authority of its own.
	Roots Roots `json:"roots,omitzero"`
}

// ExecutorExchange is the executor of a call that asked a running program.
const ExecutorExchange = "mcp_exchange"

// TerminalOwn is the only terminal that a program can have.
const TerminalOwn = "own"

// Terminal is the program's terminal, as it was seen at the gate.
type Terminal struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Mode is "own": standard input, output and error are one terminal, of a devpts that was made for
	// this call, and it controls the session; no terminal of the host is in reach.
	Mode string `json:"mode"`
}

// Exchange names the program that answered, and its own call, whose receipt says how it is
// confined.
type Exchange struct {
	Basis Basis `json:"basis" basis:"reported"`
	// Server is the operator's name for the program.
	Server string `json:"server" show:"%s"`
	// Tool is the server's name for its tool.
	Tool string `json:"tool"`
	// Pin is the digest of the tool's accepted definition, which the server had just repeated.
	Pin canon.Digest `json:"pin"`
	// CallID is the program's own call.
	CallID string `json:"call_id" show:"%s"`
	// Intent is the index of that call's intent in the journal.
	Intent uint64 `json:"intent" unit:"index"`
}

// Secrets are the files with values of secrets, as they were seen at the gate: from there on the
// program could read them.
type Secrets struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Files are their names in /run/secrets, each of mode 0400 and the program's; sorted.
	Files []string `json:"files" show:"%s could be read by the program"`
}

// Roots are the certificate authorities that the program was shown, if one was the call's own:
// palyra-egress signs with it for the hosts whose TLS it inspects.
type Roots struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Authority is the digest of the call's own certificate, in PEM.
	Authority canon.Digest `json:"authority" show:"authority %s"`
	// Files are where the program found it, behind the host's roots; sorted.
	Files []string `json:"files" show:"in %s"`
}

// Host identifies the kernel that enforced.
type Host struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Release is what uname -r prints.
	Release string `json:"release"`
	// Machine is what uname -m prints.
	Machine string `json:"machine"`
	// BootID is the kernel's name for this boot.
	BootID string `json:"boot_id"`
}

// The ways to a cell.
const (
	CellCold = "cold" // built for this call, after it was asked for
	CellWarm = "warm" // built before, for one call of this kind, and used once
)

// Cell says when the confinement was built. What is read from the kernel is, for
// a warm cell too, read after it was armed and before the program runs.
type Cell struct {
	Basis Basis `json:"basis" basis:"reported"`
	// Mode is "cold" for a cell built for this call, "warm" for one built before.
	Mode string `json:"mode"`
	// ArmedNS is a warm cell's wait.
	ArmedNS int64 `json:"armed_ns,omitempty" unit:"ns"`
}

// The ways to a network namespace.
const (
	NetworkFresh  = "fresh"  // made for this call, with its cell
	NetworkPooled = "pooled" // made before, for one call, and used once
	NetworkVoid   = "void"   // shared by all calls that may make no socket; nothing is in it
	// NetworkLoopback is one made for this call, with its cell, whose loopback interface is up.
	NetworkLoopback = "loopback"
	// NetworkSession is one like NetworkLoopback that the calls of a session share.
	NetworkSession = "session"
	// NetworkEgress is one like NetworkLoopback in which palyra-egress answers at further addresses.
	NetworkEgress = "egress"
	// NetworkHost is the host's, in which nothing is enforced.
	NetworkHost = "host"
	// NetworkPreflight is the host's, too, of a call whose hosts were looked up before it began.
	NetworkPreflight = "preflight"
)

// Loopback is the name of the loopback interface.
const Loopback = "lo"

// Network says which network namespace the program has. That it is not the
// host's is in Namespaces; it is among Namespaces.Fresh unless it is "void", "session", "host" or
// "preflight".
type Network struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Mode is "fresh" for a network namespace of this call, "pooled" for one made before it, "void"
	// for the empty one of all calls that may make no socket, "loopback" for one of this call whose
	// loopback interface is up, "session" for such a one that calls of one session share, "egress" for
	// such a one in which palyra-egress stands for the hosts that the call may reach, over TCP alone,
	// "" for the host's in which the filter lets the program make no socket (tier B). "host" is the
	// host's with nothing enforced, and "preflight" the host's after the call's hosts were looked up:
	// all that was checked.
	Mode string `json:"mode" show:"%s"`
	// Sharers is the most calls that were in a session's namespace at once while this one was, itself
	// included.
	Sharers *int64 `json:"sharers,omitempty" unit:"count" show:"shared with calls of its session, %s at once with this one"`
	// Interfaces are those of a loopback, session or egress cell, at its gate.
	Interfaces []string `json:"interfaces,omitempty"`
	// Addresses are those that such a cell has, likewise; sorted. "198.18.0.0/15" is all of them.
	Addresses []string `json:"addresses,omitempty"`
	// Routes is how many of such a cell's routes, or of the host's network, lead out of lo, likewise.
	Routes *int64 `json:"routes,omitempty" unit:"count" show:"%s routes out of lo"`
}

// Namespaces maps a namespace kind ("user", "mnt", "pid", "net", "ipc", "uts",
// "cgroup", "time") to its inode number as seen from the host.
type Namespaces struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Cell is the program's namespace of each kind.
	Cell map[string]uint64 `json:"cell" unit:"inode"`
	// Host is palyra's namespace of each kind.
	Host map[string]uint64 `json:"host" unit:"inode"`
	// Fresh are the kinds of which palyra has another, without a shared net; sorted.
	Fresh []string `json:"fresh" show:"%s"`
}

// Process holds lines of /proc/<pid>/status of the first process, read after
// the last confinement step and before the program's first instruction.
type Process struct {
	Basis Basis `json:"basis" basis:"observed"`
	// NoNewPrivs is 1 where executing a file adds no privilege.
	NoNewPrivs int `json:"no_new_privs" unit:"0 or 1" show:"no_new_privs %s"`
	// Seccomp is 2 where a filter is in force.
	Seccomp int `json:"seccomp" unit:"mode"`
	// Filters is how many seccomp filters are in force.
	Filters int `json:"seccomp_filters" unit:"count"`
	// CapInh is the inheritable set of capabilities, in the kernel's hexadecimal.
	CapInh string `json:"cap_inh"`
	// CapPrm is the permitted set, likewise.
	CapPrm string `json:"cap_prm"`
	// CapEff is the effective set, likewise.
	CapEff string `json:"cap_eff" show:"capabilities %s"`
	// CapBnd is the bounding set, likewise.
	CapBnd string `json:"cap_bnd"`
	// CapAmb is the ambient set, likewise.
	CapAmb string `json:"cap_amb"`
	// HostUID is the host's uid: real, effective, saved and of files alike. Older receipts of a user
	// at tier C have 0, as palyra-cell's own user namespace numbers it, and so for groups.
	HostUID uint32 `json:"host_uid" unit:"uid" show:"host uid %s"`
	// HostGID is the host's gid, likewise.
	HostGID uint32 `json:"host_gid" unit:"gid"`
	// Groups are the host's supplementary groups; at tier C of a user each but host_gid shows as
	// fs.overflowgid (65534), since palyra-cell's user namespace doesn't map it.
	Groups []uint32 `json:"groups" unit:"gid"`
	// Session is 1 where the process leads its own session.
	Session int `json:"session" unit:"0 or 1"`
	// TTY is the controlling terminal, 0 without one.
	TTY int `json:"tty_nr" unit:"device"`
	// Descriptors are those open at the gate, such as "0 pipe"; none of a warm cell.
	Descriptors []string `json:"descriptors"`
}

// Seccomp identifies the installed filter program.
type Seccomp struct {
	Basis Basis `json:"basis" basis:"verified, reported"`
	// Program is the digest of the filter, a little-endian array of sock_filter.
	Program canon.Digest `json:"program" show:"%s"`
	// Policy is the digest of the filter with a zero cookie, equal between runs of one build at one
	// tier.
	Policy canon.Digest `json:"policy"`
	// Instructions is the length of the filter.
	Instructions int `json:"instructions" unit:"count" show:"%s instructions"`
	// DefaultErrno is the error of calls that no rule names.
	DefaultErrno int `json:"default_errno" unit:"errno"`
}

// Landlock describes the ruleset in force.
type Landlock struct {
	Basis Basis `json:"basis" basis:"observed"`
	// ABI is the version of the host's Landlock, 0 without one.
	ABI int `json:"abi" unit:"version" show:"ABI %s"`
	// HandledFS are the file rights that need a rule.
	HandledFS uint64 `json:"handled_fs" unit:"bits"`
	// HandledNet are the network rights that need a rule.
	HandledNet uint64 `json:"handled_net" unit:"bits"`
	// Scoped are the closed ways to processes outside.
	Scoped uint64 `json:"scoped" unit:"bits"`
	// Rules are the rights that remain, and where, such as "rx /usr"; sorted.
	Rules []string `json:"rules" show:"%d rules"`
}

// Limits are resource limits as read back from the kernel.
type Limits struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Soft is each resource limit, such as "nofile", in the unit of setrlimit(2), -1 for unlimited.
	Soft map[string]int64 `json:"soft" unit:"by limit"`
	// Hard is how far the process may raise each.
	Hard map[string]int64 `json:"hard" unit:"by limit"`
}

// Mounts is the mount table of the cell.
type Mounts struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Digest is the digest of table, joined by newlines.
	Digest canon.Digest `json:"digest"`
	// Table is a line for each mount, such as "/usr ro,nosuid,nodev ext4 private".
	Table []string `json:"table"`
	// LayerCalls is how many calls at most used the layer of a staged workspace while this one did,
	// itself included: 1 if no other did.
	LayerCalls int `json:"layer_calls,omitempty" unit:"count" basis:"reported"`
	// Tmp is "session" if /tmp is a folder of the call's session, found there at the gate; absent for
	// one of the call's own.
	Tmp string `json:"tmp,omitempty"`
}

// TmpSession is a /tmp that the calls of a session share.
const TmpSession = "session"

// Cgroup says what cgroup v2 control was in force.
type Cgroup struct {
	Basis Basis `json:"basis" basis:"observed"`
	// State is "enforced", or "unavailable: " and why.
	State string `json:"state" show:"%s"`
	// Values are the limits read back from the call's group.
	Values map[string]string `json:"values,omitempty"`
}

// The ways to a digest.
const (
	DigestHashed = "hashed" // the file was read for this call
	DigestCached = "cached" // it was read before, and by its times has not changed since
	DigestVerity = "verity" // it was read before, and fs-verity has kept it from changing since
)

// Executable is what execveat was given, or a script that named it.
type Executable struct {
	Basis Basis `json:"basis" basis:"reported"`
	// Path is the executed file, as the program sees it.
	Path string `json:"path"`
	// Digest is the digest of its content.
	Digest canon.Digest `json:"digest"`
	// Pinned is "sealed" for a copy that can't change, "system" for a file that only root can change.
	Pinned string `json:"pinned"`
	// DigestBasis is "hashed" if the file was read for this call, "cached" if before, and its times
	// say that it hasn't changed, "verity" if fs-verity says so.
	DigestBasis string `json:"digest_basis,omitempty"` // both by the kernel room, which hashes
	// DigestTime is when it was read, in RFC 3339.
	DigestTime string `json:"digest_time,omitempty"`
}

// Tape identifies the list of system calls that built the confinement.
type Tape struct {
	Basis Basis `json:"basis" basis:"reported"`
	// Digest is the digest of the system calls that built the cell, in order.
	Digest canon.Digest `json:"digest"`
	// Steps is their number.
	Steps int `json:"steps" unit:"count"`
}

// Exit is how the first process ended and why.
type Exit struct {
	Basis Basis `json:"basis" basis:"observed"`
	// Code is the exit status, -1 if the program didn't exit by itself.
	Code int `json:"code" unit:"status"`
	// Signal is the signal that ended it, absent if none did.
	Signal int `json:"signal,omitempty" unit:"signal"`
	// LimitHit is what ended it, absent if unknown: "wall", "memory", "disk", "canceled"; "cpu" if
	// SIGXCPU, or SIGKILL a second later, ended a program that with the children it waited for had
	// used three quarters of that time; "uncounted" if a program kept palyra from counting memory or
	// files (a shared mapping of /dev/zero, closed descriptors, folders too deep to read).
	LimitHit string `json:"limit_hit,omitempty"`
	// TreeDead is true if no process was left when the first had ended.
	TreeDead bool `json:"tree_dead" basis:"observed, reported"`
	// TreeBasis is the basis of tree_dead: observed where survivors were looked for, reported where
	// it follows from the end of the PID namespace's first process.
	TreeBasis Basis `json:"tree_basis,omitempty"`
}

// Usage is what it consumed. With a cgroup it is observed of all processes. Elsewhere
// processor time is that of the program and of children that were waited for, so that
// a program can hide what it used (SIGCHLD ignored): the basis is reported.
type Usage struct {
	Basis Basis `json:"basis" basis:"observed, reported"`
	// WallNS is the time from palyra-cell's taking the call to the program's end.
	WallNS int64 `json:"wall_ns" unit:"ns" show:"%s"`
	// UserNS is processor time in the program's code.
	UserNS int64 `json:"user_ns" unit:"ns"`
	// SystemNS is processor time in the kernel.
	SystemNS int64 `json:"system_ns" unit:"ns"`
	// MaxRSS is the most resident memory of the largest of the program and the children that it
	// waited for.
	MaxRSS int64 `json:"max_rss_bytes" unit:"bytes" show:"%s"`
	// PeakMemory is the most counted of all processes together, 0 if none was counted.
	PeakMemory int64 `json:"peak_memory_bytes" unit:"bytes"`
}

// Output is what came out of the program, kept and dropped.
type Output struct {
	Basis Basis `json:"basis" basis:"observed, reported"`
	// StdoutBytes is how much was kept.
	StdoutBytes int64 `json:"stdout_bytes" unit:"bytes"`
	// StderrBytes is how much was kept.
	StderrBytes int64 `json:"stderr_bytes" unit:"bytes"`
	// StdoutDigest is their digest.
	StdoutDigest canon.Digest `json:"stdout_digest"`
	// StderrDigest is their digest.
	StderrDigest canon.Digest `json:"stderr_digest"`
	// Cut is how much was dropped.
	Cut int64 `json:"cut_bytes" unit:"bytes"`
}

// Decode returns the evidence in a statement, nil if there is none that this version understands:
// it is only shown, and nothing may depend on it.
func Decode(statement json.RawMessage) *Evidence {
	var e *Evidence
	if json.Unmarshal(statement, &e) != nil {
		return nil
	}
	return e
}

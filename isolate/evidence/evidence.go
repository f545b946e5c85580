// Package evidence is the record of what was observed from the kernel while a
// program ran.
//
// Every field group carries a [Basis]: verified (recomputed and compared),
// observed (read from the kernel), reported (we did it and nothing contradicted
// us) or absent (could not be known here). Nothing in it is copied from the
// configuration without saying "reported".
package evidence

import "palyra/internal/canon"

// Basis says how we know. The zero Basis is Absent.
type Basis string

// The bases, strongest first.
const (
	Verified Basis = "verified"
	Observed Basis = "observed"
	Reported Basis = "reported"
	Absent   Basis = ""
)

// Evidence is what one run left behind. JSON field names are part of the
// receipt format (docs/formats/receipt.md).
type Evidence struct {
	Executor   string     `json:"executor"` // sandbox_tier_c_linux_native, sandbox_tier_b
	Tier       string     `json:"tier"`     // tier that was observed, not asked for
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
	Usage      Usage      `json:"usage"`
	Output     Output     `json:"output"` // filled by the kernel room, which reads the pipes
	Degraded   []string   `json:"degradations"`
	// Scripts are the files with a #! line that led to Executable, outermost
	// first. Filled by the kernel room; the cell knows only what it executes.
	Scripts []Executable `json:"scripts,omitempty"`
}

// Host identifies the kernel that enforced.
type Host struct {
	Basis   Basis  `json:"basis"`
	Release string `json:"release"` // uname -r
	Machine string `json:"machine"` // uname -m
	BootID  string `json:"boot_id"`
}

// The ways to a cell.
const (
	CellCold = "cold" // built for this call, after it was asked for
	CellWarm = "warm" // built before, for one call of this kind, and used once
)

// Cell says when the confinement was built. What is read from the kernel is, for
// a warm cell too, read after it was armed and before the program runs.
type Cell struct {
	Basis   Basis  `json:"basis"`
	Mode    string `json:"mode"`               // "cold" or "warm"
	ArmedNS int64  `json:"armed_ns,omitempty"` // warm: for how long it had been waiting
}

// The ways to a network namespace.
const (
	NetworkFresh  = "fresh"  // made for this call, with its cell
	NetworkPooled = "pooled" // made before, for one call, and used once
	NetworkVoid   = "void"   // shared by all calls that may make no socket; nothing is in it
)

// Network says which network namespace the program has. That it is not the
// host's is in Namespaces; it is among Namespaces.Fresh unless it is "void".
type Network struct {
	Basis Basis  `json:"basis"`
	Mode  string `json:"mode"` // "fresh", "pooled" or "void"; "" at tier B, which has the host's
}

// Namespaces maps a namespace kind ("user", "mnt", "pid", "net", "ipc", "uts",
// "cgroup", "time") to its inode number as seen from the host.
type Namespaces struct {
	Basis Basis             `json:"basis"`
	Cell  map[string]uint64 `json:"cell"`
	Host  map[string]uint64 `json:"host"`
	Fresh []string          `json:"fresh"` // kinds whose inodes differ, sorted
}

// Process holds lines of /proc/<pid>/status of the first process, read after
// the last confinement step and before the program's first instruction.
type Process struct {
	Basis       Basis    `json:"basis"`
	NoNewPrivs  int      `json:"no_new_privs"`
	Seccomp     int      `json:"seccomp"` // 2 = filter
	Filters     int      `json:"seccomp_filters"`
	CapInh      string   `json:"cap_inh"` // hexadecimal, as the kernel prints it
	CapPrm      string   `json:"cap_prm"`
	CapEff      string   `json:"cap_eff"`
	CapBnd      string   `json:"cap_bnd"`
	CapAmb      string   `json:"cap_amb"`
	HostUID     uint32   `json:"host_uid"` // as the host sees it
	HostGID     uint32   `json:"host_gid"`
	Groups      []uint32 `json:"groups"`
	Session     int      `json:"session"`     // sid equals pid: own session
	TTY         int      `json:"tty_nr"`      // 0: no controlling terminal
	Descriptors []string `json:"descriptors"` // numbers and targets open at the gate, "0 pipe", ...
}

// Seccomp identifies the installed filter program.
type Seccomp struct {
	Basis   Basis        `json:"basis"`
	Program canon.Digest `json:"program"` // SHA-256 over the sock_filter array, little endian
	// Policy is the digest of the same program compiled with a zero cookie, so
	// that it is equal between runs of one build at one tier.
	Policy       canon.Digest `json:"policy"`
	Instructions int          `json:"instructions"`
	DefaultErrno int          `json:"default_errno"`
}

// Landlock describes the ruleset in force.
type Landlock struct {
	Basis      Basis    `json:"basis"`
	ABI        int      `json:"abi"` // of the host; 0 none
	HandledFS  uint64   `json:"handled_fs"`
	HandledNet uint64   `json:"handled_net"`
	Scoped     uint64   `json:"scoped"`
	Rules      []string `json:"rules"` // "rx /usr", sorted
}

// Limits are resource limits as read back from the kernel: "nofile" → 256.
type Limits struct {
	Basis Basis            `json:"basis"`
	Soft  map[string]int64 `json:"soft"` // -1 is unlimited
	Hard  map[string]int64 `json:"hard"`
}

// Mounts is the mount table of the cell.
type Mounts struct {
	Basis  Basis        `json:"basis"`
	Digest canon.Digest `json:"digest"` // over the normalised lines below, joined by "\n"
	Table  []string     `json:"table"`  // "/usr ro,nosuid,nodev ext4", in mount order
}

// Cgroup says what cgroup v2 control was in force.
type Cgroup struct {
	Basis  Basis             `json:"basis"`
	State  string            `json:"state"` // "enforced" or "unavailable: why"
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
	Basis  Basis        `json:"basis"`
	Path   string       `json:"path"`
	Digest canon.Digest `json:"digest"`
	Pinned string       `json:"pinned"` // "sealed" or "system"
	// Both are filled by the kernel room, which hashes.
	DigestBasis string `json:"digest_basis,omitempty"`
	DigestTime  string `json:"digest_time,omitempty"` // when the file was read, RFC 3339
}

// Tape identifies the list of system calls that built the confinement.
type Tape struct {
	Basis  Basis        `json:"basis"`
	Digest canon.Digest `json:"digest"`
	Steps  int          `json:"steps"`
}

// Exit is how the first process ended and why.
type Exit struct {
	Basis    Basis  `json:"basis"`
	Code     int    `json:"code"`                // -1 if it did not exit by itself
	Signal   int    `json:"signal,omitempty"`    // 0 if none
	LimitHit string `json:"limit_hit,omitempty"` // "wall", "cpu", "memory", ... where known
	TreeDead bool   `json:"tree_dead"`           // no process of the run was left when the first one had ended
	// TreeBasis says how TreeDead is known: observed, somebody looked for survivors; or
	// reported, the end of the PID namespace's first process implies it. Absent in
	// evidence of older builds.
	TreeBasis Basis `json:"tree_basis,omitempty"`
}

// Usage is what it consumed.
type Usage struct {
	Basis      Basis `json:"basis"`
	WallNS     int64 `json:"wall_ns"`
	UserNS     int64 `json:"user_ns"`
	SystemNS   int64 `json:"system_ns"`
	MaxRSS     int64 `json:"max_rss_bytes"`     // of the largest process
	PeakMemory int64 `json:"peak_memory_bytes"` // the most that was counted of the tree (docs/THREAT_MODEL.md); 0 if it ended before that
}

// Output is what came out of the program, kept and dropped.
type Output struct {
	Basis        Basis        `json:"basis"`
	StdoutBytes  int64        `json:"stdout_bytes"`
	StderrBytes  int64        `json:"stderr_bytes"`
	StdoutDigest canon.Digest `json:"stdout_digest"` // of the bytes kept
	StderrDigest canon.Digest `json:"stderr_digest"`
	Cut          int64        `json:"cut_bytes"` // dropped beyond the limit
}

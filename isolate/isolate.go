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
	"os"
	"time"

	"palyra/authz/grant"
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

	Exec      File   `json:"exec"`             // what Files.Exec must be
	Workspace *Mount `json:"workspace"`        // nil: a private empty one (tmpfs at tier C)
	Operands  []File `json:"operands"`         // sealed copies, Files.Operands in this order
	Script    *File  `json:"script,omitempty"` // sealed script, given as /dev/fd/<ScriptFD>
	Limits    Limits `json:"limits"`
	Stdin     string `json:"stdin"` // "none" (empty), "sealed" or "stream"
	// Network is NetworkFresh or NetworkVoid; the latter at tier C only.
	Network string `json:"network,omitempty"`
}

// The values of Spec.Network.
const (
	// NetworkFresh is a network namespace that no other call ever sees.
	NetworkFresh = ""
	// NetworkVoid is one that all calls of a palyra-cell share: it has a loopback
	// interface that is down, and nothing else. The program can make no socket in
	// it of any kind, and no pair of connected ones either.
	NetworkVoid = "void"
)

// ScriptFD is the descriptor at which a sealed script is open in the program,
// as execveat(2) would have done it for a script opened by descriptor.
const ScriptFD = 3

// File identifies an opened file and says how its content was pinned.
type File struct {
	Path   string       `json:"path"`   // as the program sees it ("/usr/bin/true", "/workspace/in.txt")
	Digest canon.Digest `json:"digest"` // of the content that was hashed
	Size   int64        `json:"size"`   // bytes
	// Pinned is "sealed" (descriptor is a memfd with all seals: nobody can
	// change the bytes) or "system" (root-owned, writable by nobody else, in a
	// path likewise: descriptor is the file itself).
	Pinned string `json:"pinned"`
}

// Mount is the host directory shown at /workspace (tier B: used in place).
type Mount struct {
	Source   string `json:"source"`    // for the record only; Files.Workspace is what is mounted
	ReadOnly bool   `json:"read_only"` //
	UID      uint32 `json:"uid"`       // owner on the host: what the program writes belongs to it
	GID      uint32 `json:"gid"`       //
}

// Limits bound one call. Zero in any field is an error, never "unlimited".
type Limits struct {
	Wall      time.Duration `json:"wall"`       // ns; from start until reaped and drained
	CPU       time.Duration `json:"cpu"`        // ns; per process, whole seconds rounded up (RLIMIT_CPU)
	Memory    int64         `json:"memory"`     // bytes; whole tree where the host can (cgroup v2), else per process
	PIDs      int64         `json:"pids"`       // processes and threads
	Output    int64         `json:"output"`     // bytes of stdout plus stderr kept; the rest is counted and dropped
	FileSize  int64         `json:"file_size"`  // bytes per file written (RLIMIT_FSIZE)
	OpenFiles int64         `json:"open_files"` // RLIMIT_NOFILE
	Disk      int64         `json:"disk"`       // bytes in each private tmpfs (/tmp, /dev/shm, private workspace)
	Inodes    int64         `json:"inodes"`     // files in each private tmpfs
}

// Files are the descriptors that belong to a Spec. The Runner does not close
// them. Stdin may be nil (empty stdin); Stdout and Stderr are required and are
// handed to the program as they are: capping is the caller's, who reads the
// other end.
type Files struct {
	Exec      *os.File   // opened O_RDONLY (or a sealed memfd)
	Script    *os.File   // sealed memfd; nil unless Spec.Script
	Workspace *os.File   // O_PATH|O_DIRECTORY; nil unless Spec.Workspace
	Operands  []*os.File // sealed memfds
	Stdin     *os.File
	Stdout    *os.File
	Stderr    *os.File
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

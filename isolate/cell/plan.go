package cell

import (
	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
)

// Plan is what a palyra-cell would do to confine one call and run it. It comes
// from the code that does it, which stops before the first process of the call,
// so it holds for this host and this build. It serialises.
//
// What it does not say: whether the kernel will do it. Evidence does.
type Plan struct {
	Tier       string            `json:"tier"`
	Executor   string            `json:"executor"`
	Network    string            `json:"network"`    // "fresh", "void"; "" at tier B, which has the host's
	Namespaces []string          `json:"namespaces"` // kinds that are made for this call, sorted
	Template   []string          `json:"template"`   // mounts before the tape, as evidence.Mounts.Table has them
	Tape       PlanTape          `json:"tape"`
	Warm       *PlanTape         `json:"warm,omitempty"` // of a cell that was made ahead; nil where none can be
	Seccomp    PlanFilter        `json:"seccomp"`
	Landlock   evidence.Landlock `json:"landlock"`
	Limits     isolate.Limits    `json:"limits"`
	Cgroup     evidence.Cgroup   `json:"cgroup"`
	Degraded   []string          `json:"degradations"`
}

// PlanTape is the list of system calls between the clone and the program.
type PlanTape struct {
	// Digest is what evidence.Tape.Digest would be. For tier B of a user, or in a
	// directory of one, no two need be alike: the limit of processes counts those
	// that the user has at the moment.
	Digest canon.Digest `json:"digest"`
	Steps  []PlanStep   `json:"steps"`
}

// PlanStep is one step of the tape.
type PlanStep struct {
	Number int    `json:"number"`          // from 1
	Depth  int    `json:"depth,omitempty"` // 1: made by the program's process, 0: by its reaper, before and after
	Call   string `json:"call"`            // as evidence digests it, without what is secret or of the call
	Why    string `json:"why"`
}

// PlanFilter is the system call policy.
type PlanFilter struct {
	Policy       canon.Digest `json:"policy"` // what evidence.Seccomp.Policy would be
	Name         string       `json:"name"`
	Instructions int          `json:"instructions"`
	Default      string       `json:"default"` // for calls that no rule names
	Unknown      string       `json:"unknown"` // for numbers that are no call of this architecture
	Rules        []PlanRule   `json:"rules"`
}

// PlanRule is one group of system calls.
type PlanRule struct {
	Calls []string `json:"calls"`
	Does  []string `json:"does"` // in order, the first that applies: "allow if arg1 in {1}", "errno 1"
	Why   string   `json:"why"`
}

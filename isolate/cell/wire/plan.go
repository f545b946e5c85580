package wire

import (
	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
)

// Plan describes how a palyra-cell would confine one call and run it. The code that runs calls
// makes it and stops before the call's first process, so it holds for this host and this build.
// It serialises. It doesn't say whether the kernel will comply; evidence does.
type Plan struct {
	Tier       string            `json:"tier"`
	Executor   string            `json:"executor"`
	Network    string            `json:"network"`    // "fresh", "loopback", "session", "void"; "" at tier B, which has the host's
	Namespaces []string          `json:"namespaces"` // kinds that are made for this call, sorted
	Template   []string          `json:"template"`   // mounts before the tape, in the form of evidence.Mounts.Table
	Tape       PlanTape          `json:"tape"`
	Warm       *PlanTape         `json:"warm,omitempty"` // of a cell made ahead; nil if none can be
	Seccomp    PlanFilter        `json:"seccomp"`
	Landlock   evidence.Landlock `json:"landlock"`
	Limits     isolate.Limits    `json:"limits"`
	Cgroup     evidence.Cgroup   `json:"cgroup"`
	Degraded   []string          `json:"degradations"`
}

// PlanTape is the list of system calls between the clone and the program.
type PlanTape struct {
	// Digest is the future evidence.Tape.Digest. At tier B of a user, or in a user's directory,
	// it varies: the limit of processes counts the user's current ones.
	Digest canon.Digest `json:"digest"`
	Steps  []PlanStep   `json:"steps"`
}

// PlanStep is one step of the tape.
type PlanStep struct {
	Number int    `json:"number"`          // from 1
	Depth  int    `json:"depth,omitempty"` // 1: made by the program's process; 0: by its reaper, before and after
	Call   string `json:"call"`            // as in the evidence's digest, without secrets and values of the call
	Why    string `json:"why"`
}

// PlanFilter is the system call policy.
type PlanFilter struct {
	Policy       canon.Digest `json:"policy"` // the future evidence.Seccomp.Policy
	Name         string       `json:"name"`
	Instructions int          `json:"instructions"`
	Default      string       `json:"default"` // for calls that no rule names
	Unknown      string       `json:"unknown"` // for numbers that aren't calls of this architecture
	Rules        []PlanRule   `json:"rules"`
}

// PlanRule is one group of system calls.
type PlanRule struct {
	Calls []string `json:"calls"`
	Does  []string `json:"does"` // in order; the first that applies counts: "allow if arg1 in {1}", "errno 1"
	Why   string   `json:"why"`
}

// Package rlimit plans tier B: a confined process without namespaces, for hosts
// that have none to give.
//
// The program runs on the host's mounts, process table and network stack, and
// what keeps it from them is landlock (files, TCP, abstract sockets, signals),
// the seccomp filter (no sockets at all, no ptrace, the rest of the list),
// empty capability sets, no_new_privs and resource limits:
//
//	limits → bounding set → user → capabilities → no_new_privs → landlock →
//	signals → reaper and program split → session → seccomp → descriptors →
//	gate → execveat
//
// Unlike tier C it doesn't protect against these: the program can tell that other processes
// exist (by PID, not by content), memory is bounded per process and sampled for the tree,
// and without root the size of a private directory is sampled, too. If palyra-cell and
// palyra are killed at the same moment, a grandchild may live on.
package rlimit

import (
	"palyra/isolate"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
)

// Executor is the name of this runner in evidence.
const Executor = "sandbox_tier_b"

// Process is all that the tape of one call depends on.
type Process struct {
	Spec    *isolate.Spec
	FDs     steps.FDs
	Cwd     int    // folder to start in, on the host
	Ruleset int    // landlock ruleset
	Outside int    // a folder that none of its rules grants
	Quiet   bool   // Landlock's ABI is steps.QuietABI or later
	Filter  []byte // seccomp program, sock_filter array
	Cookie  uint64 // what opens the filter's execveat rule
	NProc   int64  // RLIMIT_NPROC: the call's processes and those the user has already
	Core    uint64 // RLIMIT_CORE: steps.NoCore, or 0 where it cannot be had
	// Privileged says that palyra-cell has capabilities; the bounding set is then
	// emptied. Root says that they are the host's; the program then becomes UID and
	// GID. Otherwise it stays who it is.
	Privileged, Root bool
	UID, GID         int
	Fence            int // landlock ruleset of steps.Fence; below 0 there is none
	LastCap          int
	Ignored          []int
}

// Tape returns the tape of p.
func Tape(p *Process) sys.Tape {
	t := steps.Subreaper()
	t = append(t, steps.Enter(p.Spec, p.Cwd))
	limits, files := steps.Files(steps.ResourceLimits(p.Spec.Limits, p.NProc, p.Core))
	t = append(t, steps.SetLimits(limits)...)
	if p.Privileged {
		t = append(t, steps.DropBounding(p.LastCap)...)
	}
	if p.Root {
		t = append(t, sys.Step{Call: "setgroups", Args: []sys.Arg{sys.Int(0), sys.Int(0)}, Why: "no supplementary group"})
		// Evidence observes who it became. The tape is the same for everybody.
		t = append(t, steps.Become(sys.ID("user", p.UID), sys.ID("group", p.GID))...)
	}
	t = append(t, steps.EmptyCapabilities()...)
	if p.Privileged {
		t = append(t, steps.ReadSecurebits()...)
	}
	if p.Root {
		t = append(t, steps.NotDumpable()...)
	}
	t = append(t, steps.NoNewPrivileges()...)
	t = append(t, steps.DieWithParent("palyra-cell")...)
	t = append(t, steps.RestrictWitnessed(p.Ruleset, p.Outside, p.Quiet)...)
	t = append(t, steps.SetLimits(files)...)
	t = append(t, steps.Signals(p.Ignored)...)
	// The filter forbids changing the death signal, so each of the two processes
	// installs it after having set its own.
	program := append(steps.Fence(p.Fence), steps.Session()...)
	program = append(program, steps.DieWithParent("its reaper")...)
	program = append(program, steps.Filter(p.Filter)...)
	program = append(program, steps.Descriptors(p.FDs)...)
	program = append(program, steps.Execute(p.Spec.Argv, p.Spec.Env, p.Cookie)...)
	return knob.Tape(append(t, steps.Split(program, steps.Filter(p.Filter)...)...))
}

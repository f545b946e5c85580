// Package certify is the half of the sandbox certificate that runs in a cell: the claims
// about the confinement, and the attempt behind each.
//
// A [Claim] says in one sentence what a program in a cell can't do, and which mechanism of
// the kernel keeps it from that. Each has one attempt, made by palyra-cell itself in its
// role certify-child ([Main]): once outside, where it must succeed, and once inside, where
// it must fail in a way that the claim names. palyra/kernel/certify stages and judges the
// attempts.
//
// One mechanism alone stands in the way of each attempt. With that one turned off
// (isolate/knob) the claim must be lost, and no other; a test turns off each. So these
// aren't the most dangerous attempts, which run into several layers at once: those are in
// conformance/escape.
//
// A certificate says that these attempts failed on this host since it was booted, not that
// others would.
package certify

import "palyra/isolate/knob"

// Word is the first argument of palyra-cell in this role.
const Word = "certify-child"

// Args is the number of arguments behind Word: the attempt and its two operands, "" for
// missing ones, so that the tape of every attempt is the same.
const Args = 3

// Claim is one sentence about a cell.
type Claim struct {
	Name    string   `json:"name"`    // "net_namespace"
	Says    string   `json:"says"`    // what a program cannot do
	Knob    string   `json:"-"`       // the mechanism, of isolate/knob
	Tiers   string   `json:"tiers"`   // "c", or "bc"
	Stopped []string `json:"stopped"` // the outcomes that count
	// ABI is the Landlock version that the mechanism came with; 0: none. The certificate
	// doesn't make the claim on an older kernel.
	ABI int `json:"abi,omitempty"`
}

// The outcomes of an attempt that are no errno.
const (
	Open   = "OPEN"   // it succeeded
	Untold = "UNTOLD" // it could not be made; the detail says why
	Other  = "OTHER"  // what it found is not the host's
	Set    = "SET"    // no_new_privs is
	Ended  = "TIMED_OUT"
)

// Claims returns the table.
func Claims() []Claim {
	return []Claim{
		{"user_namespace", "be the user 0 of a user namespace", knob.User, "c", []string{Other}, 0},
		{"mount_namespace", "name a file of the host", knob.Mount, "c", []string{"ENOENT"}, 0},
		{"pid_namespace", "name a process that is not of its cell", knob.PID, "c", []string{Other}, 0},
		{"net_namespace", "be in the host's network namespace", knob.Net, "c", []string{Other}, 0},
		{"ipc_namespace", "use a semaphore of the host that everybody may use", knob.IPC, "c", []string{"ENOENT"}, 0},
		{"uts_namespace", "learn the host's name", knob.UTS, "c", []string{Other}, 0},
		{"cgroup_namespace", "be in the host's cgroup namespace", knob.Cgroup, "c", []string{Other}, 0},
		{"time_namespace", "be in the host's time namespace", knob.Time, "c", []string{Other}, 0},
		{"no_new_privs", "gain privileges by executing a program", knob.NoNewPrivs, "bc", []string{Set}, 0},
		{"capabilities", "read a file against its mode", knob.Capabilities, "bc", []string{"EACCES"}, 0},
		{"rlimits", "have more open files than its limit", knob.Rlimits, "bc", []string{"EMFILE"}, 0},
		{"landlock_files", "touch a file that no rule gives it", knob.LandlockFS, "bc", []string{"EACCES"}, 1},
		{"landlock_ports", "listen on a TCP port with a socket that it was given", knob.LandlockNet, "c", []string{"EACCES", "EPERM"}, 4},
		{"landlock_scopes", "send to an abstract socket of the host over a socket that it was given", knob.LandlockIPC, "bc",
			[]string{"EPERM"}, 6},
		{"seccomp", "make system calls that are not on its list", knob.Seccomp, "bc", []string{"EPERM", "ENOSYS"}, 0},
		{"descriptors", "read a file that its launcher left open", knob.Descriptors, "bc", []string{"EBADF"}, 0},
		{"deadline", "outlive its time", knob.Deadline, "bc", []string{Ended}, 0},
	}
}

// Result is an attempt's output, as JSON.
type Result struct {
	Outcome string `json:"outcome"` // of the constants, or an errno's name
	Detail  string `json:"detail"`
}

package main

import (
	"fmt"
	"strconv"
	"time"
)

// attackCase is one row of the table: an attempt and the ways to stop it.
type attackCase struct {
	number  int    // of the attack table
	variant string // "chmod"; "" if there is one way only
	name    string // of the attack table
	attack  string // one line
	// stopped names, per tier, the outcomes that count as stopped. A tier
	// without any is not applicable, and then absent says why.
	stopped map[string][]string
	absent  map[string]string
	note    string // why these outcomes
	perTier bool   // the control differs by tier
	hosts   bool   // the call may reach some
	alone   bool   // it takes what all share: processors, memory, processes of a user
	waits   bool   // it takes time and nothing else
	stage   func(s *stage) (scene, error)
}

func (c *attackCase) id() string {
	if c.variant == "" {
		return strconv.Itoa(c.number)
	}
	return fmt.Sprintf("%d/%s", c.number, c.variant)
}

// scene is an attempt on a prepared stage.
type scene struct {
	probe string
	args  []string
	opt   options
	// canary looks from the host, after the run, whether it succeeded. Nil: the host can't
	// see, and the probe's word counts.
	canary func(o *outcome) (tripped bool, seen string)
	// lasting is for attempts to last: being still there at the deadline is
	// their success outside.
	lasting bool
	// because is a word that the reason of a refusal must hold. Without it the call was
	// refused for another reason and proves nothing.
	because string
	// confined runs the control inside the sandbox too, with what it needs.
	confined bool
}

// options are the grants and limits of a run and its surroundings.
type options struct {
	workspace string // host directory; "" none
	readOnly  bool
	mounts    []string // host directories
	caches    []string // names
	layer     string   // of a staged workspace, whatever the mode; "" is a new one, where the mode stages
	beside    []string // a probe of another call of the same session, whatever the mode; nil: none
	apart     bool     // and that call is of another session
	session   string   // of the call, in its own network; "": none
	egress    []string // the rules of hosts that the call may reach; it runs in the world, as its control does
	inspect   []string // the rules about requests of that call
	uses      []string // the secrets that are put into its requests
	others    []string // those of the call beside it, which has a network of its own then; without egress this one is in the session's
	env       []string // granted
	hostEnv   []string // of the launcher
	dir       string   // working directory of the launcher
	fds       map[int]string
	timeout   time.Duration // of the sandbox; 0 is 10 s
	deadline  time.Duration // of the battery; 0 is timeout and 5 s
	cpu       string
	memory    string
	pids      string
	maxOutput string
	maxFile   string
	receipt   string
	binary    string   // another palyra than the one under test
	attack    string   // another attack binary
	policy    string   // another policy directory
	wrap      []string // what to run the launcher under
	userns    bool     // run all of it in a user namespace, as its root
	tty       bool     // the program has a terminal of its own
	asked     bool     // the call is one that a person approves
	watch     bool     // sample the run's processes
	// spend ends the run when one of its processes has had so much processor time; 0:
	// never. However busy the machine is, a process that had so much wasn't limited.
	spend time.Duration
}

// tiers is a list of outcomes for both tiers; the first words are C's.
func both(outcomes ...string) map[string][]string {
	return map[string][]string{"b": outcomes, "c": outcomes}
}

func at(b, c []string) map[string][]string { return map[string][]string{"b": b, "c": c} }

func onlyC(outcomes ...string) map[string][]string { return map[string][]string{"c": outcomes} }

// join appends lists of outcomes.
func join(lists ...[]string) []string {
	var out []string
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// The results of a stopped attempt, by layer. A case takes one of these, or says why not.
var (
	// filtered: seccomp answered, or killed.
	filtered = []string{"EPERM", "ENOSYS", "SIGSYS"}
	// noFamily: seccomp refused the socket family.
	noFamily = []string{"EAFNOSUPPORT", "EPERM", "EACCES", "ENOSYS", "SIGSYS"}
	// notThere: the path is not in the mount namespace.
	notThere = []string{"ENOENT"}
	// fenced: Landlock refused the path.
	fenced = []string{"EACCES", "ENOENT"}
	// unowned: Landlock doesn't cover the operation; seccomp must, or the file belongs to
	// another user.
	unowned = []string{"EACCES", "EPERM", "ENOENT", "EROFS"}
	// noProcess: the process is not in the pid namespace (C), or Landlock's
	// scope and seccomp refuse (B).
	noProcess = []string{"ESRCH", "EPERM", "ENOSYS", "SIGSYS"}
	// noNetwork: an empty network namespace, Landlock or seccomp.
	noNetwork = []string{"ENETUNREACH", "EADDRNOTAVAIL", "EACCES", "EPERM", "EAFNOSUPPORT", "ECONNREFUSED", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT"}
	// full: a limit on files, or a tmpfs without room.
	full = []string{"ENOSPC", "EDQUOT", "EFBIG", "SIGXFSZ", "ENOMEM"}
	// spent: a limit on memory.
	spent = []string{"LIMIT", "SIGKILL", "ENOMEM"}
)

// call is a case whose probe needs no stage and leaves no trace: its errno is
// the verdict.
func call(number int, variant, name, attack string, stopped map[string][]string, probe string, args ...string) attackCase {
	return attackCase{number: number, variant: variant, name: name, attack: attack, stopped: stopped,
		stage: func(*stage) (scene, error) { return scene{probe: probe, args: args}, nil }}
}

// cases is the whole table.
func cases() []attackCase {
	var all []attackCase
	for _, f := range []func() []attackCase{fileCases, inheritCases, processCases, ipcCases, netCases,
		kernelCases, abiCases, bombCases, limitCases, backendCases, gateCases, hostCases, cellCases, sealCases, cardCases, memoryCases, mountCases, cacheCases, terminalCases, sessionCases, layerCases, tmpCases, egressCases, reachCases} {
		all = append(all, f()...)
	}
	for i := range all {
		switch n := all[i].number; {
		case n == 84 || n == 87:
			all[i].waits = true
		case n >= 79 && n <= 86:
			all[i].alone = true // they count processes and time
		}
	}
	return all
}

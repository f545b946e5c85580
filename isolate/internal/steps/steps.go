// Package steps holds the parts of a tape that tiers B and C share: limits,
// capabilities, the filter, descriptors, the gate and the execution.
//
// Every function returns steps for one stage; isolate/native and isolate/rlimit
// put the stages in order. The package is pure: it makes no system call.
package steps

import (
	"encoding/binary"
	"strconv"
	"time"

	"palyra/isolate"
	"palyra/isolate/internal/sys"
)

// Descriptors that the program's process holds from the stage Descriptors to
// its execution. 0, 1 and 2 are the program's own, 3 is a sealed script.
const (
	fdExec   = 4
	fdStatus = 5
	fdGate   = 6
)

// Limit is one resource limit by its RLIMIT name and number.
type Limit struct {
	Name       string
	Resource   int
	Soft, Hard uint64
}

// RLIMIT numbers, asm-generic/resource.h (the same on amd64 and arm64).
const (
	rlimitCPU, rlimitFSIZE, rlimitDATA, rlimitSTACK, rlimitCORE = 0, 1, 2, 3, 4
	rlimitNPROC, rlimitNOFILE, rlimitMEMLOCK                    = 6, 7, 8
	rlimitSIGPENDING, rlimitMSGQUEUE, rlimitNICE, rlimitRTPRIO  = 11, 12, 13, 14
)

// NoCore is the limit of a core file under which the kernel writes none and starts no
// handler of cores: it is less than the smallest core, and the one value that
// fs/coredump.c refuses a pipe for. Under 0 a handler that kernel.core_pattern names runs
// as root of the host, outside of every cell.
const NoCore = 1

// CPUSeconds returns a limit of processor time as RLIMIT_CPU has it: rounded up. The
// hard limit is a second more.
func CPUSeconds(limit time.Duration) uint64 { return uint64((limit + time.Second - 1) / time.Second) }

// ResourceLimits derives the rlimits from a Spec's limits. processes is what
// RLIMIT_NPROC must be, which depends on who else shares the user.
//
// Memory is RLIMIT_DATA, not RLIMIT_AS: run-times reserve far more address
// space than they use, and RLIMIT_DATA counts what is private and writable
// (kernel 4.7). It is per process; the tree is bounded by cgroup v2 where there
// is one.
//
// core is [NoCore], or 0 where palyra-cell may not have that much.
func ResourceLimits(l isolate.Limits, processes int64, core uint64) []Limit {
	cpu := CPUSeconds(l.CPU)
	same := func(name string, r int, v int64) Limit { return Limit{name, r, uint64(v), uint64(v)} }
	return []Limit{
		// SIGXCPU at the soft limit says why; SIGKILL a second later does not ask.
		{"cpu", rlimitCPU, cpu, cpu + 1},
		same("fsize", rlimitFSIZE, l.FileSize),
		same("data", rlimitDATA, l.Memory),
		{"stack", rlimitSTACK, 8 << 20, 64 << 20},
		{"core", rlimitCORE, core, core},
		same("nproc", rlimitNPROC, processes),
		same("nofile", rlimitNOFILE, l.OpenFiles),
		same("memlock", rlimitMEMLOCK, 64<<10),
		same("sigpending", rlimitSIGPENDING, 1024),
		same("msgqueue", rlimitMSGQUEUE, 819200),
		same("nice", rlimitNICE, 0),
		same("rtprio", rlimitRTPRIO, 0),
	}
}

// SetLimits sets the limits, before capabilities go: lowering needs none, but
// a hard limit that is already lower must fail loudly and not be raised.
func SetLimits(limits []Limit) sys.Tape {
	var t sys.Tape
	for _, l := range limits {
		b := binary.NativeEndian.AppendUint64(nil, l.Soft)
		b = binary.NativeEndian.AppendUint64(b, l.Hard)
		t = append(t, sys.Step{Call: "prlimit64",
			Args: []sys.Arg{sys.Int(0), sys.Int(l.Resource), sys.Bytes(l.Name, b, text(l.Soft, l.Hard)), sys.Int(0)},
			Why:  "bound " + l.Name + " for this process and all it starts"})
	}
	return t
}

func text(a, b uint64) string { return itoa(a) + "," + itoa(b) }

func itoa(v uint64) string {
	if v == 0 {
		return "0"
	}
	var b [20]byte
	i := len(b)
	for ; v > 0; v /= 10 {
		i--
		b[i] = byte('0' + v%10)
	}
	return string(b[i:])
}

// prctl(2) options and securebits of capabilities(7).
const (
	prSetPdeathsig      = 1
	prSetDumpable       = 4
	prCapbsetDrop       = 24
	prSetSecurebits     = 28
	prSetNoNewPrivs     = 38
	prSetChildSubreaper = 36
	prCapAmbient        = 47
	ambientClearAll     = 4
	secbitNoSetuidFixup = 4
	secbitsLocked       = 0xef // NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and every _LOCKED, KEEP_CAPS off and locked
	capabilityV3        = 0x20080522
	sigKill             = 9
	sigSetmask          = 2
	closeOnExec         = 0x80000
	atEmptyPath         = 0x1000
	seccompSetFilter    = 1
	cloneVM             = 0x100
	cloneFiles          = 0x400
	sigChld             = 17
	closeUnshare        = 2 // CLOSE_RANGE_UNSHARE
)

// DropBounding empties the bounding set and locks the securebits, so that
// neither uid 0 nor a file capability means anything from here on. It needs
// CAP_SETPCAP, so it comes before EmptyCapabilities and before a change of user
// that would take the capability away.
func DropBounding(lastCap int) sys.Tape {
	t := sys.Tape{{Call: "prctl", Args: ints(prSetSecurebits, secbitsLocked, 0, 0, 0), Why: "uid 0 shall mean nothing, for ever"}}
	for c := range lastCap + 1 {
		t = append(t, sys.Step{Call: "prctl", Args: ints(prCapbsetDrop, c, 0, 0, 0), Why: "drop one capability from the bounding set"})
	}
	return t
}

// EmptyCapabilities empties the ambient, effective, permitted and inheritable
// sets, after the last step that needs one.
func EmptyCapabilities() sys.Tape {
	hdr := binary.NativeEndian.AppendUint32(nil, capabilityV3)
	hdr = binary.NativeEndian.AppendUint32(hdr, 0)
	return sys.Tape{
		{Call: "prctl", Args: ints(prCapAmbient, ambientClearAll, 0, 0, 0), Why: "clear the ambient set"},
		{Call: "capset", Args: []sys.Arg{sys.Bytes("header", hdr, "v3"), sys.Bytes("sets", make([]byte, 24), "empty")},
			Why: "clear the effective, permitted and inheritable sets; the last step that needed one is behind us"},
	}
}

// Become changes group and user, real, effective and saved.
func Become(uid, gid sys.Arg) sys.Tape {
	return sys.Tape{
		{Call: "setresgid", Args: []sys.Arg{gid, gid, gid}, Why: "stop being palyra-cell's group"},
		{Call: "setresuid", Args: []sys.Arg{uid, uid, uid}, Why: "stop being palyra-cell's user"},
	}
}

// BecomeHost is Become with the capabilities kept, for what is still to be done
// with them. The kernel then counts what is made from here on as that user's.
func BecomeHost(uid, gid sys.Arg) sys.Tape {
	t := sys.Tape{{Call: "prctl", Args: ints(prSetSecurebits, secbitNoSetuidFixup, 0, 0, 0), Why: "the next two steps keep the capabilities"}}
	for _, s := range Become(uid, gid) {
		s.Why = "the cell's own user of the host, who then owns its user namespace: what is counted there is counted as the owner's, too"
		t = append(t, s)
	}
	return append(t, NotDumpable()...)
}

// NotDumpable keeps other processes from the memory that the child shares with
// palyra-cell until it executes the program. A change of user sets the flag, which is
// the memory's and so palyra-cell's, to fs.suid_dumpable (commit_creds), and
// that may be 1. It comes after each such change; execve sets it for the program's
// own memory.
func NotDumpable() sys.Tape {
	return sys.Tape{{Call: "prctl", Args: ints(prSetDumpable, 0, 0, 0, 0), Why: "nothing may look into the memory of palyra-cell, which this process shares; a change of user allows it where fs.suid_dumpable is 1"}}
}

// Fence puts the program, without its reaper, into a Landlock domain within the
// cell's. The program may then look into no process outside of that, which the
// reaper is: it has palyra-cell's memory, and in the short time between a change of
// user and [NotDumpable], in whichever cell, that flag does not protect it. Beyond what the
// cell's own ruleset forbids, this one keeps the program from signalling its reaper
// (Landlock ABI 6); below 0 there is none.
func Fence(ruleset int) sys.Tape {
	if ruleset < 0 {
		return nil
	}
	return append(sys.Tape{{Call: "landlock_restrict_self", Args: []sys.Arg{sys.FD("fence", ruleset), sys.Int(0)},
		Why: "a domain that the reaper, which has palyra-cell's memory, is not in: what is outside cannot be traced or read"}}, TryFence()...)
}

// Subreaper makes every orphan among the descendants a child of the reaper, so
// that the tree can be found and killed without a PID namespace.
func Subreaper() sys.Tape {
	return sys.Tape{{Call: "prctl", Args: ints(prSetChildSubreaper, 1, 0, 0, 0), Why: "orphans stay findable"}}
}

// NoNewPrivileges forbids gaining any by execve. Landlock and an unprivileged
// seccomp filter require it.
func NoNewPrivileges() sys.Tape {
	return sys.Tape{{Call: "prctl", Args: ints(prSetNoNewPrivs, 1, 0, 0, 0), Why: "no program may gain privileges; landlock and seccomp require it"}}
}

// DieWithParent asks for SIGKILL when the parent dies (palyra-cell's launcher
// thread, or the reaper). Credential changes clear it, so it comes after them.
func DieWithParent(parent string) sys.Tape {
	return sys.Tape{{Call: "prctl", Args: ints(prSetPdeathsig, sigKill, 0, 0, 0), Why: "die with " + parent + "; after the credential changes, which clear it"}}
}

// landlockQuiet keeps denials out of the host's audit log: LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF
// and _LOG_SUBDOMAINS_OFF. The second is inherited. Without it a program makes a domain of its own
// and fills the log, for whose queue the host's other processes then wait.
const landlockQuiet = 1 | 4

// QuietABI is the first Landlock ABI that logs denials, and can be told not to (kernel 6.15).
const QuietABI = 7

// Restrict enters the landlock domain: after the mounts, which it would forbid. quiet is for
// QuietABI and later.
func Restrict(ruleset int, quiet bool) sys.Tape {
	flags, why := 0, "enter the landlock domain; later mounts would be refused by it"
	if quiet {
		flags, why = landlockQuiet, why+"; and keep its denials, and those of a domain that the program makes, out of the host's audit log"
	}
	return sys.Tape{{Call: "landlock_restrict_self", Args: []sys.Arg{sys.FD("ruleset", ruleset), sys.Int(flags)}, Why: why}}
}

// Signals resets what an exec would inherit: mask and ignored signals.
func Signals(ignored []int) sys.Tape {
	t := sys.Tape{{Call: "rt_sigprocmask", Args: []sys.Arg{sys.Int(sigSetmask), sys.Bytes("set", make([]byte, 8), "empty"), sys.Int(0), sys.Int(8)},
		Why: "no signal is blocked in the program"}}
	for _, s := range ignored {
		t = append(t, sys.Step{Call: "rt_sigaction", Args: []sys.Arg{sys.Int(s), sys.Bytes("act", make([]byte, 32), "default"), sys.Int(0), sys.Int(8)},
			Why: "a signal that palyra-cell ignores has its default effect in the program"})
	}
	return append(t, sys.Step{Call: "umask", Args: ints(0o022), Why: "a known file mode mask"})
}

// Filter installs the seccomp filter: last of all confinement, since it forbids
// most of what went before.
func Filter(program []byte) sys.Tape {
	return sys.Tape{{Call: "seccomp", Args: []sys.Arg{sys.Int(seccompSetFilter), sys.Int(0), sys.SockFprog(program)},
		Why: "install the filter; it forbids most of the steps before it"}}
}

// Split clones the program's process off its reaper. The reaper keeps nothing
// open and waits, after steps of its own. It exists because a PID namespace's
// first process ignores signals that it has no handler for: a program that
// kills itself must die.
func Split(program sys.Tape, reaper ...sys.Step) sys.Tape {
	t := sys.Tape{
		{Call: "clone", Args: ints(cloneVM|sigChld, 0, 0, 0, 0), Out: sys.PIDSlot, Child: program,
			Why: "the program is not the reaper: process 1 would ignore its own fatal signals"},
		{Call: "close_range", Args: []sys.Arg{sys.Int(0), sys.Int(^uint32(0)), sys.Int(0)}, Why: "the reaper holds nothing open"},
	}
	t = append(t, reaper...)
	return append(t, sys.Step{Call: sys.Init, Why: "reap until the program has ended, then end"})
}

// SplitParked is Split for a cell that was made ahead: both processes use
// palyra-cell's own descriptor table until each takes one of its own, the reaper
// at once and the program with its call. The cookie opens the filter's rule for that.
func SplitParked(program sys.Tape, cookie uint64) sys.Tape {
	return sys.Tape{
		{Call: "clone", Args: ints(cloneVM|cloneFiles|sigChld, 0, 0, 0, 0), Out: sys.PIDSlot, Child: program,
			Why: "the program is not the reaper: process 1 would ignore its own fatal signals"},
		{Call: "close_range", Args: unshared(sys.Int(0), cookie),
			Why: "the reaper holds nothing open, in a table of its own"},
		{Call: sys.Init, Why: "reap until the program has ended, then end"},
	}
}

// Wait tells palyra-cell that the cell is armed and waits for its call.
func Wait(status sys.Arg) sys.Tape {
	return sys.Tape{
		{Call: "write", Args: []sys.Arg{status, sys.Bytes("mark", []byte{MarkArmed}, string(rune(MarkArmed))), sys.Int(1)},
			Why: "confinement is complete: palyra-cell reads the evidence now"},
		{Call: sys.Park, Why: "wait for a call; what follows is written when it comes"},
	}
}

// OwnDescriptors gives the program's process a copy of palyra-cell's descriptor
// table up to its own descriptors, and leaves palyra-cell's alone from here on.
func OwnDescriptors(f FDs, cookie uint64) sys.Tape {
	first := max(f.Stdin, f.Stdout, f.Stderr, f.Script, f.Exec) + 1
	return sys.Tape{{Call: "close_range", Args: unshared(sys.FD("after", first), cookie),
		Why: "a descriptor table of its own, with the call's descriptors in it"}}
}

// unshared are the arguments of a close_range that begins a table of its own.
func unshared(first sys.Arg, cookie uint64) []sys.Arg {
	return []sys.Arg{first, sys.Int(^uint32(0)), sys.Int(closeUnshare), sys.Int(0), sys.Int(0), sys.Secret("cookie", cookie)}
}

// FDs are descriptor numbers in palyra-cell, all at or above sys.LowFD.
// Script is -1 if there is none. Status and Gate are -1 for the rest of the tape
// of a cell that was made ahead.
type FDs struct {
	Stdin, Stdout, Stderr, Script, Exec, Status, Gate int
}

// Enter makes the folder behind dir, which palyra-cell has opened and compared, the
// working directory. The child looks no path up for it: a path can be made to lead to
// whatever the child has open. One in the workspace is printed by its name.
func Enter(s *isolate.Spec, dir int) sys.Step {
	label := "workspace"
	if s.CwdInode != "" {
		label = strconv.Quote(s.Cwd)
	}
	return sys.Step{Call: "fchdir", Args: []sys.Arg{sys.FD(label, dir)},
		Why: "the working directory, by descriptor: the folder that was sealed, whatever its name leads to by now"}
}

// Session gives the program a session of its own, without a terminal.
func Session() sys.Tape {
	return sys.Tape{{Call: "setsid", Why: "a session of its own, with no controlling terminal"}}
}

// tiocsctty is TIOCSCTTY, ioctl_tty(2).
const tiocsctty = 0x540e

// Terminal makes standard input the controlling terminal of the session, which has none yet. Of a
// terminal that another session has, the kernel refuses that (EPERM).
func Terminal() sys.Tape {
	return sys.Tape{{Call: "ioctl", Args: ints(0, tiocsctty, 0), Why: "the call's own terminal controls its session: a key for interrupt reaches the program"}}
}

// Descriptors puts the program's descriptors in place and closes all others.
func Descriptors(f FDs) sys.Tape {
	dup := func(label string, from, to, flags int, why string) sys.Step {
		return sys.Step{Call: "dup3", Args: []sys.Arg{sys.FD(label, from), sys.Int(to), sys.Int(flags)}, Why: why}
	}
	t := sys.Tape{
		dup("stdin", f.Stdin, 0, 0, "standard input"),
		dup("stdout", f.Stdout, 1, 0, "standard output"),
		dup("stderr", f.Stderr, 2, 0, "standard error"),
		dup("exec", f.Exec, fdExec, closeOnExec, "the sealed executable"),
	}
	end := fdExec + 1
	if f.Gate >= 0 {
		end = fdGate + 1
		t = append(t, dup("status", f.Status, fdStatus, closeOnExec, "tells palyra-cell how far we are; closes on exec"),
			dup("gate", f.Gate, fdGate, closeOnExec, "what we wait at"))
	}
	if f.Script >= 0 {
		t = append(t, dup("script", f.Script, isolate.ScriptFD, 0, "the sealed script, as execveat(2) would leave it"))
	} else {
		t = append(t, sys.Step{Call: "close_range", Args: ints(isolate.ScriptFD, isolate.ScriptFD, 0), Why: "nothing inherited at 3"})
	}
	return append(t, sys.Step{Call: "close_range", Args: []sys.Arg{sys.Int(end), sys.Int(^uint32(0)), sys.Int(0)},
		Why: "everything else that palyra-cell had open"})
}

// Rendezvous tells palyra-cell mark and waits for its answer. It stands where
// the parent must act on the child (id maps) or look at it (evidence).
func Rendezvous(mark byte, status, gate sys.Arg, why string) sys.Tape {
	return sys.Tape{
		{Call: "write", Args: []sys.Arg{status, sys.Bytes("mark", []byte{mark}, string(mark)), sys.Int(1)}, Why: why},
		{Call: "read", Args: []sys.Arg{gate, sys.Bytes("answer", make([]byte, 1), "1"), sys.Int(1)}, Out: "answer", Why: "wait for palyra-cell"},
	}
}

// The marks of Rendezvous.
const (
	MarkIDs  = 'U' // write the id maps
	MarkGate = 'G' // confinement complete: read the evidence
	// MarkArmed is MarkGate of a cell that was made ahead. It waits elsewhere.
	MarkArmed = 'A'
)

// Execute stops at the gate, where the evidence is read, and then executes the
// sealed file. The cookie opens the filter's rule for execveat.
func Execute(argv, env []string, cookie uint64) sys.Tape {
	t := Rendezvous(MarkGate, sys.Int(fdStatus), sys.Int(fdGate), "confinement is complete: palyra-cell reads the evidence now")
	return append(t, Exec(argv, env, cookie)...)
}

// Exec executes the sealed file.
func Exec(argv, env []string, cookie uint64) sys.Tape {
	return sys.Tape{{Call: "execveat",
		Args: []sys.Arg{sys.Int(fdExec), sys.Str(""), sys.Strings("argv", argv), sys.Strings("env", env), sys.Int(atEmptyPath), sys.Secret("cookie", cookie)},
		Why:  "execute the sealed descriptor; the path is never looked up again"}}
}

func ints(v ...int) []sys.Arg {
	out := make([]sys.Arg, len(v))
	for i, n := range v {
		out[i] = sys.Int(n)
	}
	return out
}

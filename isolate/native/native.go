// Package native plans the tier-C cell: the tape that a child walks from
// clone3(2) to execveat(2) inside the template mount namespace.
//
// The order is the contract of DESIGN.md and is held by a test:
//
//	namespaces → mounts → user namespace and id maps → limits → capabilities →
//	no_new_privs → landlock → limit of descriptors → signals → seccomp →
//	reaper and program split → session, descriptors → gate → execveat
//
// A cell that is made ahead ([Armed]) waits after the session, and that is its
// gate: evidence is read there, and its descriptors come with the call ([Rest]).
//
// The namespaces other than the user namespace are owned by palyra-cell's user
// namespace, in which the program has no identity: even a capability that it
// regained in its own user namespace would have no power over them.
//
// Building the template and serving calls is isolate/cell. What this package
// does not protect against: what the mounts show is readable, and the kernel's
// attack surface behind the allowed system calls remains.
package native

import (
	"encoding/binary"
	"strconv"

	"palyra/call"
	"palyra/isolate"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
)

// Executor is the name of this runner in evidence.
const Executor = "sandbox_tier_c_linux_native"

// ExecutorHostNetwork is its name where the program is in the host's network, which is no sandbox.
const ExecutorHostNetwork = "tier_c_linux_native_host_network"

// Namespaces are the CLONE_NEW* flags of the cell's clone3. The user namespace
// follows by unshare(2), after the mounts: whoever owns it must not own them.
// The time namespace takes effect at the exec (time_namespaces(7)).
const Namespaces = cloneNewNS | cloneNewPID | cloneNewNet | cloneNewIPC | cloneNewUTS | cloneNewCgroup | cloneNewTime

// SharedNetwork are the same for a cell that takes over the network namespace of
// the thread that clones it.
const SharedNetwork = Namespaces &^ cloneNewNet

// ShareFiles is the flag of clone3 for the tape of Armed: CLONE_FILES.
const ShareFiles = 0x400

// clone(2), clone3(2); linux/sched.h.
const (
	cloneNewTime   = 0x00000080
	cloneNewNS     = 0x00020000
	cloneNewCgroup = 0x02000000
	cloneNewUTS    = 0x04000000
	cloneNewIPC    = 0x08000000
	cloneNewUser   = 0x10000000
	cloneNewPID    = 0x20000000
	cloneNewNet    = 0x40000000
)

// InnerID is the uid and gid that the program sees itself as.
const InnerID = 1000

// Where things are inside the cell.
const (
	WorkspaceDir = call.WorkspaceDir
	Hostname     = "cell"
)

// Attach is a detached mount that the child attaches at a path of the template.
type Attach struct {
	Label string // as printed: "tmp", "workspace"
	FD    int
	Path  string
}

// Operand is a sealed copy that is mounted over a file of the workspace.
type Operand struct {
	FD   int    // detached read-only mount of the copy
	Path string // relative to the workspace, clean
}

// Cell is all that the tape of one call depends on.
type Cell struct {
	Spec     *isolate.Spec
	FDs      steps.FDs
	Ruleset  int      // landlock ruleset
	Outside  int      // a folder that none of its rules grants
	Quiet    bool     // Landlock's ABI is steps.QuietABI or later
	Filter   []byte   // seccomp program, sock_filter array
	Cookie   uint64   // what opens the filter's rules for steps after it
	Mounts   []Attach // in order
	Cwd      int      // folder to start in, on one of Mounts
	Operands []Operand
	Bundles  []string // of the host's roots, in Mounts, that isolate.RootsFile covers
	// Root says that palyra-cell has the host's capabilities. It drops the
	// supplementary groups; without them they cannot be dropped.
	Root     bool
	UID, GID int      // as root, the cell's own ids on the host
	Fence    int      // landlock ruleset of steps.Fence; below 0 there is none
	Counted  bool     // no cgroup counts what the kernel holds for the cell
	NoIPC    bool     // the program can make no System V objects
	Core     uint64   // RLIMIT_CORE: steps.NoCore, or 0 where it cannot be had
	LastCap  int      // highest capability of this kernel
	Ignored  []int    // signals that palyra-cell ignores
	Masked   []string // those of Masked that this kernel has
	Fixed    *Fixed   // of these three, if they were made before; may be nil
}

// Fixed are the steps that are the same for every cell of a palyra-cell. They are
// made once and not changed.
type Fixed struct{ proc, nested, capabilities, signals sys.Tape }

// NewFixed makes them for the kernel's highest capability, the signals that
// palyra-cell ignores and the files of proc to mask.
func NewFixed(lastCap int, ignored []int, masked []string) *Fixed {
	c := steps.DropBounding(lastCap)
	c = append(c, steps.EmptyCapabilities()...)
	c = append(c, steps.ReadSecurebits()...)
	c = append(c, steps.NotDumpable()...)
	c = append(c, steps.NoNewPrivileges()...)
	c = append(c, steps.DieWithParent("palyra-cell")...)
	return &Fixed{proc(masked), set("nested", nested[:]), c, steps.Signals(ignored)}
}

// fsconfig(2) and mount attributes.
const (
	fsconfigCreate = 6
	fsCloexec      = 1
	procAttrs      = 2 | 4 | 8 // nosuid, nodev, noexec
	fEmptyPath     = 0x4
	tEmptyPath     = 0x40
	atFDCWD        = -100
	mntDetach      = 2
	openTreeClone  = 1
	openPath       = 0x200000 // O_PATH
	openReadWrite  = 0x2      // O_RDWR
	openCloexec    = 0x80000
	resolveBeneath = 0x08 | 0x04 | 0x02 // RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS
)

// Tape returns the tape of c.
func Tape(c *Cell) sys.Tape {
	program := append(steps.Fence(c.Fence), steps.Session()...)
	program = append(program, steps.Descriptors(c.FDs)...)
	if c.Spec.TTY != nil {
		program = append(program, steps.Terminal()...)
	}
	program = append(program, steps.Execute(c.Spec.Argv, c.Spec.Env, c.Cookie)...)
	return knob.Tape(append(confine(c), steps.Split(program)...))
}

// Armed returns the tape of a cell that is made before its call: the whole
// confinement, up to where the program's process waits. Of c it uses nothing
// that belongs to one call but limits and working directory. It is for
// ShareFiles, and Rest is what follows.
func Armed(c *Cell) sys.Tape {
	program := append(steps.Fence(c.Fence), steps.Session()...)
	program = append(program, steps.Wait(sys.FD("status", c.FDs.Status))...)
	return knob.Tape(append(confine(c), steps.SplitParked(program, c.Cookie)...))
}

// Rest returns what the program's process of an armed cell does when its call
// comes: take the call's descriptors and execute. It uses FDs, argv, env and
// cookie of c.
func Rest(c *Cell) sys.Tape {
	t := steps.OwnDescriptors(c.FDs, c.Cookie)
	t = append(t, steps.Descriptors(c.FDs)...)
	return knob.Tape(append(t, steps.Exec(c.Spec.Argv, c.Spec.Env, c.Cookie)...))
}

// confine are the steps of both processes of a cell.
func confine(c *Cell) sys.Tape {
	fixed := c.Fixed
	if fixed == nil {
		fixed = NewFixed(c.LastCap, c.Ignored, c.Masked)
	}
	t := append(make(sys.Tape, 0, 160), fixed.proc...)
	t = append(t, sys.Step{Call: "sethostname", Args: []sys.Arg{sys.Str(Hostname), sys.Int(len(Hostname))},
		Why: "the cell does not know the host's name"})
	if c.Counted && !c.NoIPC {
		t = append(t, set("ipc", systemV(c.Spec.Limits.Memory))...)
	}
	if c.Spec.Network == isolate.NetworkLoopback {
		t = append(t, loopback()...)
	}
	for _, m := range c.Mounts {
		t = append(t, sys.Step{Call: "move_mount",
			Args: []sys.Arg{sys.FD(m.Label, m.FD), sys.Str(""), sys.Int(atFDCWD), sys.Str(m.Path), sys.Int(fEmptyPath)},
			Why:  "attach " + m.Label + "; the path lies in the read-only template, so no program can race it"})
	}
	for _, path := range c.Bundles {
		t = append(t, cover("bundle", isolate.RootsFile, path, "the host's roots with the call's own authority", "cover the host's alone; its folder is the host's, and root's")...)
	}
	t = append(t, operands(c.Spec.Workspace.View(), c.Operands)...)
	t = append(t, steps.Enter(c.Spec, c.Cwd))
	if c.Root {
		t = append(t, sys.Step{Call: "setgroups", Args: []sys.Arg{sys.Int(0), sys.Int(0)}, Why: "no supplementary group of the host; impossible after unshare"})
		t = append(t, steps.BecomeHost(sys.ID("user", c.UID), sys.ID("group", c.GID))...)
	}
	t = append(t, sys.Step{Call: "unshare", Args: []sys.Arg{sys.Int(cloneNewUser)},
		Why: "a user namespace that owns none of the others, so after the mounts"})
	t = append(t, fixed.nested...)
	t = append(t, steps.Rendezvous(steps.MarkIDs, sys.FD("status", c.FDs.Status), sys.FD("gate", c.FDs.Gate), "palyra-cell writes our id maps now")...)
	t = append(t, steps.Become(sys.Int(InnerID), sys.Int(InnerID))...)
	t = append(t, steps.TryNested()...)
	// One more process than the program may have: the reaper counts too.
	limits, files := steps.Files(steps.ResourceLimits(c.Spec.Limits, c.Spec.Limits.PIDs+1, c.Core))
	t = append(t, steps.SetLimits(limits)...)
	t = append(t, fixed.capabilities...)
	t = append(t, steps.RestrictWitnessed(c.Ruleset, c.Outside, c.Quiet)...)
	t = append(t, steps.SetLimits(files)...)
	t = append(t, fixed.signals...)
	return append(t, steps.Filter(c.Filter)...)
}

// proc mounts the cell's own /proc. It must be made by a process of the PID
// namespace, and in a user namespace only while another one is fully visible
// (mount_too_revealing in fs/namespace.c), which is why the template has one.
func proc(masked []string) sys.Tape {
	t := sys.Tape{
		{Call: "fsopen", Args: []sys.Arg{sys.Str("proc"), sys.Int(fsCloexec)}, Out: "procfs", Why: "the cell's own /proc, of its own PID namespace"},
		{Call: "fsconfig", Args: []sys.Arg{sys.Slot("procfs"), sys.Int(fsconfigCreate), sys.Int(0), sys.Int(0), sys.Int(0)}, Why: "create it"},
		{Call: "fsmount", Args: []sys.Arg{sys.Slot("procfs"), sys.Int(fsCloexec), sys.Int(procAttrs)}, Out: "proc", Why: "as a detached mount"},
		{Call: "umount2", Args: []sys.Arg{sys.Str("/proc"), sys.Int(mntDetach)}, Why: "the template's proc, which shows palyra-cell, goes"},
		{Call: "move_mount", Args: []sys.Arg{sys.Slot("proc"), sys.Str(""), sys.Int(atFDCWD), sys.Str("/proc"), sys.Int(fEmptyPath)}, Why: "attach it"},
		// A cell that was made ahead has palyra-cell's own descriptor table.
		{Call: "close", Args: []sys.Arg{sys.Slot("procfs")}, Why: "no descriptor of it stays"},
		{Call: "close", Args: []sys.Arg{sys.Slot("proc")}, Why: "nor of the mount"},
	}
	for _, path := range masked {
		t = append(t, cover("mask", "/dev/null", path, "an empty file for a list of what is the host's: keys of palyra's user, locks", "cover it")...)
	}
	return t
}

// cover mounts a file of the cell over another.
func cover(slot, file, path, whyFile, why string) sys.Tape {
	return sys.Tape{
		{Call: "open_tree", Args: []sys.Arg{sys.Int(atFDCWD), sys.Str(file), sys.Int(openTreeClone | openCloexec)}, Out: slot, Why: whyFile},
		{Call: "move_mount", Args: []sys.Arg{sys.Slot(slot), sys.Str(""), sys.Int(atFDCWD), sys.Str(path), sys.Int(fEmptyPath)}, Why: why},
		{Call: "close", Args: []sys.Arg{sys.Slot(slot)}, Why: "no descriptor of it stays"},
	}
}

// Masked returns the files of proc that tell of the host what no namespace keeps from a
// cell: names of keys (keyrings(7)), how many each user has, and who else holds locks.
func Masked() []string { return []string{"/proc/keys", "/proc/key-users", "/proc/locks"} }

// howSize is that of struct open_how, openat2(2).
const howSize = 24

// how is a struct open_how: flags, mode, resolve.
func how(flags, resolve uint64, text string) sys.Arg {
	b := binary.NativeEndian.AppendUint64(nil, flags|openCloexec)
	b = binary.NativeEndian.AppendUint64(b, 0)
	return sys.Bytes("how", binary.NativeEndian.AppendUint64(b, resolve), text)
}

// variableSize is more than a variable's text has.
const variableSize = 32

// Variable is one of the kernel's that a cell has for itself. What is read back is left
// in the room with the name of its path (sys.Arena.Room).
type Variable struct{ Path, Value, why string }

// Variables are those of a cell. counted says that no cgroup counts what the kernel holds
// for it, and objects that it can make System V objects.
func Variables(s *isolate.Spec, counted, objects bool) []Variable {
	var all []Variable
	if counted && objects {
		all = systemV(s.Limits.Memory)
	}
	if s.Network == isolate.NetworkLoopback {
		all = append(all, Buffers[:]...)
	}
	return append(all, nested[:]...)
}

// set sets variables. slot names those of one kind, so that isolate/knob finds the steps.
func set(slot string, variables []Variable) sys.Tape {
	t := make(sys.Tape, 0, 4*len(variables))
	for _, v := range variables {
		t = append(t,
			sys.Step{Call: "openat2", Args: []sys.Arg{sys.Int(atFDCWD), sys.Str(v.Path), how(openReadWrite, 0, "O_RDWR"), sys.Int(howSize)},
				Out: slot, Why: v.why},
			sys.Step{Call: "write", Args: []sys.Arg{sys.Slot(slot), sys.Bytes(slot, []byte(v.Value), v.Value), sys.Int(len(v.Value))},
				Why: "set it"},
			sys.Step{Call: "pread64", Args: []sys.Arg{sys.Slot(slot), sys.Room(v.Path, variableSize), sys.Int(variableSize), sys.Int(0)},
				Why: "read it back, for palyra-cell at the gate"},
			sys.Step{Call: "close", Args: []sys.Arg{sys.Slot(slot)}, Why: "no descriptor of it stays"})
	}
	return t
}

// NestedLimit is the number of user namespaces that may be made in the cell's,
// namespaces(7). Each user namespace has its own, and opening the file finds that
// of whoever opens it, so that it must be opened in the cell, after the unshare.
const NestedLimit = "/proc/sys/user/max_user_namespaces"

// What a cell may have of what the kernel counts for the user who owns its user
// namespace as well: inotify(7). As root that is the cell's own; elsewhere it is
// palyra's, who has 128 instances unless the host says otherwise, for all programs.
const (
	instancesLimit = "/proc/sys/user/max_inotify_instances"
	watchesLimit   = "/proc/sys/user/max_inotify_watches"
	maxInstances   = "16"
	maxWatches     = "8192" // some 10 MiB of the kernel's memory
)

// nested are the variables of the cell's user namespace. The filter forbids user
// namespaces, too; NestedLimit holds where the filter were passed by, for most of what an
// attacker would do there begins with capabilities in a user namespace of their own.
var nested = [...]Variable{
	{NestedLimit, "0", "how many user namespaces may be made in this one: none, so no process in the cell gets capabilities, even without the filter; CAP_SYS_RESOURCE is needed, which later steps take"},
	{instancesLimit, maxInstances, "inotify instances, which count as those of the namespace's owner, too"},
	{watchesLimit, maxWatches, "and watches"},
}

// The limits of System V objects in a cell that no cgroup counts. They belong to no
// process, so that samples do not see them. With these values semaphores hold
// 0.3 MiB and what they undo 4 MiB, messages 17 MiB, and shared memory a quarter of
// the memory limit; 6.9 made the variables the IPC namespace owner's to write.
const (
	semLimit      = "/proc/sys/kernel/sem" // per set, in all, per call, sets
	segmentsLimit = "/proc/sys/kernel/shmmni"
	pagesLimit    = "/proc/sys/kernel/shmall"
	queuesLimit   = "/proc/sys/kernel/msgmni"
	maxSem        = "250 4096 32 128"
	maxSegments   = "128"
	maxQueues     = "16" // each holds at most 16384 messages, and as many bytes
	sharedPart    = 4
	pageSize      = 4 << 10 // the smallest; larger pages are fewer
)

// IPCLimit is one of the variables that a cell's IPC namespace gets, for palyra-cell
// to try whether it may.
const IPCLimit = semLimit

// systemV are those limits. They are set before the change of user, who could not.
func systemV(memory int64) []Variable {
	return []Variable{
		{semLimit, maxSem, "System V semaphores: the kernel holds them, and nothing counts that"},
		{segmentsLimit, maxSegments, "segments of shared memory"},
		{pagesLimit, strconv.FormatInt(max(memory/sharedPart/pageSize, 1), 10), "the pages of all of them"},
		{queuesLimit, maxQueues, "message queues"},
	}
}

// MaxQueue is the most that a TCP socket of a loopback cell queues in one direction, in
// bytes of the kernel's memory: one packet more than buffers allow.
const MaxQueue = maxQueue + 64<<10

const maxQueue = 512 << 10

// Buffers are variables of a network namespace whose loopback interface is up. A new one has the
// host's, by which a connection may queue 36 MiB.
var Buffers = [...]Variable{
	{"/proc/sys/net/ipv4/tcp_rmem", "4096 131072 " + strconv.Itoa(maxQueue), "how much a TCP socket queues that the program hasn't received: samples count a connection without a descriptor as full"},
	{"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 " + strconv.Itoa(maxQueue), "and that its peer hasn't acknowledged"},
	{"/proc/sys/net/ipv4/tcp_fastopen", "0", "no data with a request for a connection"},
}

// FreePorts lets every user bind ports below 1024, palyra-egress above all: ip(7).
var FreePorts = Variable{"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0", "the ports of servers that programs connect to"}

// netdevice(7).
const (
	afInet           = 2
	sockDgram        = 2
	interfaceFlags   = 0x8914 // SIOCSIFFLAGS
	interfaceUp      = 1      // IFF_UP
	interfaceName    = 16     // IFNAMSIZ
	interfaceRequest = 40     // sizeof(struct ifreq)
)

// loopback sets the loopback interface up, with which the kernel gives it 127.0.0.1 and
// ::1, and bounds what sockets hold. It comes before the change of user: it takes
// CAP_NET_ADMIN over the network namespace, which the program's own user namespace does
// not have.
func loopback() sys.Tape {
	request := make([]byte, interfaceRequest)
	copy(request, "lo")
	binary.NativeEndian.PutUint16(request[interfaceName:], interfaceUp)
	return append(set("lo", Buffers[:]),
		sys.Step{Call: "socket", Args: []sys.Arg{sys.Int(afInet), sys.Int(sockDgram | openCloexec), sys.Int(0)}, Out: "lo",
			Why: "a socket of the cell's network namespace, to ask through"},
		sys.Step{Call: "ioctl", Args: []sys.Arg{sys.Slot("lo"), sys.Int(interfaceFlags), sys.Bytes("ifreq", request, "lo,UP")},
			Why: "the loopback interface, the only one, is up"},
		sys.Step{Call: "close", Args: []sys.Arg{sys.Slot("lo")}, Why: "no descriptor of it stays"})
}

// operands mounts sealed copies over workspace files. The target is resolved in
// the cell's own view and beneath the workspace only, and then used as a
// descriptor: a symlink swapped in by somebody who writes there is refused.
func operands(view string, ops []Operand) sys.Tape {
	if len(ops) == 0 {
		return nil
	}
	t := sys.Tape{{Call: "openat2", Args: []sys.Arg{sys.Int(atFDCWD), sys.Str(view), how(openPath, 0, "O_PATH"), sys.Int(howSize)},
		Out: "workspace", Why: "the workspace, to resolve operands beneath it"}}
	for _, o := range ops {
		t = append(t,
			sys.Step{Call: "openat2", Args: []sys.Arg{sys.Slot("workspace"), sys.Str(o.Path), how(openPath, resolveBeneath, "O_PATH,beneath,no-links"), sys.Int(howSize)},
				Out: "operand", Why: "the file that a sealed copy covers"},
			sys.Step{Call: "move_mount", Args: []sys.Arg{sys.FD("copy", o.FD), sys.Str(""), sys.Slot("operand"), sys.Str(""), sys.Int(fEmptyPath | tEmptyPath)},
				Why: "cover it with the approved bytes"})
	}
	return t
}

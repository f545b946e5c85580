// Package knob turns one mechanism of the sandbox off, in a build for tests that
// cannot be shipped.
//
// A test of a sandbox is only as good as its knowledge of what stopped the
// attack. With the build tag palyra_knobs each mechanism has a knob, and a claim
// of the sandbox certificate, or a case of the attack battery, that does not
// notice when its mechanism is missing proves nothing. Without the tag every
// function here is the identity and [Build] is empty: the compiler leaves nothing
// of it, and conformance/arch fails for a build that has more.
//
// A build with the tag reads what is off from the file whose name is its own
// with ".knobs" behind it, one name a line. It says what it is wherever it can:
// in `palyra version`, in the receipt of every call, in what palyra-cell answers
// to palyra. palyra without the tag refuses a palyra-cell with it, a state
// directory belongs to one of the two kinds of build for ever, and palyrad does
// not start.
//
// The package doesn't protect against an attacker who can replace palyra-cell: they need no
// knobs.
package knob

// Tag is the build tag, and Build's value in a build that has it.
const Tag = "palyra_knobs"

// Origin is the name of the log in every state directory of a build with the
// tag: each of its receipts carries it, in the checkpoint.
const Origin = "palyra-knobs.invalid"

// The knobs. Each stands for one mechanism of tier C; those that tier B has
// as well turn it off there, too.
const (
	User         = "user"         // the user namespace of the cell
	Mount        = "mount"        // the template: the cell sees the host's files. Landlock's rules stay what they are: the one about / is about the template's
	PID          = "pid"          // the PID namespace of the cell
	Net          = "net"          // its network namespace, fresh, pooled or void
	IPC          = "ipc"          // its IPC namespace
	UTS          = "uts"          // its UTS namespace
	Cgroup       = "cgroup"       // its cgroup namespace
	Time         = "time"         // its time namespace
	NoNewPrivs   = "no_new_privs" // PR_SET_NO_NEW_PRIVS; needs capabilities, so not tier B of a plain user
	Capabilities = "capabilities" // the empty capability sets: the program has CAP_DAC_OVERRIDE where it can
	Rlimits      = "rlimits"      // every resource limit
	LandlockFS   = "landlock_fs"  // Landlock's rights on files
	LandlockNet  = "landlock_net" // its rights on ports
	LandlockIPC  = "landlock_ipc" // its scopes: abstract sockets and signals
	Seccomp      = "seccomp"      // the filter
	Descriptors  = "descriptors"  // closing what palyra-cell had open
	Deadline     = "deadline"     // the kill at the wall clock limit
)

// Knobs of mechanisms that stand behind another one, so that no claim is lost
// without them: the attack battery turns them off together with what is in front.
const (
	// OuterPID is the PID namespace of palyra-cell itself, which palyra makes for it:
	// this knob is read by palyra, from palyra.knobs.
	OuterPID = "outer_pid"
	// Landlock is all of it, with what it forbids whatever its rules: mounts.
	Landlock = "landlock"
	// Nested are the limits of the cell's user namespace: of those within it, of inotify.
	Nested = "nested_userns"
)

// Omit with a number behind it leaves out that step of the tape, and nothing else: the
// gate stays as it is, which is what is tried.
const Omit = "omit:"

// Behind returns them.
func Behind() []string { return []string{OuterPID, Landlock, Nested} }

// Names returns the knobs that have a claim.
func Names() []string {
	return []string{User, Mount, PID, Net, IPC, UTS, Cgroup, Time, NoNewPrivs, Capabilities, Rlimits,
		LandlockFS, LandlockNet, LandlockIPC, Seccomp, Descriptors, Deadline}
}

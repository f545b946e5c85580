package seccomp

import (
	"palyra/internal/canon"
	"palyra/isolate/tier"
)

// Options choose among the variants of the cell policy. The zero Options give
// the strictest but for NoPair: no socket at all and no execveat.
type Options struct {
	// Tier C has its own network, IPC and PID namespaces; below it the filter
	// must stand in for them.
	Tier tier.Tier
	// ExecCookie lets execveat(2) through if its unused sixth argument register
	// is equal to it. It must be random and change with every palyra-cell: the
	// cell's own last step passes it, and the program cannot know it, because
	// execve clears registers and memory. Zero: execveat never succeeds.
	ExecCookie uint64
	// AllowInet lets socket(2) make TCP and UDP sockets. In an empty network
	// namespace they reach nothing; without it there is a second layer that says
	// so, which is the only one for UDP below Landlock's ABI 10. It is ignored
	// below tier C, where such a socket would reach the host's network.
	AllowInet bool
	// NoFastOpen refuses data with a request for a connection (MSG_FASTOPEN), by which TCP connects
	// and Landlock's rules for ports aren't asked: for a cell in the host's network, whose variable
	// for it isn't the cell's to set.
	NoFastOpen bool
	// AllowUnix lets socket(2) make unix sockets and socketpair(2) make datagram
	// pairs. Both can reach a host process that listens in a directory which the
	// cell shows, and every cell shows the host's /usr. Landlock confines that only
	// from ABI 9 on: allow it where there is such a Landlock. Ignored below tier C.
	AllowUnix bool
	// NoPair denies socketpair(2), too, so that with the other options off no
	// socket of any kind can be made: for a network namespace that is shared,
	// where even a pair shows in /proc/net/unix of everybody else.
	NoPair bool
	// AllowPathMetadata lets chmod, chown and utime take paths below
	// tier C. Landlock (up to ABI 10) does not see them, so the program can then
	// change modes and times of every file of its user that the
	// host's file permissions let it reach. Without it ld(1) cannot mark its
	// output as executable at tier B; the calls on descriptors always work.
	// At tier C only the cell's own mounts are in reach and it has no effect.
	AllowPathMetadata bool
	// ReadOnly keeps modes, owners, times and attributes of what is open as they
	// are, for a workspace that is shown to be read: whoever may open a file to
	// read it could change them through the descriptor, if it is its user's, and
	// Landlock does not see that. A filter does not know which file a descriptor
	// is of, so it holds for all of them. It excludes AllowPathMetadata. At tier C
	// the mount is read-only and it has no effect.
	ReadOnly bool
	// AllowUncounted lets a program make what holds memory that only a cgroup
	// counts: files in memory, pipes of more than the usual size, Landlock rulesets.
	// Without it what a program can hold is what samples of its processes see
	// (isolate/cell).
	AllowUncounted bool
	// AllowShared lets it make anonymous memory that processes share. The pages stay
	// while any part of it is mapped; how many there are only the host's root can see.
	AllowShared bool
	// AllowIPC lets it make System V objects, whose memory belongs to no process: for
	// an IPC namespace that has limits of its own, or a cgroup. Ignored below tier C.
	AllowIPC bool
}

// Cell is the policy of tiers B and C: an allowlist that ordinary dynamically
// linked programs live with.
func Cell(o Options) Policy {
	p := Policy{
		Name:    "cell-" + o.Tier.String(),
		Default: Errno(EPERM),
		Unknown: Errno(ENOSYS),
	}
	namespaces := o.Tier == tier.C
	for _, rules := range [][]Rule{
		allowedRules(), sendRules(namespaces && o.NoFastOpen), deniedRules(), processRules(o.ExecCookie, namespaces), memoryRules(o.AllowUncounted, o.AllowShared), fileRules(namespaces),
		socketRules(o.NoPair, namespaces, namespaces && o.AllowInet, namespaces && o.AllowUnix, o.AllowUncounted),
		objectRules(namespaces, namespaces && o.AllowIPC), limitRules(), viewRules(namespaces),
		metadataRules(namespaces || o.AllowPathMetadata && !o.ReadOnly, o.ReadOnly && !namespaces),
	} {
		p.Rules = append(p.Rules, rules...)
	}
	return p
}

// ForCell is Compile(Cell(o), a) with the digest of the same program without the
// cookie, which is its policy's: the cookie differs from one palyra-cell to the next.
func ForCell(o Options, a Arch) (f Filter, policy canon.Digest, err error) {
	if f, err = Compile(Cell(o), a); err != nil {
		return Filter{}, policy, err
	}
	o.ExecCookie = 0
	plain, err := Compile(Cell(o), a)
	if err != nil {
		return Filter{}, policy, err
	}
	return f, plain.Digest(), nil
}

// allow, deny and the conditions make tables readable.
func allow(why string, calls ...string) Rule { return Rule{Calls: calls, Else: Allow, Why: why} }

func deny(errno uint16, why string, calls ...string) Rule {
	return Rule{Calls: calls, Else: Errno(errno), Why: why}
}

func is(arg int, values ...uint64) Cond { return Cond{Arg: arg, Values: values} }

func masked(arg int, mask uint32, values ...uint64) Cond {
	return Cond{Arg: arg, Mask: mask, Values: values}
}

func anyBit(arg int, mask uint32) Cond { return Cond{Arg: arg, Mask: mask, Op: AnyBit} }

func when(then Action, conds ...Cond) Clause { return Clause{When: conds, Then: then} }

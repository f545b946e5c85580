package selfconfine

import "palyra/isolate/native/seccomp"

// Numbers of the kernel's interface, the same on amd64 and arm64.
const (
	afUnix  = 1
	afInet  = 2
	afInet6 = 10

	sockStream    = 1
	sockDgram     = 2
	sockSeqpacket = 5
	sockType      = 0xf // the type, without SOCK_CLOEXEC and SOCK_NONBLOCK
	protoTCP      = 6
	protoUDP      = 17

	// O_ACCMODE, O_CREAT, O_TRUNC, and what makes O_TMPFILE other than O_DIRECTORY.
	openWrites = 0x3 | 0o100 | 0o1000 | 0o20000000

	cloneThread = 0x00010000 // CLONE_THREAD
	// CLONE_NEW*: a thread that takes a namespace with it.
	cloneNamespaces = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	protExec = 4 // PROT_EXEC

	outQueue = 0x5411 // SIOCOUTQ

	prSetDeath  = 1          // PR_SET_PDEATHSIG
	prSetName   = 15         // PR_SET_NAME
	prSetVMA    = 0x53564d41 // PR_SET_VMA, with which Go names its memory
	prGetNNP    = 39         // PR_GET_NO_NEW_PRIVS
	prGetDump   = 3          // PR_GET_DUMPABLE
	prGetSecure = 21         // PR_GET_SECCOMP

	setIDs = 0o6000 // S_ISUID, S_ISGID
)

func allow(why string, calls ...string) seccomp.Rule {
	return seccomp.Rule{Calls: calls, Else: seccomp.Allow, Why: why}
}

func deny(errno uint16, why string, calls ...string) seccomp.Rule {
	return seccomp.Rule{Calls: calls, Else: seccomp.Errno(errno), Why: why}
}

// only allows a call under conditions.
func only(why, call string, when ...seccomp.Cond) seccomp.Rule {
	return seccomp.Rule{Calls: []string{call}, Else: seccomp.Errno(seccomp.EPERM), Why: why,
		Clauses: []seccomp.Clause{{When: when, Then: seccomp.Allow}}}
}

// never refuses a call under a condition and allows it otherwise.
func never(why, call string, when ...seccomp.Cond) seccomp.Rule {
	return seccomp.Rule{Calls: []string{call}, Else: seccomp.Allow, Why: why,
		Clauses: []seccomp.Clause{{When: when, Then: seccomp.Errno(seccomp.EPERM)}}}
}

func is(arg int, values ...uint64) seccomp.Cond { return seccomp.Cond{Arg: arg, Values: values} }

func anyBit(arg int, mask uint32) seccomp.Cond {
	return seccomp.Cond{Arg: arg, Mask: mask, Op: seccomp.AnyBit}
}

// Policy has the system calls that a Go server with a database on disk makes once its
// sockets are open. All others fail with EPERM: starting programs, making sockets,
// connecting and binding, signals to others, namespaces, mounts, tracing, loading code. pid
// is this process, which may signal its own threads.
func Policy(pid int) seccomp.Policy {
	return seccomp.Policy{
		Name: "palyrad", Default: seccomp.Errno(seccomp.EPERM), Unknown: seccomp.Errno(seccomp.ENOSYS),
		Rules: append(daemon(), common(pid)...),
	}
}

// InternetPolicy has the system calls of a Go program that connects for others: those of [Policy]
// but for writing files, and TCP and UDP sockets of the Internet, no raw ones and none of MPTCP,
// whose subflows Landlock and counters don't see.
func InternetPolicy(pid int) seccomp.Policy {
	return seccomp.Policy{
		Name: "palyra-egress", Default: seccomp.Errno(seccomp.EPERM), Unknown: seccomp.Errno(seccomp.ENOSYS),
		Rules: append(internet(), common(pid)...),
	}
}

// internet are the rules of InternetPolicy alone.
func internet() []seccomp.Rule {
	reading := seccomp.Cond{Mask: openWrites, Values: []uint64{0}}
	at := func(arg int) seccomp.Cond {
		c := reading
		c.Arg = arg
		return c
	}
	return []seccomp.Rule{
		only("sockets of TCP and UDP", "socket", is(0, afInet, afInet6), seccomp.Cond{Arg: 1, Mask: sockType, Values: []uint64{sockStream, sockDgram}},
			is(2, 0, protoTCP, protoUDP)),
		allow("connect, and listen on the sockets of cells", "connect", "bind", "listen"),
		allow("read and write what is open", "read", "write", "pread64", "readv", "writev", "lseek"),
		only("open files to read, which Landlock lets it", "openat", at(2)),
		only("open files to read", "open", at(1)),
		deny(seccomp.ENOSYS, "flags behind a pointer", "openat2"),
		deny(seccomp.EINVAL, "moving pages instead of bytes", "sendfile"),
	}
}

// daemon are the rules of Policy alone.
func daemon() []seccomp.Rule {
	return []seccomp.Rule{
		allow("read and write what is open", "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev",
			"preadv2", "pwritev2", "lseek", "sendfile", "copy_file_range", "fadvise64", "fallocate", "ftruncate", "fsync", "fdatasync",
			"sync_file_range"),
		allow("open files; Landlock decides which. openat2's mode cannot be seen; files are made where Landlock lets them, setuid ones too",
			"openat2"),
		never("make files, but not setuid ones", "openat", anyBit(3, setIDs)),
		never("make files, but not setuid ones", "open", anyBit(2, setIDs)),
		never("modes, but not setuid", "chmod", anyBit(1, setIDs)),
		never("modes, but not setuid", "fchmod", anyBit(1, setIDs)),
		never("modes, but not setuid", "fchmodat", anyBit(2, setIDs)),
		never("modes, but not setuid", "fchmodat2", anyBit(2, setIDs)),
		allow("change the tree of what Landlock lets it write", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir",
			"mkdirat", "rmdir", "utimensat", "fchown", "umask"),
		only("lifelines of palyra-cell, and calls' ends of palyra-egress; no datagrams, which could be sent elsewhere", "socketpair", is(0, afUnix),
			seccomp.Cond{Arg: 1, Mask: sockType, Values: []uint64{sockStream, sockSeqpacket}}),
	}
}

// common are the rules of both.
func common(pid int) []seccomp.Rule {
	return []seccomp.Rule{
		allow("handle descriptors", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "flock", "pipe", "pipe2"),
		allow("wait for descriptors", "poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait",
			"epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2"),
		allow("look at files", "stat", "fstat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink",
			"readlinkat", "getdents64", "statfs", "fstatfs", "getcwd", "getxattr", "lgetxattr", "fgetxattr"),
		never("memory, but no new code: nothing is loaded after the start", "mmap", anyBit(2, protExec)),
		never("memory, but no new code", "mprotect", anyBit(2, protExec)),
		allow("memory of the process itself", "brk", "munmap", "mremap", "madvise", "mlock", "mincore", "membarrier", "memfd_create"),
		only("threads of this process, and no other process", "clone", seccomp.Cond{Arg: 0, Mask: cloneThread | cloneNamespaces, Values: []uint64{cloneThread}}),
		deny(seccomp.ENOSYS, "flags behind a pointer; Go makes threads with clone", "clone3"),
		allow("threads and locks", "futex", "set_robust_list", "get_robust_list", "rseq", "sched_yield", "sched_getaffinity", "gettid",
			"getpid", "getppid", "exit", "exit_group", "arch_prctl"),
		only("the runtime preempts its own threads", "tgkill", is(0, uint64(pid))),
		allow("signals to itself", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall"),
		allow("the starter of palyra-cell, the one child from before, is waited for", "wait4", "waitid"),
		allow("clocks and own timers", "clock_gettime", "clock_getres", "gettimeofday", "time", "nanosleep", "clock_nanosleep", "setitimer",
			"getitimer", "timer_create", "timer_settime", "timer_gettime", "timer_delete"),
		allow("who and where it is", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getresuid", "getresgid", "capget", "uname",
			"sysinfo", "getrusage", "times", "getrandom", "getrlimit"),
		{Calls: []string{"prlimit64"}, Else: seccomp.Errno(seccomp.EPERM), Why: "own limits, to read",
			Clauses: []seccomp.Clause{{When: []seccomp.Cond{is(0, 0), {Arg: 2, Wide: true, Values: []uint64{0}}}, Then: seccomp.Allow}}},
		{Calls: []string{"prctl"}, Else: seccomp.Errno(seccomp.EINVAL), Why: "names of threads and memory, and what is in force",
			Clauses: []seccomp.Clause{{When: []seccomp.Cond{is(0, prSetName, prSetVMA, prGetNNP, prGetDump, prGetSecure)}, Then: seccomp.Allow}}},
		allow("serve on sockets that are open", "accept", "accept4", "getsockname", "getpeername", "getsockopt", "sendto", "recvfrom", "sendmsg",
			"recvmsg", "shutdown"),
		// SO_ATTACH_*.
		never("options, but no programs in the kernel", "setsockopt", is(1, 1), is(2, 26, 50, 51, 52)),
		deny(seccomp.EINVAL, "moving pages instead of bytes; Go falls back to copying", "splice", "tee", "vmsplice"),
		// LANDLOCK_CREATE_RULESET_VERSION.
		only("which Landlock there is, for the report", "landlock_create_ruleset", is(2, 1)),
		{Calls: []string{"ioctl"}, Else: seccomp.Errno(seccomp.ENOTTY), Why: "how much a client hasn't read; no device and no terminal is open",
			Clauses: []seccomp.Clause{{When: []seccomp.Cond{is(1, outQueue)}, Then: seccomp.Allow}}},
	}
}

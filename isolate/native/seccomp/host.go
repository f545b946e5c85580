package seccomp

// These rules are about calls that namespaces make harmless. Without namespaces
// they reach the host, and the filter stands in.

// objectRules are about processes and IPC objects that are named by number or
// key.
func objectRules(namespaces, own bool) []Rule {
	ipc := []string{"shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget",
		"msgsnd", "msgrcv", "msgctl"}
	queues := deny(ENOSYS, "message queues by name, which a namespace confines, too; hardly any program has a use for them",
		"mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr")
	scheduler := Rule{Calls: []string{"sched_setscheduler"}, Else: Errno(EPERM), Why: "no realtime class"}
	ordinary := masked(1, ^uint32(schedResetOnFork), 0, 3, 5) // OTHER, BATCH, IDLE
	if namespaces {
		scheduler.Clauses = []Clause{when(Allow, ordinary)}
		// PostgreSQL and fakeroot need them.
		objects := allow("IPC objects of the cell's own namespace", ipc...)
		if !own {
			objects = deny(ENOSYS, "IPC objects, whose memory belongs to no process, in a namespace without limits", ipc...)
		}
		return []Rule{
			queues, scheduler, objects,
			allow("processes of the cell's own PID namespace",
				"pidfd_open", "setpriority", "ioprio_set", "sched_setparam", "sched_setaffinity"),
		}
	}
	self := func(pid int, why, call string) Rule {
		return Rule{Calls: []string{call}, Else: Errno(EPERM), Why: why,
			Clauses: []Clause{when(Allow, is(pid, 0))}}
	}
	// 0 is the calling thread. Its own number is refused, too, because a filter
	// cannot tell it from another's: taskset(1) and Python give 0, but
	// pthread_setaffinity_np(3) the number.
	const why = "only on the caller: other processes of the user are in reach"
	scheduler.Clauses = []Clause{when(Allow, is(0, 0), ordinary)}
	scheduler.Why += "; " + why
	return []Rule{
		queues, scheduler,
		deny(ENOSYS, "IPC objects of the host", ipc...),
		deny(EPERM, "processes of the host", "pidfd_open"),
		self(0, why, "sched_setparam"),
		self(0, why, "sched_setaffinity"),
		{Calls: []string{"setpriority"}, Else: Errno(EPERM), Why: why,
			Clauses: []Clause{when(Allow, is(0, 0), is(1, 0))}}, // PRIO_PROCESS
		{Calls: []string{"ioprio_set"}, Else: Errno(EPERM), Why: why,
			Clauses: []Clause{when(Allow, is(0, 1), is(1, 0))}}, // IOPRIO_WHO_PROCESS
	}
}

// viewRules are about what can be learned of files by their paths, whether or
// not they may be opened.
func viewRules(namespaces bool) []Rule {
	watch := []string{"inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch"}
	xattr := []string{"getxattr", "lgetxattr", "getxattrat", "listxattr", "llistxattr", "listxattrat"}
	if namespaces {
		return []Rule{
			// A watch is on the file, not on the mount: on a directory that is the
			// host's, which /usr is, it tells the names that others open there
			// (docs/THREAT_MODEL.md). Editors, build tools and node watch their
			// workspace and fail without it.
			allow("watch files that mounts show", watch...),
			allow("attributes of files; mounts decide which", xattr...),
		}
	}
	return []Rule{
		// What a kernel without inotify says: tail(1) and file watchers poll then.
		deny(ENOSYS, "Landlock does not see it, and every directory of the user tells the names of what is opened and made in it", watch...),
		// What a file system without attributes says: ls, cp, tar, git and Python go on.
		deny(ENOTSUP, "Landlock does not see it; of what is open, attributes can be read", xattr...),
	}
}

// metadataRules are about changing modes, owners, times and attributes of files, by
// path and through descriptors.
func metadataRules(byPath, readOnly bool) []Rule {
	mode := func(arg int, calls ...string) Rule {
		return Rule{Calls: calls, Else: Allow, Why: "change modes, but not to setuid",
			Clauses: []Clause{when(Errno(EPERM), anyBit(arg, setIDs))}}
	}
	open := []string{"fchown", "fremovexattr"}
	xattr := []string{"setxattr", "lsetxattr", "removexattr", "lremovexattr", "setxattrat", "removexattrat"}
	owner := []string{"chown", "lchown", "fchownat"}
	times := []string{"utime", "utimes", "futimesat"}
	// cp, tar and Python go on.
	attribute := deny(ENOTSUP, "an access control list takes up to 128 KiB of each file of a tmpfs, which neither its size nor a cgroup counts; a filter can't tell it from other attributes",
		"fsetxattr")
	if byPath {
		const why = "metadata of the user's files; mounts decide which"
		return []Rule{
			mode(1, "fchmod"), allow("metadata of what is open", open...),
			mode(1, "chmod"), mode(2, "fchmodat", "fchmodat2"),
			attribute,
			deny(ENOTSUP, "as fsetxattr; and only the mounts would stand before the host's files", xattr...),
			allow(why, owner...), allow(why, times...), allow(why, "utimensat"),
		}
	}
	const why = "Landlock does not see it, and every file of the user is in reach"
	rules := []Rule{
		deny(EPERM, why, "chmod", "fchmodat", "fchmodat2"),
		deny(EPERM, why, xattr...), deny(EPERM, why, owner...), deny(EPERM, why, times...),
	}
	noPath := Cond{Arg: 1, Wide: true, Values: []uint64{0}} // utimensat on the descriptor itself
	if readOnly {
		const why = "what is open to be read is not changed either, and Landlock does not see this"
		return append(rules, deny(EROFS, why, "fchmod", "fsetxattr"), deny(EROFS, why, open...),
			Rule{Calls: []string{"utimensat"}, Else: Errno(EPERM), Why: why, Clauses: []Clause{when(Errno(EROFS), noPath)}})
	}
	return append(rules, attribute, mode(1, "fchmod"), allow("metadata of what is open", open...),
		Rule{Calls: []string{"utimensat"}, Else: Errno(EPERM), Why: "times of what is open: without a path",
			Clauses: []Clause{when(Allow, noPath)}})
}

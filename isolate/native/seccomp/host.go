package seccomp

// hostRules are the calls that namespaces make harmless. Without namespaces
// they reach the host, and the filter stands in.
func hostRules(namespaces, pathMetadata bool) []Rule {
	return append(objectRules(namespaces), metadataRules(pathMetadata)...)
}

// objectRules are about processes and IPC objects that are named by number or
// key.
func objectRules(namespaces bool) []Rule {
	ipc := []string{"shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget",
		"msgsnd", "msgrcv", "msgctl"}
	queues := deny(ENOSYS, "message queues by name, which a namespace confines, too; hardly any program has a use for them",
		"mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr")
	if namespaces {
		return []Rule{
			queues,
			// PostgreSQL and fakeroot need them.
			allow("IPC objects of the cell's own namespace", ipc...),
			allow("processes of the cell's own PID namespace",
				"pidfd_open", "prlimit64", "setpriority", "ioprio_set", "sched_setparam"),
		}
	}
	self := func(pid int, why, call string) Rule {
		return Rule{Calls: []string{call}, Else: Errno(EPERM), Why: why,
			Clauses: []Clause{when(Allow, is(pid, 0))}}
	}
	const why = "only on the caller: other processes of the user are in reach"
	return []Rule{
		queues,
		deny(ENOSYS, "IPC objects of the host", ipc...),
		deny(EPERM, "processes of the host", "pidfd_open"),
		self(0, why, "prlimit64"),
		self(0, why, "sched_setparam"),
		{Calls: []string{"setpriority"}, Else: Errno(EPERM), Why: why,
			Clauses: []Clause{when(Allow, is(0, 0), is(1, 0))}}, // PRIO_PROCESS
		{Calls: []string{"ioprio_set"}, Else: Errno(EPERM), Why: why,
			Clauses: []Clause{when(Allow, is(0, 1), is(1, 0))}}, // IOPRIO_WHO_PROCESS
	}
}

// metadataRules are about modes, owners, times and attributes of files by path.
func metadataRules(byPath bool) []Rule {
	xattr := []string{"setxattr", "lsetxattr", "removexattr", "lremovexattr", "setxattrat", "removexattrat"}
	owner := []string{"chown", "lchown", "fchownat"}
	times := []string{"utime", "utimes", "futimesat"}
	if byPath {
		const why = "metadata of the user's files; mounts decide which"
		mode := func(arg int, calls ...string) Rule {
			return Rule{Calls: calls, Else: Allow, Why: "change modes, but not to setuid",
				Clauses: []Clause{when(Errno(EPERM), anyBit(arg, setIDs))}}
		}
		return []Rule{
			mode(1, "chmod"), mode(2, "fchmodat", "fchmodat2"),
			deny(ENOTSUP, "attributes of what is open can be set; by path hardly any program needs to, and only the mounts would stand before the host's files", xattr...),
			allow(why, owner...), allow(why, times...), allow(why, "utimensat"),
		}
	}
	const why = "Landlock does not see it, and every file of the user is in reach"
	return []Rule{
		deny(EPERM, why, "chmod", "fchmodat", "fchmodat2"),
		deny(EPERM, why, xattr...), deny(EPERM, why, owner...), deny(EPERM, why, times...),
		{Calls: []string{"utimensat"}, Else: Errno(EPERM), Why: "times of what is open: without a path",
			Clauses: []Clause{when(Allow, Cond{Arg: 1, Wide: true, Values: []uint64{0}})}},
	}
}

package seccomp

const (
	// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. The bit of
	// NEWTIME is part of the exit signal in clone(2), which therefore cannot ask
	// for it.
	cloneNamespaces = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
	cloneParent     = 0x00008000 // CLONE_PARENT
	cloneFiles      = 0x00000400 // CLONE_FILES
	cloneThread     = 0x00010000 // CLONE_THREAD
	closeUnshare    = 2          // CLOSE_RANGE_UNSHARE

	schedResetOnFork = 0x40000000

	seccompActionAvail = 2 // SECCOMP_GET_ACTION_AVAIL

	sigKill = 9
)

// prctl(2) operations that ordinary programs use and that change only the
// caller, and weaken nothing. Not among them is PR_SET_VMA, a name for a mapping, whose memory no
// cgroup is charged for.
var prctlAllowed = []uint64{
	2,    // PR_GET_PDEATHSIG
	3, 4, // PR_GET_DUMPABLE, PR_SET_DUMPABLE
	5, 6, // PR_GET_UNALIGN, PR_SET_UNALIGN
	7, 8, // PR_GET_KEEPCAPS, PR_SET_KEEPCAPS
	9, 10, 11, 12, // PR_GET_FPEMU to PR_SET_FPEXC: the kernel says EINVAL here; one range takes less of a filter than three
	13, 14, // PR_GET_TIMING, PR_SET_TIMING, which sets what is set
	15, 16, // PR_SET_NAME, PR_GET_NAME
	21,     // PR_GET_SECCOMP; PR_SET_SECCOMP installs a filter
	23, 24, // PR_CAPBSET_READ, PR_CAPBSET_DROP
	25,     // PR_GET_TSC
	27,     // PR_GET_SECUREBITS
	29, 30, // PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
	34,     // PR_MCE_KILL_GET
	36, 37, // PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER
	38, 39, // PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS
	40,     // PR_GET_TID_ADDRESS
	41, 42, // PR_SET_THP_DISABLE, PR_GET_THP_DISABLE
	50, 51, // PR_SVE_SET_VL, PR_SVE_GET_VL
	52,     // PR_GET_SPECULATION_CTRL
	54,     // PR_PAC_RESET_KEYS
	55, 56, // PR_SET_TAGGED_ADDR_CTRL, PR_GET_TAGGED_ADDR_CTRL
	60, 61, // PR_PAC_SET_ENABLED_KEYS, PR_PAC_GET_ENABLED_KEYS
	63, 64, // PR_SME_SET_VL, PR_SME_GET_VL
	65, 66, // PR_SET_MDWE, PR_GET_MDWE
	68,         // PR_GET_MEMORY_MERGE
	0x41555856, // PR_GET_AUXV
}

// prctl operations that are refused by name. All others do not exist here.
var prctlDenied = []uint64{
	1,      // PR_SET_PDEATHSIG: at tier B it would let the program outlive its reaper
	26,     // PR_SET_TSC
	28,     // PR_SET_SECUREBITS
	31, 32, // PR_TASK_PERF_EVENTS_*
	33,         // PR_MCE_KILL
	35,         // PR_SET_MM: what /proc says about the process
	47,         // PR_CAP_AMBIENT
	53,         // PR_SET_SPECULATION_CTRL
	57,         // PR_SET_IO_FLUSHER
	59,         // PR_SET_SYSCALL_USER_DISPATCH
	62,         // PR_SCHED_CORE
	67,         // PR_SET_MEMORY_MERGE: same-page merging tells what others hold
	78,         // PR_FUTEX_HASH: a table of the kernel's, of any size; 1 GiB was had
	0x59616d61, // PR_SET_PTRACER
}

func processRules(cookie uint64, namespaces bool) []Rule {
	execveat := Rule{Calls: []string{"execveat"}, Else: Errno(ENOSYS),
		Why: "only the cell's last step, which knows the cookie; fexecve falls back to execve"}
	if cookie != 0 {
		execveat.Clauses = []Clause{when(Allow, Cond{Arg: 5, Wide: true, Values: []uint64{cookie}})}
	}
	clone := Rule{Calls: []string{"clone"}, Else: Allow,
		Clauses: []Clause{when(Errno(EPERM), anyBit(0, cloneNamespaces|cloneParent))},
		Why:     "processes and threads, but no namespaces, and no child that is palyra-cell's"}
	closeRange := Rule{Calls: []string{"close_range"}, Else: Allow, Why: "handle descriptors"}
	closeRange.Why += "; a thread keeps those of its process, where they are counted, but for steps that know the cookie"
	if cookie != 0 {
		closeRange.Clauses = append(closeRange.Clauses, when(Allow, Cond{Arg: 5, Wide: true, Values: []uint64{cookie}}))
	}
	closeRange.Clauses = append(closeRange.Clauses, when(Errno(EINVAL), anyBit(2, closeUnshare)))
	clone.Why += "; a thread has the descriptors of its process, where they are counted"
	clone.Clauses = append(clone.Clauses, when(Errno(EPERM), masked(0, cloneThread|cloneFiles, cloneThread)))
	death := when(Allow, is(0, 1), is(1, sigKill)) // PR_SET_PDEATHSIG that cannot weaken
	if namespaces {
		// The end of the reaper, the first process of the PID namespace, ends all others. The program has
		// no death signal of its own there, and can't change the reaper's. Codex sets SIGTERM for what it
		// starts, and starts nothing where that's refused.
		death = when(Allow, is(0, 1))
	}
	return []Rule{
		execveat, clone, closeRange,
		{Calls: []string{"prctl"}, Else: Errno(EINVAL), // what a kernel without the operation says
			Clauses: []Clause{
				death,
				when(Allow, is(0, prctlAllowed...)),
				when(Errno(EPERM), is(0, prctlDenied...)),
			},
			Why: "operations that change only the caller and weaken nothing"},
		{Calls: []string{"seccomp"}, Else: Errno(EINVAL), // what a kernel without CONFIG_SECCOMP_FILTER says
			Clauses: []Clause{when(Allow, is(0, seccompActionAvail))},
			Why:     "no filter of the program's own: the memory that filters are compiled into is the host's, and once it is used up no other process can install one"},
		{Calls: []string{"personality"}, Else: Errno(EPERM),
			Clauses: []Clause{when(Allow, is(0, 0, 0xffffffff))}, // PER_LINUX and the query
			Why:     "other personalities switch off address randomisation and no-execute"},
	}
}

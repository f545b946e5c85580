package seccomp

const (
	mapTypeAnonymous = 0x0f | 0x20 // MAP_TYPE | MAP_ANONYMOUS
	mapShared        = 0x01 | 0x20 // MAP_SHARED
	mapValidated     = 0x03 | 0x20 // MAP_SHARED_VALIDATE
	mapHuge          = 0x40000     // MAP_HUGETLB
	mapGrowsDown     = 0x100       // MAP_GROWSDOWN

	mfdHuge       = 4 // MFD_HUGETLB
	mfdNoexecSeal = 8 // MFD_NOEXEC_SEAL, kernel 6.3

	mergeable = 12 // MADV_MERGEABLE

	setPipeSize = 1031 // F_SETPIPE_SZ

	setOpenLock, setOpenLockWait = 37, 38 // F_OFD_SETLK, F_OFD_SETLKW

	setLease, notify, setDelegation = 1024, 1026, 1040 // F_SETLEASE, F_NOTIFY, F_SETDELEG

	setHint, setFileHint = 1036, 1038 // F_SET_RW_HINT, F_SET_FILE_RW_HINT
)

// memoryRules are about memory that no limit of a process bounds.
func memoryRules(uncounted, shared bool) []Rule {
	const nothingCounts = "; without a cgroup nothing counts it"
	pages := Rule{Calls: []string{"mmap"}, Else: Allow,
		Clauses: []Clause{when(Errno(ENOMEM), anyBit(3, mapHuge))}, // what a host without such pages says
		Why:     "memory and files, but none of the pages that the host has set aside, which no limit counts"}
	advice := Rule{Calls: []string{"madvise"}, Else: Allow,
		Clauses: []Clause{when(Errno(EINVAL), is(2, mergeable))}, // what a kernel without CONFIG_KSM says
		Why:     "memory of the process itself; but none of it is merged with equal pages, since the time of a write then tells what others hold"}
	memfd := Rule{Calls: []string{"memfd_create"}, Else: Errno(ENOSYS),
		Clauses: []Clause{when(Errno(ENOSYS), anyBit(1, mfdHuge)), when(Allow, anyBit(1, mfdNoexecSeal))},
		Why:     "a file in memory must not be a way to execute what no mount allows"}
	control := Rule{Calls: []string{"fcntl"}, Else: Allow,
		Clauses: []Clause{when(Errno(EINVAL), is(1, setLease, notify, setDelegation, setHint, setFileHint, setOpenLock, setOpenLockWait))},
		Why:     "handle descriptors; but no leases, for which others who open the file wait up to 45 s, no notices, which are inotify's, no hints, which stay with a file that may only be read, and no locks of open files, which no cgroup is charged for, and which a mapping keeps when the file has no descriptor"}
	send := allow("copy from a file in the kernel", "sendfile")
	ruleset := allow("a program may confine itself further", "landlock_create_ruleset")
	if !shared {
		pages.Clauses = append(pages.Clauses, when(Errno(EPERM), masked(3, mapTypeAnonymous, mapShared, mapValidated)))
		pages.Why += "; no anonymous memory that is shared, which stays when all but a page of it is unmapped" + nothingCounts
	}
	if !uncounted {
		pages.Clauses[0] = when(Errno(ENOMEM), anyBit(3, mapHuge|mapGrowsDown))
		pages.Why += "; no stacks, which RLIMIT_DATA doesn't bound" + nothingCounts
		memfd.Clauses = nil
		memfd.Why = "a file in memory that no process has mapped" + nothingCounts
		control.Clauses = append(control.Clauses, when(Errno(EPERM), is(1, setPipeSize))) // what the kernel says beyond the user's limit
		control.Why += "; nor enlarge pipes" + nothingCounts
		send = deny(EINVAL, "a byte in a pipe or socket holds the folio of the page cache that it is in, 2 MiB; programs fall back to copying"+nothingCounts, "sendfile")
		ruleset = deny(ENOSYS, "a ruleset takes rules without end"+nothingCounts, "landlock_create_ruleset")
	}
	return []Rule{pages, advice, memfd, control, send, ruleset}
}

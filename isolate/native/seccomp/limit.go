package seccomp

const limitCore = 4 // RLIMIT_CORE

// limitRules are about resource limits. They can only go down without capabilities,
// but that of a core file must not: palyra-cell sets it to 1, the one value under
// which the kernel starts no handler of cores for a program that crashes
// (steps.NoCore). Programs that set it to 0, as ssh-agent(1) does, end where
// they cannot, so they are told that they have.
func limitRules() []Rule {
	null := func(arg int) Cond { return Cond{Arg: arg, Wide: true, Values: []uint64{0}} }
	core, self := is(1, limitCore), is(0, 0)
	const kept = "; the limit of a core file stays, and setrlimit(3) is told that it is set"
	return []Rule{
		// 0 is the caller, which is all that C libraries ask for. Its own number is refused,
		// too, because a filter can't tell it from another's.
		{Calls: []string{"prlimit64"}, Else: Errno(EPERM),
			Clauses: []Clause{
				when(Allow, core, null(2), self),    // it is read
				when(Errno(0), core, self, null(3)), // as setrlimit(3) does it
				when(Errno(EPERM), core),
				when(Allow, self),
			},
			Why: "only on the caller: the reaper of the cell, or below tier C other processes of the user, are in reach" + kept},
		{Calls: []string{"setrlimit"}, Else: Allow, Clauses: []Clause{when(Errno(0), is(0, limitCore))},
			Why: "limits can only go down without capabilities" + kept},
	}
}

package seccomp

const limitCore = 4 // RLIMIT_CORE

// limitRules are about resource limits. They can only go down without capabilities,
// but that of a core file must not: palyra-cell sets it to 1, the one value under
// which the kernel starts no handler of cores for a program that crashes
// (steps.NoCore). Programs that set it to 0, as ssh-agent(1) does, end where
// they cannot, so they are told that they have.
func limitRules(namespaces bool) []Rule {
	null := func(arg int) Cond { return Cond{Arg: arg, Wide: true, Values: []uint64{0}} }
	core, self := is(1, limitCore), is(0, 0)
	const kept = "; the limit of a core file stays, and setrlimit(3) is told that it is set"
	prlimit := Rule{Calls: []string{"prlimit64"}, Else: Allow, Why: "processes of the cell's own PID namespace" + kept,
		Clauses: []Clause{
			when(Allow, core, null(2)),          // it is read
			when(Errno(0), core, self, null(3)), // as setrlimit(3) does it
			when(Errno(EPERM), core),
		}}
	if !namespaces {
		prlimit.Clauses[0].When = append(prlimit.Clauses[0].When, self)
		prlimit.Clauses = append(prlimit.Clauses, when(Allow, self))
		prlimit.Else = Errno(EPERM)
		prlimit.Why = "only on the caller: other processes of the user are in reach" + kept
	}
	return []Rule{prlimit, {Calls: []string{"setrlimit"}, Else: Allow, Clauses: []Clause{when(Errno(0), is(0, limitCore))},
		Why: "limits can only go down without capabilities" + kept}}
}

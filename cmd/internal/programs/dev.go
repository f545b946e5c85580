package programs

import "palyra/cmd/internal/command"

var (
	exitNoDir = command.Exit{Code: "1", Meaning: "no such directory"}
	exitState = command.Exit{Code: "78", Meaning: "state directory, key or configuration unsafe or unreadable"}
)

// analyses returns the commands of palyra-dev that look at a policy directory without a
// call being made.
func analyses() []command.Command {
	return []command.Command{
		{Name: "policy lint", Program: Dev, Operands: "[DIR]", Max: 1,
			Short: "find policies that cannot mean what they say",
			Long: `
Lists all faults and oddities in DIR (default: the built-in set): reasons for a
load to refuse it, policies that can never match, clauses that always or never
hold, policies that another one shadows or overrules, and permits without a
test. Its findings are true; it may miss faults that hide in arithmetic.`,
			Exits:    []command.Exit{exitNoDir, {Code: "3", Meaning: "there are findings"}, exitState},
			Examples: []command.Example{{Line: "palyra policy lint ./policy", Does: "one line per finding: file, line, policy, what is wrong"}}},
		{Name: "policy coverage", Program: Dev, Operands: "[DIR]", Max: 1,
			Short: "say which policies and clauses the policy tests exercise",
			Long: `
Runs the tests of DIR (default: the built-in set) and counts, for each clause,
how often it held and how often it didn't. A clause is exercised if it did both.`,
			Exits:    []command.Exit{exitNoDir, {Code: "3", Meaning: "a policy or a clause is not exercised"}, exitState},
			Examples: []command.Example{{Line: "palyra policy coverage ./policy", Does: "counts, then what no test exercises"}}},
		{Name: "policy mutate", Program: Dev, Operands: "[DIR]", Max: 1,
			Short: "weaken one clause at a time and say what no test notices",
			Long: `
Drops or widens one part of one policy of DIR (default: the built-in set) and
runs the policy tests, for each part. If all tests pass without a part, it can
get lost unnoticed. @survivor("CHANGE: why") on a policy explains a part that no
test can show.`,
			Exits:    []command.Exit{exitNoDir, {Code: "3", Meaning: "a mutant survives, or an explained one does not"}, exitState},
			Examples: []command.Example{{Line: "palyra policy mutate ./policy", Does: "counts, then each survivor"}}},
	}
}

// judges returns the commands of palyra-dev that measure this host and attack the
// programs on it.
func judges() []command.Command {
	return []command.Command{
		{Name: "bench", Program: Dev,
			Short: "measure what a confined call costs on this host",
			Long: `
Runs a program that only exits, and /bin/true, in turns: unconfined (fork and
exec), in cells of each kind (built for the call, with a network made ahead,
with the shared void network, waiting ahead, tier B), as whole calls with
policy, receipt and journal in a directory of its own, and under bwrap where
that is installed. Each call is checked by its evidence. It prints medians and
their ratios within this run; medians of two runs don't compare.
With the default N it takes about a minute. Nothing is written to the journal
of the state directory.`,
			Flags: []command.Flag{
				{Name: "n", Arg: "N", Help: "samples of each path, program and arrival (default 50)", Parse: command.Count(100000)},
				{Name: "sparse", Help: "also with 100 ms between calls"}},
			Exits:    []command.Exit{{Code: "7", Meaning: "no tier can be enforced here"}},
			Examples: []command.Example{{Line: "palyra bench --n 200", Does: "prints tables of medians, p99 and ratios"}}},
		{Name: "fuzz", Program: Dev, Short: "run the fuzz targets of this release on this host",
			Long: `
The targets are test binaries of the packages, built with the coverage
instrumentation of Go's fuzzer (make fuzzers), in the folder fuzz beside
palyra-dev. They need no Go, no network and no state of palyra's. Inputs that
reach new code are kept in the corpus folder and used by the next run; an input
that fails is written to testdata/fuzz beneath it, and the exit status is 1.`,
			Flags: []command.Flag{
				{Name: "list", Help: "name the targets"},
				{Name: "target", Arg: "NAME", Help: "the one to run, as --list names it, or the end of its name"},
				{Name: "for", Arg: "D", Help: "how long (default 1m)", Parse: command.Duration},
				{Name: "from", Arg: "DIR", Help: "where the binaries are (default: fuzz beside palyra-dev)"},
				{Name: "corpus", Arg: "DIR", Help: "where inputs are kept (default $XDG_CACHE_HOME/palyra/fuzz,\nelse ~/.cache/palyra/fuzz)"}},
			Exits: []command.Exit{{Code: "78", Meaning: "there are no fuzz targets, or the corpus folder cannot be used"}},
			Examples: []command.Example{{Line: "palyra fuzz --list", Does: "one target per line"},
				{Line: "palyra fuzz --target FuzzVerify --for 10m", Does: "looks for a receipt that breaks the verifier"}}},
	}
}

// prints returns the commands of palyra-dev that print the table itself.
func prints() []command.Command {
	return []command.Command{
		{Name: "completion", Program: Dev, Operands: "SHELL", Min: 1, Max: 1, Short: "print a completion script for bash, zsh or fish",
			Examples: []command.Example{{Line: "palyra completion bash", Does: "source it, or put it into /etc/bash_completion.d"}}},
		{Name: "man", Program: Dev, Operands: "DIR", Min: 1, Max: 1, Short: "write the manual pages into a directory",
			Long: `
One page for each command and palyra.1 for the whole, all of section 1. Those of
palyrad and its configuration are written by palyrad man.`,
			Examples: []command.Example{{Line: "palyra man ./man1", Does: "writes palyra.1, palyra-exec.1 and the others"}}},
	}
}

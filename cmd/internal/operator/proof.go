package operator

import "palyra/cmd/internal/command"

// proof is what lets a user attack the program on their own host.
func proof() []command.Command {
	return []command.Command{
		{Name: "fuzz", Short: "run the fuzz targets of this release on this host",
			Long: `
The targets are test binaries of the packages, built with the coverage
instrumentation of Go's fuzzer (make fuzzers), in the folder fuzz beside
palyra-ctl. They need no Go, no network and no state of palyra's. Inputs that
reach new code are kept in the corpus folder and used by the next run; an input
that fails is written to testdata/fuzz beneath it, and the exit status is 1.`,
			Flags: []command.Flag{
				{Name: "list", Help: "name the targets"},
				{Name: "target", Arg: "NAME", Help: "the one to run, as --list names it, or the end of its name"},
				{Name: "for", Arg: "D", Help: "how long (default 1m)", Parse: command.Duration},
				{Name: "from", Arg: "DIR", Help: "where the binaries are (default: fuzz beside palyra-ctl)"},
				{Name: "corpus", Arg: "DIR", Help: "where inputs are kept (default $XDG_CACHE_HOME/palyra/fuzz,\nelse ~/.cache/palyra/fuzz)"}},
			Exits: []command.Exit{{Code: "78", Meaning: "there are no fuzz targets, or the corpus folder cannot be used"}},
			Examples: []command.Example{{Line: "palyra fuzz --list", Does: "one target per line"},
				{Line: "palyra fuzz --target FuzzVerify --for 10m", Does: "looks for a receipt that breaks the verifier"}}},
	}
}

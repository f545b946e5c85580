// palyra-dev measures palyra, so it starts as palyra does: asking the cgroup how many
// processors to use is for programs that run longer than one call.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command palyra-dev does the commands of palyra that judge and never decide: it
// measures this host (bench), attacks Palyra's own parsers (fuzz) and analyses
// policies (policy lint, coverage, mutate). It also prints manual pages and completion
// scripts. palyra becomes palyra-dev for all of these, with the same words.
//
// It's a program of its own so that no program that decides, confines or records
// a call links a benchmark or a solver. It holds no keys and writes to no journal but one of
// its own that it throws away.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/terminal"
)

func main() {
	var heeded []os.Signal
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // nohup and a shell's background jobs mean it
			heeded = append(heeded, sig)
		}
	}
	ctx, stop := context.Background(), func() {}
	if len(heeded) > 0 {
		ctx, stop = signal.NotifyContext(ctx, heeded...)
	}
	context.AfterFunc(ctx, stop) // a second signal ends the process
	// A reader that leaves is an error of the write, and no signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	status := run(ctx, os.Args[1:], stdout, stderr)
	// A lost write was reported already; these are the bytes of an incomplete character.
	_, _ = stdout.Flush(), stderr.Flush()
	os.Exit(status)
}

// run parses args, runs the command they name and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return front.Run(programs.Table(programs.Dev), args, stdout, stderr, func(inv *command.Invocation) (*front.Report, error) {
		switch inv.Command.Name {
		case "bench":
			return bench(ctx, stderr, inv)
		case "fuzz":
			return fuzz(inv)
		case "completion":
			return completion(inv)
		case "man":
			return man(inv)
		case "policy lint":
			return policyLint(inv)
		case "policy coverage":
			return policyCoverage(inv)
		case "policy mutate":
			return policyMutate(inv)
		}
		panic("palyra-dev: internal error: command " + inv.Command.Name + " has no function")
	})
}

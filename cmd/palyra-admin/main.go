// Command palyra-admin does the commands of palyra that read palyrad's files without a
// daemon: it checks and explains configurations, and makes keys for backups, verifies them
// and restores them. palyra becomes palyra-admin for them, with the same words.
//
// It's a program of its own because it links the database and the backup format, which
// palyra and palyra-ctl must not. It isn't palyrad because a host's policy for palyrad,
// such as deploy/apparmor.d/palyrad, keeps that from a user's files. It uses no network,
// decides nothing and runs nothing.
//
// A restored directory is only as good as the backup and the identity that the caller
// names.
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
	// A signal ends a restore in order: what it was writing is removed.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second one ends the process
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	status := run(ctx, os.Args[1:], stdout, stderr)
	// A lost write was reported already; these are the bytes of an incomplete character.
	_, _ = stdout.Flush(), stderr.Flush()
	os.Exit(status)
}

// commands is what each command of the table does; a test holds the two equal.
var commands = map[string]func(context.Context, *command.Invocation) (*front.Report, error){
	"config validate": configValidate, "config explain": configExplain, "config schema": configSchema, "complete": completeKeys,
	"backup keygen": backupKeygen, "backup verify": backupVerify, "backup restore": backupRestore,
}

// run parses args, runs the command they name and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return front.Run(programs.Table(programs.Admin), args, stdout, stderr, func(inv *command.Invocation) (*front.Report, error) {
		return commands[inv.Command.Name](ctx, inv)
	})
}

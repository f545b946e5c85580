// Command palyra-setup enters palyra into the configuration of an agent, and takes it out
// again. palyra becomes palyra-setup for that command, with the same words.
//
// It edits texts in place: what it doesn't understand keeps its bytes, a file that it can't
// read back is refused, and the file as it was stays beside it. It replaces files whole, in
// a folder that it holds open, and follows no link out of that. To prove a setup it starts
// palyra as the agent will. Where no palyrad answers it makes one of this user's, by the
// user's systemd if there is one. It uses no network and holds no key, and so it's a program
// of its own.
//
// It doesn't protect against an agent that edits its own configuration back.
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

// app is the process as the command sees it, so that tests can be one too.
type app struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	executable     func() (string, error)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second one ends the process
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	a := &app{stdout: stdout, stderr: stderr, getenv: os.Getenv, executable: os.Executable}
	status := a.run(ctx, os.Args[1:])
	// A lost write was reported already; these are the bytes of an incomplete character.
	_, _ = stdout.Flush(), stderr.Flush()
	os.Exit(status)
}

// commands is what each command of the table does; a test holds the two equal.
var commands = map[string]func(*app, context.Context, *command.Invocation) (*front.Report, error){"setup": (*app).setup}

// run parses args, runs the command they name and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	return front.Run(programs.Table(programs.Setup), args, a.stdout, a.stderr, func(inv *command.Invocation) (*front.Report, error) {
		return commands[inv.Command.Name](a, ctx, inv)
	})
}

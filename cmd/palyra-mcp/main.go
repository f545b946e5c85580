// Command palyra-mcp is where agents come in: it serves palyrad's tools over the Model
// Context Protocol and prints them for models' interfaces, answers agents' hooks, and is
// their shell. palyra becomes palyra-mcp for these commands, with the same words.
//
// It holds none of Palyra's keys, decides nothing and starts nothing but palyra: it is a
// client of palyrad, like palyra-ctl, or of palyra exec. It's a program of its own because it
// links the protocol's SDK, and because it reads what an agent writes.
//
// It doesn't protect against an agent that runs as palyrad's operator and asks palyrad
// itself. --token-file gives it a credential that can do less.
package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/mcp"
)

// version is set by the linker (make build).
var version = "unknown"

// app is the process as the commands see it, so that tests can be one too.
type app struct {
	stdin          io.Reader
	protocol       io.Writer // standard output, for the protocol
	stdout, stderr io.Writer // for people
	getenv         func(string) string
	executable     func() (string, error)
	dial           func(connect.Target) (hub.Hub, error)
	become         func(path string, argv []string) error
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second one ends the process
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	a := &app{stdin: os.Stdin, protocol: os.Stdout, stdout: stdout, stderr: stderr, getenv: os.Getenv, executable: os.Executable, dial: connect.Dial,
		become: func(path string, argv []string) error { return syscall.Exec(path, argv, os.Environ()) }}
	status := a.run(ctx, os.Args[1:])
	// A lost write was reported already; these are the bytes of an incomplete character.
	_, _ = stdout.Flush(), stderr.Flush()
	os.Exit(status)
}

// commands is what each command of the table does; a test holds the two equal.
var commands = map[string]func(*app, context.Context, *command.Invocation) (*front.Report, error){
	"mcp serve": (*app).serve, "tools export": (*app).export, "hook": (*app).hook, "sh": (*app).sh,
}

// run parses args, runs the command they name and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	return front.Run(programs.Table(programs.Agents), args, a.stdout, a.stderr, func(inv *command.Invocation) (*front.Report, error) {
		return commands[inv.Command.Name](a, ctx, inv)
	})
}

func (a *app) connect(inv *command.Invocation) (hub.Hub, error) {
	t, err := connect.Find(inv, a.getenv)
	if err != nil {
		return nil, err
	}
	return a.dial(t)
}

func (a *app) serve(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if inv.Has("print") {
		return a.entry(inv)
	}
	return nil, mcp.Serve(ctx, mcp.Config{Hub: h, Version: version, Workspace: command.Value(inv, "workspace", ""), Server: command.Value(inv, "server", ""), Staged: inv.Has("staged"),
		Patience: command.Value(inv, "patience", time.Duration(0)), Resolve: resolve}, a.stdin, a.protocol)
}

// resolve returns a path without links, with the rights of whoever started the agent.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// entry prints what an agent's configuration says to start this program as it was started.
func (a *app) entry(inv *command.Invocation) (*front.Report, error) {
	args, err := programs.ServeArgs(inv)
	if err != nil {
		return nil, err
	}
	servers, text, err := programs.Servers(command.Value(inv, "server", "palyra"), installed.Palyra(a.executable), args)
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: text, Fields: front.Document{"mcpServers": servers}}, nil
}

func (a *app) export(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	format := command.Value(inv, "format", "")
	if format == "" {
		return nil, front.Required(inv, "format")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	tools, err := mcp.Export(ctx, h, format)
	if err != nil {
		return nil, err
	}
	var v any
	if err := json.Unmarshal(tools, &v); err != nil {
		return nil, fault.New(fault.Internal, "internal", "export tools", err)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "export tools", err)
	}
	return &front.Report{Text: string(b) + "\n", Fields: front.Document{"tools": v}}, nil
}

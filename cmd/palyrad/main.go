// Command palyrad is the daemon: it keeps sessions and runs, asks people, and
// puts every call through the same gate as palyra exec.
//
// This package is wiring. The order of start is the order of [daemon.open]:
//
//	flags → configuration → lock → palyra-cell's starter → kernel → store → hub → sockets → confinement → ready
//
// palyra-cell comes first because palyrad confines itself afterwards and can then start
// nothing. A stop closes everything in the opposite order.
//
// One process per state directory: a second one ends with status 75. Three bad starts in a
// row lead to safe mode, in which callers can read everything and make no call
// (attempts.go). A full disk does that at once, and counts as no bad start.
//
// SIGTERM and SIGINT drain: palyrad takes no new calls, withdraws the questions that no person has
// answered, lets running calls finish until daemon.drain_timeout has passed, then kills them and
// writes the receipts; status 0. A second signal cuts the wait short. SIGHUP reads configuration
// and policies again and keeps the old ones if anything is wrong with the new. Nothing here decides
// whether a call may run.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/hub/config"
	"palyra/internal/fault"
	"palyra/isolate/knob"
)

// version is set by the linker (make build).
var version = "unknown"

// program is the process as the commands see it, so that tests can be one too.
type program struct {
	stdout, stderr io.Writer
	environ        []string
	executable     func() (string, error)

	testOnlyStep  func(name string) // at named steps of kernel, store and hub; may be nil
	testOnlyFlush time.Duration     // replaces flushEvery
}

func main() {
	p := &program{stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), executable: os.Executable}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}

// run parses args, runs what they name and returns the exit status.
func (p *program) run(ctx context.Context, args []string) int {
	t := table()
	if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
		args = []string{"help"}
	}
	if len(args) == 1 && args[0] == "--version" {
		args = []string{"version"}
	}
	if len(args) == 0 || len(args[0]) > 1 && args[0][0] == '-' {
		args = append([]string{"serve"}, args...) // what systemd units and people write
	}
	inv, err := t.Parse(args)
	switch {
	case err != nil:
		front.Complain(p.stderr, "palyrad", err)
		return front.Exit(err)
	case inv.Help != "":
		return front.Say(p.stdout, p.stderr, "palyrad", inv.Help)
	}
	switch inv.Command.Name {
	case "version":
		return front.Say(p.stdout, p.stderr, "palyrad", "palyrad "+version+"\n")
	case "man":
		if err := p.man(t, inv); err != nil {
			front.Complain(p.stderr, "palyrad", err)
			return front.Exit(err)
		}
		return 0
	case "help":
		return front.Say(p.stdout, p.stderr, "palyrad", t.Help())
	}
	if err := p.serve(ctx, inv); err != nil {
		front.Complain(p.stderr, "palyrad", err)
		return front.Exit(err)
	}
	return 0
}

// table is every command of palyrad.
func table() *command.Table {
	return &command.Table{
		Program: "palyrad",
		Summary: "the daemon that decides, confines and attests the tool calls of agents",
		Commands: []command.Command{
			{
				Name: "serve", Short: "serve until SIGTERM (what palyrad does without a command)",
				Long: `
Reads the configuration, opens the state directory, starts palyra-cell, confines
itself and serves. Everything has a default; "palyra config explain KEY" says
what a key means. Errors of the configuration are told all at once, with line
and nearest name, and nothing is started.

SIGTERM drains and ends with status 0. SIGHUP reads configuration and policies
again and keeps the old ones on any error.`,
				Flags: []command.Flag{
					{Name: "config", Arg: "FILE", Help: "configuration file (default: none, every key has its default)"},
					{Name: "profile", Arg: "NAME", Help: "local, single-vm or worker-enabled; in place of the file's", Values: "local|single-vm|worker-enabled"},
					{Name: "check", Help: "check the configuration, print it, and start nothing"},
				},
				Exits: []command.Exit{
					{Code: "0", Meaning: "ended by SIGTERM, or the configuration is right (--check)"},
					{Code: "2", Meaning: "usage: the command line is wrong"},
					{Code: "7", Meaning: "the host cannot enforce what is needed"},
					{Code: "8", Meaning: "integrity failure: journal, keys or working state do not check"},
					{Code: "75", Meaning: "another palyrad uses the state directory or the socket, or a resource ran out"},
					{Code: "78", Meaning: "configuration, state directory or policy unsafe or unreadable"},
				},
				Examples: []command.Example{
					{Line: "palyrad --config /etc/palyra/palyrad.toml", Does: "serve"},
					{Line: "palyrad --config palyrad.toml --check", Does: "say what is wrong with a file"},
				},
			},
			{Name: "man", Operands: "DIR", Min: 1, Max: 1, Short: "write palyrad(8), palyra-cell(8) and palyrad.toml(5) below a directory",
				Exits:    []command.Exit{{Code: "0", Meaning: "written"}, {Code: "75", Meaning: "the directory cannot be written to"}},
				Examples: []command.Example{{Line: "palyrad man /usr/share/man", Does: "into man5 and man8 there"}}},
			{Name: "version", Short: "print the version"},
			{Name: "help", Short: "print the commands"},
		},
	}
}

// configure loads the configuration that the command line asks for.
func (p *program) configure(inv *command.Invocation) (*config.Config, error) {
	env := p.environ
	if profile := command.Value(inv, "profile", ""); profile != "" {
		env = append(env[:len(env):len(env)], "PALYRA_PROFILE="+profile)
	}
	path := command.Value(inv, "config", "")
	if path != "" {
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return nil, fault.New(fault.Usage, "bad_command", "find configuration", err)
		}
	}
	return config.Load(path, env)
}

// serve is the serve command.
func (p *program) serve(ctx context.Context, inv *command.Invocation) error {
	if knob.Build != "" {
		return fault.New(fault.Refused, "helper_unusable", "serve", fmt.Errorf("this palyrad was built with %s", knob.Tag))
	}
	cfg, err := p.configure(inv)
	if err != nil {
		return err
	}
	if inv.Has("check") {
		table := front.NewTable("KEY", "VALUE", "SOURCE").Keep(0)
		for _, v := range cfg.Values() {
			table.Row(v.Key, v.Value, v.Source)
		}
		fmt.Fprint(p.stdout, table.Text(terminal.Columns(p.stdout)))
		return nil
	}
	d := &daemon{program: p, again: func() (*config.Config, error) { return p.configure(inv) }}
	d.cfg.Store(cfg)
	return d.run(ctx)
}

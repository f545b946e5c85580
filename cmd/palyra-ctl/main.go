// Command palyra-ctl is the operator's client of palyrad: all commands of palyra that a
// daemon answers. palyra starts it ("palyra status" becomes palyra-ctl with the same
// arguments), and so can a user, on another host too.
//
// It holds none of Palyra's keys, decides nothing and runs nothing: it asks the
// daemon through the interface of palyra/hub over palyra/transport/client,
// and prints the answer. It is a program of its own because palyra holds keys
// while it makes a call without a daemon, and must not link a network client for
// that.
//
// Requests name the zero hub.Caller: the daemon finds out who it is.
//
// All text from the daemon may have come from a model; palyra-ctl escapes it before it
// reaches the terminal. It hands a tool's output on as it is if the output is no terminal,
// or with --raw.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
)

// app is the process as the commands see it, so that tests can be one too.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	terminal       string // what an approval is confirmed on
	dial           func(connect.Target) (hub.Hub, error)
	columns        func(io.Writer) int // how wide an output is; 0: no terminal
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	a := &app{stdin: os.Stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv, terminal: "/dev/tty", dial: dial(stderr), columns: terminal.Columns}
	status := a.run(ctx, os.Args[1:])
	// A lost write was reported already; these are the bytes of an incomplete character.
	_, _ = stdout.Flush(), stderr.Flush()
	stop()
	os.Exit(status)
}

// run parses args, runs the command they name and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	table := programs.Table(programs.Client)
	if len(args) == 0 || (len(args) == 1 && (args[0] == "-h" || args[0] == "--help" || args[0] == "help")) {
		return front.Say(a.stdout, a.stderr, "palyra", table.Help())
	}
	inv, err := table.Parse(args)
	switch {
	case err != nil:
		front.Complain(a.stderr, "palyra", err)
		if inv != nil && inv.Command.UsageExit != 0 {
			return inv.Command.UsageExit
		}
		return front.Exit(err)
	case inv.Help != "":
		return front.Say(a.stdout, a.stderr, "palyra", inv.Help)
	}
	f, ok := commands[inv.Command.Name]
	if !ok {
		panic("palyra-ctl: internal error: command " + inv.Command.Name + " has no function")
	}
	var r *result
	if err = a.whole(ctx, inv); err == nil {
		r, err = f(a, ctx, inv)
	}
	schema := strings.ReplaceAll(inv.Command.Name, " ", ".")
	if r != nil && r.streamed {
		// The output was printed as it came.
		if err != nil {
			front.Complain(a.stderr, "palyra", err)
			return front.Exit(err)
		}
		return r.Exit
	}
	var rep *front.Report
	if r != nil {
		rep = &r.Report
	}
	return front.Print(a.stdout, a.stderr, "palyra", schema, inv.Has("json"), rep, err)
}

// result is a command's output to print.
type result struct {
	front.Report
	streamed bool // everything was written already
}

func text(fields front.Document, format string, args ...any) *result {
	return &result{Report: front.Report{Text: fmt.Sprintf(format, args...), Fields: fields}}
}

// commands has the function of each command of the table; a test holds the two equal.
var commands = map[string]func(*app, context.Context, *command.Invocation) (*result, error){
	"status": (*app).status, "doctor": (*app).doctor, "stop": (*app).stop, "resume": (*app).resume, "console open": (*app).consoleOpen,
	"call": (*app).call, programs.Exec.Name: (*app).exec,
	"agent run": (*app).agentRun, "agent chat": (*app).agentChat, "agent attach": (*app).agentAttach, "agent tell": (*app).agentTell, "agent usage": (*app).agentUsage, "agent instructions": (*app).agentInstructions,
	"sessions ls": (*app).sessionsLs, "sessions new": (*app).sessionsNew, "sessions show": (*app).sessionsShow, "sessions end": (*app).sessionsEnd,
	"runs ls": (*app).runsLs, "runs start": (*app).runsStart, "runs show": (*app).runsShow, "runs cancel": (*app).runsCancel, "runs tape": (*app).runsTape,
	"runs output": (*app).runsOutput,
	"changes ls":  (*app).changesLs, "changes show": (*app).changesShow, "changes diff": (*app).changesDiff, "changes discard": (*app).changesDiscard,
	"changes apply": (*app).changesApply, "changes undo": (*app).changesUndo,
	"tools ls": (*app).toolsLs, "tools show": (*app).toolsShow, "models ls": (*app).modelsLs,
	"approvals ls": (*app).approvalsLs, "approvals show": (*app).approvalsShow, "approvals approve": (*app).approve,
	"approvals deny": (*app).deny, "approvals watch": (*app).watch, "approvals grants": (*app).grants, "approvals revoke": (*app).grantRevoke,
	"policy ls": (*app).policyLs, "policy diff": (*app).policyDiff, "policy why": (*app).policyWhy, "policy try": (*app).policyTry, "policy export": (*app).policyExport, "policy reload": (*app).policyReload,
	"attest get": (*app).attestGet, "journal ls": (*app).journalLs, "journal status": (*app).journalStatus, "keys ls": (*app).keysLs, "keys rotate": (*app).keysRotate, "artifact get": (*app).artifactGet,
	"token create": (*app).tokenCreate, "token ls": (*app).tokenLs, "token revoke": (*app).tokenRevoke, "token rotate": (*app).tokenRotate,
	"passkeys ls": (*app).passkeysLs, "passkeys revoke": (*app).passkeysRevoke,
	"members ls": (*app).membersLs, "members set": (*app).membersSet, "members rm": (*app).membersRm,
	"config show": (*app).configShow,
	"mcp add":     (*app).mcpAdd, "mcp ls": (*app).mcpLs, "mcp show": (*app).mcpShow, "mcp accept": (*app).mcpAccept, "mcp rm": (*app).mcpRm,
	"devices ls": (*app).devicesLs, "devices show": (*app).devicesShow, "devices revoke": (*app).devicesRevoke, "devices rm": (*app).devicesRm,
	"devices renew": (*app).devicesRenew, "devices root": (*app).devicesRoot,
	"devices pair": (*app).devicesPair, "devices pairings": (*app).devicesPairings, "devices approve": (*app).devicesApprove, "devices deny": (*app).devicesDeny,
	"pair":      (*app).pair,
	"vault set": (*app).vaultSet, "vault get": (*app).vaultGet, "vault ls": (*app).vaultLs, "vault history": (*app).vaultLs, "vault rollback": (*app).vaultRollback,
	"vault rm": (*app).vaultRm, "vault rotate": (*app).vaultRotate, "vault verify": (*app).vaultVerify, "vault recipients": (*app).vaultRecipients,
	"vault import": (*app).vaultImport, "vault export": (*app).vaultExport,
	"memory search": (*app).memorySearch, "memory ls": (*app).memoryLs, "memory show": (*app).memoryShow, "memory add": (*app).memoryAdd,
	"memory forget": (*app).memoryForget, "memory purge": (*app).memoryPurge, "memory export": (*app).memoryExport, "memory import": (*app).memoryImport,
	"backup create": (*app).backupCreate,
	"complete":      (*app).complete,
}

// need is a usage error for a flag that has no default.
func need(inv *command.Invocation, flag string) error { return front.Required(inv, flag) }

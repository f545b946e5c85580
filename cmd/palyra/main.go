// Asking the cgroup how many processors to use, and again from time to time, is
// for programs that run longer than one call.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command palyra decides, confines and attests one tool call, and checks the records of
// such calls.
//
// One table (palyra/cmd/internal/local) has all its commands: flags, help, exit statuses
// and examples. "palyra help" prints it. The rest of this package is wiring: flags become a
// kernel.Proposal, an Outcome becomes an exit status, and the person who approves is asked
// on the controlling terminal (prompt.go). For the commands that another program does,
// palyra becomes that program (palyra/cmd/internal/programs says which).
//
// Results go to standard output, words for people to standard error, and with --json a
// command prints exactly one JSON document. Nothing here decides whether a call may run.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/local"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/terminal"
	socket "palyra/hub/place"
	"palyra/internal/fault"
)

// version is set by the linker (make build).
var version = "unknown"

// app is the process as the commands see it, so that tests can be one too.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	executable     func() (string, error) // path of this program
	terminal       string                 // what an approval is asked on
	become         func(path string, argv []string) error
	// armed waits until a signal ends the context and nothing else; see interruptible.
	armed func()
	table *command.Table
	loan  atomic.Pointer[terminal.Loan] // our terminal, while a call uses it; nil before
}

func main() {
	a := &app{
		stdin: os.Stdin, getenv: os.Getenv,
		executable: os.Executable, terminal: "/dev/tty", table: local.TableFor(words(os.Args, os.Getenv)),
		become: func(path string, argv []string) error { return syscall.Exec(path, argv, os.Environ()) },
	}
	var ctx context.Context
	ctx, a.armed = interruptible(context.Background(), a.exiting())
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	a.stdout, a.stderr = stdout, stderr
	status := a.run(ctx, words(os.Args, os.Getenv))
	// A lost write was reported already; these are the bytes of an incomplete character.
	_, _ = stdout.Flush(), stderr.Flush()
	os.Exit(status)
}

// words are the arguments. As palyra-sh, whose caller can't give flags, it's palyra sh.
func words(args []string, getenv func(string) string) []string {
	if filepath.Base(args[0]) != "palyra-sh" {
		return args[1:]
	}
	return slices.Concat([]string{"sh"}, strings.Fields(getenv("PALYRA_SH")), []string{"--"}, args[1:])
}

// run parses args, runs the command they name and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
		args = []string{"help"}
	}
	if len(args) == 1 && args[0] == "--version" {
		args = []string{"version"}
	}
	inv, err := a.table.Parse(args)
	switch {
	case err != nil:
		front.Complain(a.stderr, "palyra", err)
		if inv != nil && inv.Command.UsageExit != 0 {
			return inv.Command.UsageExit
		}
		return front.Exit(err)
	case inv.Help != "":
		status := front.Say(a.stdout, a.stderr, "palyra", inv.Help)
		if status != 0 && inv.Command != nil && inv.Command.UsageExit != 0 {
			return inv.Command.UsageExit
		}
		return status
	}
	given := len(inv.Operands)
	if program := programs.For(inv); program != "" && !a.here(inv) {
		return a.becomes(program, slices.Concat(args, inv.Operands[given:])) // a layer that it means
	}
	if a.handsOver(inv) {
		a.becomes(programs.Client, args)
		return programs.ExecRefused
	}
	return a.dispatch(ctx, inv)
}

// handsOver says that palyrad makes the call: the user has one, and no flag says that palyra does.
// The socket decides and not an answer, or whoever ends palyrad would choose other policies.
func (a *app) handsOver(inv *command.Invocation) bool {
	return inv.Command.Name == local.Exec.Name && !inv.Has("no-daemon") && !inv.Has("state") && !inv.Has("policy") && socket.OwnSocket(a.getenv) != ""
}

// becomes replaces this process by another program of ours, which parses the same words by
// the same table. It returns only on an error.
func (a *app) becomes(program string, args []string) int {
	exe, err := a.executable()
	if err == nil {
		var path string
		if path, err = installed.Find(exe, program); err == nil {
			err = a.become(path, append([]string{program}, args...))
			err = fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("execute %q", path), err)
		}
	}
	front.Complain(a.stderr, "palyra", err)
	return front.Exit(err)
}

// dispatch is the one place that turns a name into a function. The functions aren't in the
// table because they print from it, and because a test can compare a table of data with the
// documents.
func (a *app) dispatch(ctx context.Context, inv *command.Invocation) int {
	if inv.Command.Name != local.Exec.Name && inv.Command.Name != "run" { // which wait when they have to
		a.armed()
	}
	switch inv.Command.Name {
	case "exec":
		return a.exec(ctx, inv)
	case "run":
		return a.runAgent(ctx, inv)
	case "attest verify":
		return a.admin(inv, "attest.verify", a.attestVerify)
	case "attest show":
		return a.admin(inv, "attest.show", a.attestShow)
	case "journal verify":
		return a.admin(inv, "journal.verify", a.journalVerify)
	case "journal show":
		return a.admin(inv, "journal.show", a.journalShow)
	case "keys ls":
		return a.admin(inv, "keys.ls", a.keysLs)
	case "keys rotate":
		return a.admin(inv, "keys.rotate", func(inv *command.Invocation) (*front.Report, error) { return a.keysRotate(ctx, inv) })
	case "keys seal":
		return a.admin(inv, "keys.seal", func(inv *command.Invocation) (*front.Report, error) { return a.keysSeal(ctx, inv) })
	case "keys unseal":
		return a.admin(inv, "keys.unseal", func(inv *command.Invocation) (*front.Report, error) { return a.keysSeal(ctx, inv) })
	case "changes ls":
		return a.admin(inv, "changes.ls", a.changesLs)
	case "changes show":
		return a.admin(inv, "changes.show", func(inv *command.Invocation) (*front.Report, error) { return a.changesShow(ctx, inv) })
	case "changes diff":
		return a.admin(inv, "changes.diff", func(inv *command.Invocation) (*front.Report, error) { return a.changesDiff(ctx, inv) })
	case "changes discard":
		return a.admin(inv, "changes.discard", func(inv *command.Invocation) (*front.Report, error) { return a.changesDiscard(ctx, inv) })
	case "changes apply":
		return a.admin(inv, "changes.apply", func(inv *command.Invocation) (*front.Report, error) { return a.changesApply(ctx, inv) })
	case "changes undo":
		return a.admin(inv, "changes.undo", func(inv *command.Invocation) (*front.Report, error) { return a.changesUndo(ctx, inv) })
	case "caches ls":
		return a.admin(inv, "caches.ls", a.cachesLs)
	case "caches rm":
		return a.admin(inv, "caches.rm", a.cachesRm)
	case "vault init":
		return a.admin(inv, "vault.init", func(inv *command.Invocation) (*front.Report, error) { return a.vaultInit(ctx, inv) })
	case "vault migrate-backend":
		return a.admin(inv, "vault.migrate-backend", func(inv *command.Invocation) (*front.Report, error) { return a.vaultMigrate(ctx, inv) })
	case "vault set":
		return a.admin(inv, "vault.set", func(inv *command.Invocation) (*front.Report, error) { return a.vaultSet(ctx, inv) })
	case "vault rollback":
		return a.admin(inv, "vault.rollback", func(inv *command.Invocation) (*front.Report, error) { return a.vaultSet(ctx, inv) })
	case "vault get":
		return a.admin(inv, "vault.get", func(inv *command.Invocation) (*front.Report, error) { return a.vaultGet(ctx, inv) })
	case "vault ls":
		return a.admin(inv, "vault.ls", func(inv *command.Invocation) (*front.Report, error) { return a.vaultLs(ctx, inv) })
	case "vault history":
		return a.admin(inv, "vault.history", func(inv *command.Invocation) (*front.Report, error) { return a.vaultLs(ctx, inv) })
	case "vault rm":
		return a.admin(inv, "vault.rm", func(inv *command.Invocation) (*front.Report, error) { return a.vaultRm(ctx, inv) })
	case "vault rotate":
		return a.admin(inv, "vault.rotate", func(inv *command.Invocation) (*front.Report, error) { return a.vaultRotate(ctx, inv) })
	case "vault verify":
		return a.admin(inv, "vault.verify", func(inv *command.Invocation) (*front.Report, error) { return a.vaultVerify(ctx, inv) })
	case "vault import":
		return a.admin(inv, "vault.import", func(inv *command.Invocation) (*front.Report, error) { return a.vaultImport(ctx, inv) })
	case "vault export":
		return a.admin(inv, "vault.export", func(inv *command.Invocation) (*front.Report, error) { return a.vaultExport(ctx, inv) })
	case "vault identity":
		return a.admin(inv, "vault.identity", a.vaultIdentity)
	case "vault recipients":
		return a.admin(inv, "vault.recipients", func(inv *command.Invocation) (*front.Report, error) { return a.vaultRecipients(ctx, inv) })
	case "policy init":
		return a.admin(inv, "policy.init", a.policyInit)
	case "policy check":
		return a.admin(inv, "policy.check", a.policyCheck)
	case "policy learn":
		return a.admin(inv, "policy.learn", func(inv *command.Invocation) (*front.Report, error) { return a.policyLearn(ctx, inv) })
	case "policy explain":
		return a.admin(inv, "policy.explain", func(inv *command.Invocation) (*front.Report, error) { return a.policyExplain(ctx, inv) })
	case "policy test":
		return a.admin(inv, "policy.test", a.policyTest)
	case "policy why":
		return a.admin(inv, "policy.why", a.policyWhy)
	case "policy diff":
		return a.admin(inv, "policy.diff", func(inv *command.Invocation) (*front.Report, error) { return a.policyDiff(ctx, inv) })
	case "policy try":
		return a.admin(inv, "policy.try", func(inv *command.Invocation) (*front.Report, error) { return a.policyTry(ctx, inv) })
	case "policy export":
		return a.admin(inv, "policy.export", a.policyExport)
	case "sandbox probe":
		return a.admin(inv, "sandbox.probe", func(*command.Invocation) (*front.Report, error) { return a.sandboxProbe(ctx) })
	case "sandbox explain":
		return a.admin(inv, "sandbox.explain", func(inv *command.Invocation) (*front.Report, error) { return a.sandboxExplain(ctx, inv) })
	case "sandbox certify":
		return a.admin(inv, "sandbox.certify", func(inv *command.Invocation) (*front.Report, error) { return a.sandboxCertify(ctx, inv) })
	case "version":
		return a.admin(inv, "version", a.version)
	case "help":
		return a.help(inv)
	}
	panic("palyra: internal error: command " + inv.Command.Name + " has no function")
}

// admin runs an administrative command and prints its report: text or one
// document on standard output, an error on standard error too.
func (a *app) admin(inv *command.Invocation, schema string, f func(*command.Invocation) (*front.Report, error)) int {
	r, err := f(inv)
	return front.Print(a.stdout, a.stderr, "palyra", schema, inv.Has("json"), r, err)
}

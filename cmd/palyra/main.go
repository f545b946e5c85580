// Asking the cgroup how many processors to use, and again from time to time, is
// for programs that run longer than one call.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command palyra decides, confines and attests one tool call, and checks what
// such calls left behind.
//
// Everything that it can do stands in one table (table.go): flags, help, exit
// statuses and examples. "palyra help" prints it. The rest of this package is
// wiring: flags become a kernel.Proposal, an Outcome becomes an exit status,
// and the person who approves is asked on the controlling terminal (prompt.go).
//
// Results go to standard output, what is for people goes to standard error, and
// with --json a command prints exactly one JSON document. Nothing here decides
// whether a call may run.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/operator"
	"palyra/cmd/internal/terminal"
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
	armed          func() // waits until a signal ends the context and nothing else; see interruptible
	table          *command.Table
}

func main() {
	a := &app{
		stdin: os.Stdin, getenv: os.Getenv,
		executable: os.Executable, terminal: "/dev/tty", table: tableFor(os.Args[1:]),
		become: func(path string, argv []string) error { return syscall.Exec(path, argv, os.Environ()) },
	}
	var ctx context.Context
	ctx, a.armed = interruptible(context.Background(), os.Exit)
	stdout, stderr := terminal.Guard(ctx, os.Stdout), terminal.Guard(ctx, os.Stderr)
	a.stdout, a.stderr = stdout, stderr
	status := a.run(ctx, os.Args[1:])
	_, _ = stdout.Flush(), stderr.Flush() // a lost write has been told; these are bytes of no character
	os.Exit(status)
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
	case inv.Help:
		status := front.Say(a.stdout, a.stderr, "palyra", a.table.Describe(inv.Command))
		if status != 0 && inv.Command.UsageExit != 0 {
			return inv.Command.UsageExit
		}
		return status
	case inv.Command.Name != execCommand.Name && operator.Serves(inv.Command.Name) && !a.here(inv):
		return a.operate(args)
	}
	return a.dispatch(ctx, inv)
}

// operate becomes palyra-ctl, which has checked nothing yet and parses the same
// words by the same table. It returns only with a reason why not.
func (a *app) operate(args []string) int {
	exe, err := a.executable()
	if err == nil {
		var path string
		if path, err = installed.Find(exe, operator.Program, "ctl"); err == nil {
			err = a.become(path, append([]string{operator.Program}, args...))
			err = fault.New(fault.Refused, "ctl_unusable", fmt.Sprintf("execute %q", path), err)
		}
	}
	front.Complain(a.stderr, "palyra", err)
	return front.Exit(err)
}

// dispatch is the one place where a name becomes a function. The functions are
// not in the table because they print from it, and because a table that is data
// can be compared with the documents.
func (a *app) dispatch(ctx context.Context, inv *command.Invocation) int {
	if inv.Command.Name != execCommand.Name { // which waits when it has to
		a.armed()
	}
	switch inv.Command.Name {
	case "exec":
		return a.exec(ctx, inv)
	case "attest verify":
		return a.admin(inv, "attest.verify", a.attestVerify)
	case "attest show":
		return a.admin(inv, "attest.show", a.attestShow)
	case "journal verify":
		return a.admin(inv, "journal.verify", a.journalVerify)
	case "journal show":
		return a.admin(inv, "journal.show", a.journalShow)
	case "policy init":
		return a.admin(inv, "policy.init", a.policyInit)
	case "policy check":
		return a.admin(inv, "policy.check", a.policyCheck)
	case "policy explain":
		return a.admin(inv, "policy.explain", func(inv *command.Invocation) (*front.Report, error) { return a.policyExplain(ctx, inv) })
	case "policy test":
		return a.admin(inv, "policy.test", a.policyTest)
	case "policy lint":
		return a.admin(inv, "policy.lint", a.policyLint)
	case "policy coverage":
		return a.admin(inv, "policy.coverage", a.policyCoverage)
	case "policy mutate":
		return a.admin(inv, "policy.mutate", a.policyMutate)
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
	case "completion":
		return a.admin(inv, "completion", a.completion)
	case "man":
		return a.admin(inv, "man", a.man)
	case "bench":
		return a.admin(inv, "bench", func(inv *command.Invocation) (*front.Report, error) { return a.bench(ctx, inv) })
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

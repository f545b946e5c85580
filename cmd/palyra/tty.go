package main

import (
	"context"
	"io"
	"os"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/call"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/terminal"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// dumb is the kind of terminal that has no commands.
const dumb = "dumb"

// tty is the terminal that --tty gives a program: as large as ours, and of its kind.
func (a *app) tty() *call.TTY {
	rows, columns := terminal.Size(a.stdout, a.stdin)
	t := &call.TTY{Rows: uint16(rows), Columns: uint16(columns), Term: a.getenv("TERM")}
	if isolate.CheckTTY(tier.C, t) != nil {
		t.Term = dumb
	}
	return t
}

// lend has a call with --tty use the terminal that standard output is, if it is one, from when the
// call may run until its program is gone. So a card comes before, with the terminal as it was.
func (a *app) lend(ctx context.Context, inv *command.Invocation, stdio *kernel.IO, cancel context.CancelCauseFunc) *terminal.Loan {
	loan := terminal.Lend(ctx, a.stdin, a.stdout, inv.Has("raw"))
	if loan == nil {
		return nil
	}
	a.loan.Store(loan)
	stdio.Resize = loan.Sizes()
	stdio.Observe = func(e kernel.Event) {
		switch {
		case e.Step == kernel.StepDecided && e.Decision.Effect == policy.Allow,
			e.Step == kernel.StepAnswered && e.Approval.Answer == approval.Approved:
			if err := loan.Take(); err != nil {
				cancel(err)
			}
		case e.Step == kernel.StepExecuted, e.Step == kernel.StepResult:
			loan.Return()
		}
	}
	return loan
}

// keys returns the input of a call's terminal: the keys of ours, or else standard input.
func (a *app) keys(stdin io.Reader) io.Reader {
	if l := a.loan.Load(); l != nil && l.Keys() && stdin == a.stdin {
		return l
	}
	return stdin
}

// exiting returns an exit that gives a lent terminal back.
func (a *app) exiting() func(int) {
	return func(status int) {
		if l := a.loan.Load(); l != nil {
			l.Rescue()
		}
		os.Exit(status)
	}
}

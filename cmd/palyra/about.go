package main

import (
	"fmt"
	"runtime"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
	"palyra/isolate/knob"
)

func (a *app) version(*command.Invocation) (*front.Report, error) {
	r := &front.Report{
		Text: fmt.Sprintf("palyra %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		Fields: front.Document{"version": version, "go": runtime.Version(),
			"os": runtime.GOOS, "arch": runtime.GOARCH},
	}
	if knob.Build != "" {
		r.Text += "test build " + knob.Build + ": its receipts prove nothing\n"
		r.Fields["test_build"] = knob.Build
	}
	return r, nil
}

func (a *app) help(inv *command.Invocation) int {
	text, ok := a.table.Topic(inv.Operands)
	if !ok {
		err := fault.New(fault.Usage, "bad_command", "help",
			fmt.Errorf("unknown command %q", strings.Join(inv.Operands, " "))).WithHint("see palyra help")
		front.Complain(a.stderr, "palyra", err)
		return front.Exit(err)
	}
	return front.Say(a.stdout, a.stderr, "palyra", text)
}

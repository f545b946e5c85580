package main

import (
	"fmt"
	"runtime"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/internal/fault"
)

func (a *app) version(*command.Invocation) (*report, error) {
	return &report{
		text: fmt.Sprintf("palyra %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		fields: document{"version": version, "go": runtime.Version(),
			"os": runtime.GOOS, "arch": runtime.GOARCH},
	}, nil
}

func (a *app) help(inv *command.Invocation) int {
	text, ok := a.table.Topic(inv.Operands)
	if !ok {
		err := fault.New(fault.Usage, "unknown_command", "help",
			fmt.Errorf("unknown command %q", strings.Join(inv.Operands, " "))).WithHint("see palyra help")
		complain(a.stderr, err)
		return adminExit(err)
	}
	fmt.Fprint(a.stdout, text)
	return 0
}

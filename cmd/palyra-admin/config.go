package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub/config"
	"palyra/internal/fault"
)

func configValidate(_ context.Context, inv *command.Invocation) (*front.Report, error) {
	c, err := config.Load(inv.Operands[0], os.Environ())
	if err != nil {
		return nil, err
	}
	l := front.NewLines()
	l.Row("valid", "profile "+c.Profile)
	for _, v := range c.Values() {
		if v.Source != "default" {
			l.Row("  "+v.Key, v.Value, v.Source)
		}
	}
	return &front.Report{Text: l.String(), Fields: front.Document{"values": c.Values()}}, nil
}

func configExplain(_ context.Context, inv *command.Invocation) (*front.Report, error) {
	s, err := config.Explain(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: s, Fields: front.Document{"key": inv.Operands[0], "text": s}}, nil
}

func configSchema(context.Context, *command.Invocation) (*front.Report, error) {
	s := string(config.Schema())
	return &front.Report{Text: s, Fields: front.Document{"schema_text": s}}, nil
}

// completeKeys lists the keys of the configuration. palyra-ctl lists every other kind.
func completeKeys(_ context.Context, inv *command.Invocation) (*front.Report, error) {
	if kind := inv.Operands[0]; kind != "key" {
		return nil, fault.New(fault.Usage, "bad_command", "list ids", fmt.Errorf("palyra-admin lists no %q", kind)).WithHint("palyra complete " + kind)
	}
	ids := []string{}
	for _, k := range config.Keys() {
		ids = append(ids, k.Name)
	}
	return &front.Report{Text: strings.Join(ids, "\n") + "\n", Fields: front.Document{"kind": "key", "ids": ids}}, nil
}

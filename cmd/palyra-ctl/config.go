package main

import (
	"context"
	"os"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/kernel/config"
	"palyra/kernel/hub"
)

func (a *app) configShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	settings, err := h.Config(ctx, hub.Caller{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("KEY", "VALUE", "SOURCE").Keep(0)
	for _, s := range settings {
		t.Row(s.Key, s.Value, s.Source)
	}
	return text(front.Document{"settings": settings}, "%s", a.table(inv, t)), nil
}

func (a *app) configValidate(_ context.Context, inv *command.Invocation) (*result, error) {
	c, err := config.Load(inv.Operands[0], os.Environ())
	if err != nil {
		return nil, err
	}
	l := newLines()
	l.row("valid", "profile "+c.Profile)
	for _, v := range c.Values() {
		if v.Source != "default" {
			l.row("  "+v.Key, v.Value, v.Source)
		}
	}
	return text(front.Document{"values": c.Values()}, "%s", l), nil
}

func (a *app) configExplain(_ context.Context, inv *command.Invocation) (*result, error) {
	s, err := config.Explain(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"key": inv.Operands[0], "text": s}, "%s", s), nil
}

func (a *app) configSchema(context.Context, *command.Invocation) (*result, error) {
	s := string(config.Schema())
	return text(front.Document{"schema_text": s}, "%s", s), nil
}

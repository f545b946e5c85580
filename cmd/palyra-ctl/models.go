package main

import (
	"context"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
)

func (a *app) modelsLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListModels.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	table := front.NewTable("MODEL", "DEFAULT", "PROVIDER", "ITS NAME", "KIND", "WINDOW", "STATE").Keep(0)
	why := newLines()
	for _, m := range p.Items {
		is, state := "", "ready"
		if m.Default {
			is = "yes"
		}
		if m.Reason != "" {
			state = m.Reason
			why.row(m.Name, m.Why)
			if m.Hint != "" {
				why.row("", m.Hint)
			}
		}
		table.Row(m.Name, is, m.Provider, m.Model, m.Kind, m.Context, state)
	}
	return text(front.Document{"models": p.Items}, "%s%s", a.table(inv, table), why), nil
}

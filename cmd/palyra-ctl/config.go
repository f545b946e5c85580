package main

import (
	"context"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
)

func (a *app) configShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	settings, err := hub.GetConfig.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("KEY", "VALUE", "SOURCE").Keep(0)
	for _, s := range settings.Items {
		t.Row(s.Key, s.Value, s.Source)
	}
	return text(front.Document{"settings": settings.Items}, "%s", a.table(inv, t)), nil
}

package main

import (
	"context"
	"errors"
	"fmt"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

func (a *app) keysLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	return a.keys(inv, func(h hub.Hub) (hub.Page[hub.Key], error) { return hub.ListKeys.Do(ctx, h, hub.Caller{}, hub.None{}) })
}

func (a *app) keysRotate(ctx context.Context, inv *command.Invocation) (*result, error) {
	return a.keys(inv, func(h hub.Hub) (hub.Page[hub.Key], error) {
		return hub.RotateKey.Do(ctx, h, hub.Caller{}, hub.KeyRotation{Log: inv.Has("log"), IntroduceOnly: inv.Has("introduce")})
	})
}

func (a *app) keys(inv *command.Invocation, do func(hub.Hub) (hub.Page[hub.Key], error)) (*result, error) {
	if inv.Has("state") || inv.Has("trust") {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("--state and --trust are not for palyrad's keys"))
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := do(h)
	if err != nil {
		return nil, err
	}
	t := front.NewTable("KEY", "SIGNS", "STATE", "ENTRIES", "SINCE", "FILE").Keep(0, 5)
	for _, k := range p.Items {
		entries := fmt.Sprintf("%d-", k.From)
		if k.To != nil {
			entries += fmt.Sprint(*k.To - 1)
		}
		t.Row(k.Hint, k.Signs, k.State, entries, k.Start, k.File)
	}
	return text(front.Document{"keys": p.Items}, "%s", a.table(inv, t)), nil
}

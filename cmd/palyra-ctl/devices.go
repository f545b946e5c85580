package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

func (a *app) devicesLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListDevices.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"devices": p.Items}, "%s", a.devices(inv, p.Items)), nil
}

// devices prints a table. An id is what a person gave, so it's never cut.
func (a *app) devices(inv *command.Invocation, ds []hub.Device) string {
	t := front.NewTable("DEVICE", "STATE", "PRINCIPAL", "EXPIRES", "SEEN", "SCOPES").Keep(0)
	for i := range ds {
		t.Row(ds[i].ID, ds[i].State, front.Principal(ds[i].Principal), stamp(ds[i].Expires), stampOf(ds[i].Seen), strings.Join(ds[i].Scopes, ","))
	}
	return a.table(inv, t)
}

func (a *app) devicesShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	d, err := hub.GetDevice.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	l := newLines()
	l.row("device", d.ID)
	l.row("  name", d.Name)
	l.row("  state", d.State)
	l.row("  principal", front.Principal(d.Principal))
	l.row("  scopes", strings.Join(d.Scopes, ", "))
	l.row("  key", d.Key)
	l.row("  token", d.Token)
	l.row("  paired", stamp(d.Created))
	l.row("  expires", stamp(d.Expires))
	l.row("  seen", stampOf(d.Seen))
	if d.Revoked != nil {
		l.row("  revoked", stampOf(d.Revoked))
	}
	for _, c := range d.Certificates {
		l.row("  certificate", c.Digest+", good until "+stamp(c.Expires))
	}
	return text(front.Document{"device": d}, "%s", l.String()), nil
}

func (a *app) devicesRevoke(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	d, err := hub.RevokeDevice.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"device": d}, "%s", a.devices(inv, []hub.Device{d})), nil
}

func (a *app) devicesRm(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if _, err := hub.RemoveDevice.Do(ctx, h, hub.Caller{}, inv.Operands[0]); err != nil {
		return nil, err
	}
	return text(front.Document{"removed": inv.Operands[0]}, "removed %s\n", cell(inv.Operands[0])), nil
}

// devicesRenew is for the device itself.
func (a *app) devicesRenew(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	device, ok := h.(interface {
		Renew(context.Context) (time.Time, error)
	})
	if !ok {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("a device renews its own certificate, with it")).
			WithHint("name its folder: --device DIR")
	}
	ends, err := device.Renew(ctx)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"not_after": ends.UTC()}, "the certificate is good until %s\n", stamp(ends)), nil
}

func (a *app) devicesRoot(ctx context.Context, inv *command.Invocation) (*result, error) {
	if inv.Has("at-once") && !inv.Has("replace") {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("--at-once goes with --replace"))
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	var v hub.Authority
	if inv.Has("replace") {
		v, err = hub.ReplaceRoot.Do(ctx, h, hub.Caller{}, hub.RootReplacement{AtOnce: inv.Has("at-once")})
	} else {
		v, err = hub.GetAuthority.Do(ctx, h, hub.Caller{}, hub.None{})
	}
	if err != nil {
		return nil, err
	}
	t := front.NewTable("ROOT", "STATE", "FROM", "UNTIL", "IN FORCE").Keep(0)
	for _, r := range v.Roots {
		begins := ""
		if r.State == "introduced" {
			begins = stampOf(v.BeginsAt)
		}
		t.Row(r.Digest, r.State, stamp(r.NotBefore), stamp(r.NotAfter), begins)
	}
	return text(front.Document{"authority": v}, "%s", a.table(inv, t)), nil
}

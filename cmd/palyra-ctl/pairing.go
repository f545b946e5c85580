package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/fault"
)

// devicesPair makes a code, waits for a device and asks for its digits.
func (a *app) devicesPair(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.BeginPairing.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	if inv.Has("no-wait") {
		return text(front.Document{"pairing": p}, "%s\n", cell(p.Code)), nil
	}
	done := false
	defer func() {
		if !done { // a code that no one waits for is only good for others
			_, _ = hub.DenyPairing.Do(context.WithoutCancel(ctx), h, hub.Caller{}, p.ID)
		}
	}()
	if _, err := fmt.Fprintf(a.stderr, "code       %s\nuri        %s\n\nOn the device, within five minutes, with the code in a file or on standard input:\n\n  palyra pair --device DIR --id NAME - %s\n\nWaiting for it.\n",
		cell(p.Code), cell(p.URI), cell(p.Address)); err != nil {
		return nil, err
	}
	now, err := awaitDevice(ctx, h, p.ID)
	if err != nil {
		return nil, err
	}
	digits, err := a.askDigits(ctx, &now, inv)
	if err != nil {
		return nil, err
	}
	r, err := approved(ctx, h, now.ID, digits, inv)
	done = err == nil
	return r, err
}

// awaitDevice returns the pairing when its device has shown its key.
func awaitDevice(ctx context.Context, h hub.Hub, id string) (hub.Pairing, error) {
	state := "open"
	for {
		p, err := hub.GetPairing.Do(ctx, h, hub.Caller{}, hub.PairingQuery{ID: id, Unlike: state})
		switch {
		case err != nil:
			return p, err
		case p.State == "pending":
			return p, nil
		case p.State != "open" && p.State != "begun":
			return p, fault.New(fault.Denied, "pairing_over", "pair device", fmt.Errorf("it is %s %s", cell(p.State), cell(p.End)))
		}
		state = p.State
	}
}

// askDigits shows what a device asks for, and reads its digits from the terminal.
func (a *app) askDigits(ctx context.Context, p *hub.Pairing, inv *command.Invocation) (string, error) {
	const op = "pair device"
	dev, err := terminal.Open(ctx, a.terminal)
	if err != nil {
		return "", fault.New(fault.Usage, "bad_command", op, err).WithHint("without a terminal: palyra devices pair --no-wait, and palyra devices approve " + p.ID + " DIGITS")
	}
	defer dev.Close()
	digits, err := dev.Person("").Line(ctx, asks(p)+"\n", "Type the six digits that the device shows; anything else refuses it: ")
	switch {
	case ctx.Err() != nil:
		return "", fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case err != nil:
		return "", fault.New(fault.Unavailable, "io_error", op, err)
	}
	if digits = spaceless(digits); len(digits) != 6 || strings.Trim(digits, "0123456789") != "" {
		return "", fault.New(fault.NotApproved, "not_approved", op, errors.New("no six digits were typed"))
	}
	return digits, nil
}

// asks says what a device asks for.
func asks(p *hub.Pairing) string {
	var b strings.Builder
	row := func(name, text string) { fmt.Fprintf(&b, "%-10s %s\n", name, cell(text)) }
	row("device", p.Device+", a "+p.Kind)
	if p.Known {
		row("", "there is a device of this id: --replace puts this one in its place")
	}
	row("asks for", strings.Join(p.Scopes, ", "))
	row("key", p.Key)
	return b.String()
}

func spaceless(s string) string { return strings.Join(strings.Fields(s), "") }

func approved(ctx context.Context, h hub.Hub, id, digits string, inv *command.Invocation) (*result, error) {
	in := hub.PairingApproval{ID: id, PairingGrant: hub.PairingGrant{Digits: spaceless(digits), Replace: inv.Has("replace")}}
	if inv.Has("scope") {
		scopes := command.All[string](inv, "scope")
		in.Scopes = &scopes
	}
	p, err := hub.ApprovePairing.Do(ctx, h, hub.Caller{}, in)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"pairing": p}, "%s is paired\n", cell(p.Device)), nil
}

func (a *app) devicesApprove(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	return approved(ctx, h, inv.Operands[0], inv.Operands[1], inv)
}

func (a *app) devicesDeny(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.DenyPairing.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"pairing": p}, "%s %s\n", cell(p.ID), cell(p.State)), nil
}

func (a *app) devicesPairings(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListPairings.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("PAIRING", "STATE", "DEVICE", "KIND", "ASKS FOR", "EXPIRES").Keep(0)
	for _, x := range p.Items {
		t.Row(x.ID, strings.TrimSpace(x.State+" "+x.End), x.Device, x.Kind, strings.Join(x.Scopes, ","), stamp(x.Expires))
	}
	return text(front.Document{"pairings": p.Items}, "%s", a.table(inv, t)), nil
}

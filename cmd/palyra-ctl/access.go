package main

import (
	"context"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
)

func (a *app) tokenCreate(ctx context.Context, inv *command.Invocation) (*result, error) {
	n := hub.NewToken{Name: inv.Operands[0], Principal: command.Value(inv, "principal", ""),
		Scopes: command.All[string](inv, "scope"), TTL: command.Value(inv, "ttl", time.Duration(0))}
	switch {
	case len(n.Scopes) == 0:
		return nil, need(inv, "scope")
	case n.TTL == 0:
		return nil, need(inv, "ttl")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	t, err := hub.CreateToken.Do(ctx, h, hub.Caller{}, n)
	if err != nil {
		return nil, err
	}
	return secret(&t), nil
}

// secret prints a token's text, alone on standard output so that it can be put
// into a file.
func secret(t *hub.TokenSecret) *result {
	return text(front.Document{"token": t}, "%s\n", cell(t.Secret))
}

func (a *app) tokenLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListTokens.Do(ctx, h, hub.Caller{}, hub.TokenQuery{PageQuery: page(inv)})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"tokens": p.Items, "next": p.Next}, "%s%s", a.tokens(inv, p.Items), more(p.Next)), nil
}

func (a *app) tokens(inv *command.Invocation, ts []hub.Token) string {
	t := front.NewTable("TOKEN", "NAME", "STATE", "PRINCIPAL", "EXPIRES", "LAST USE", "SCOPES").Keep(0)
	short := a.ids(inv, len(ts), func(i int) string { return ts[i].ID })
	for i := range ts {
		t.Row(short(ts[i].ID), ts[i].Name, ts[i].State, front.Principal(ts[i].Principal), stamp(ts[i].Expires), stampOf(ts[i].LastUse), strings.Join(ts[i].Scopes, ","))
	}
	return a.table(inv, t)
}

func (a *app) tokenRevoke(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	t, err := hub.RevokeToken.Do(ctx, h, hub.Caller{}, hub.TokenChange{ID: inv.Operands[0], Version: command.Value(inv, "version", int64(0))})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"token": t}, "%s", a.tokens(inv, []hub.Token{t})), nil
}

func (a *app) tokenRotate(ctx context.Context, inv *command.Invocation) (*result, error) {
	r := hub.Rotation{ID: inv.Operands[0], Version: command.Value(inv, "version", int64(0)), RotationRequest: hub.RotationRequest{
		TTL: command.Value(inv, "ttl", time.Duration(0)), Overlap: command.Value(inv, "overlap", time.Duration(0))}}
	if r.TTL == 0 {
		return nil, need(inv, "ttl")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	t, err := hub.RotateToken.Do(ctx, h, hub.Caller{}, r)
	if err != nil {
		return nil, err
	}
	return secret(&t), nil
}

func (a *app) passkeysLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListPasskeys.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"passkeys": p.Items}, "%s", a.passkeys(inv, p.Items)), nil
}

func (a *app) passkeys(inv *command.Invocation, ps []hub.Passkey) string {
	t := front.NewTable("PASSKEY", "NAME", "STATE", "PRINCIPAL", "SINCE", "LAST USE").Keep(0)
	short := a.ids(inv, len(ps), func(i int) string { return ps[i].ID })
	for i := range ps {
		t.Row(short(ps[i].ID), ps[i].Name, ps[i].State, front.Principal(ps[i].Principal), stamp(ps[i].Created), stampOf(ps[i].LastUse))
	}
	return a.table(inv, t)
}

func (a *app) passkeysRevoke(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.RevokePasskey.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"passkey": p}, "%s", a.passkeys(inv, []hub.Passkey{p})), nil
}

func (a *app) membersLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListMembers.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("PRINCIPAL", "ROLE", "VERSION", "SINCE", "BY").Keep(0)
	for _, m := range p.Items {
		t.Row(m.Principal, m.Role, m.Version, stamp(m.Created), m.By)
	}
	return text(front.Document{"members": p.Items}, "%s", a.table(inv, t)), nil
}

func (a *app) membersSet(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	version := command.Value(inv, "version", int64(0))
	if version == 0 {
		if version, err = memberVersion(ctx, h, inv.Operands[0]); err != nil {
			return nil, err
		}
	}
	m, err := hub.PutMember.Do(ctx, h, hub.Caller{}, hub.MemberPut{Principal: inv.Operands[0], Version: version,
		MemberChange: hub.MemberChange{Role: inv.Operands[1]}})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"member": m}, "%s %s\n", cell(m.Principal), cell(m.Role)), nil
}

// memberVersion returns the version that a principal's membership has now, 0 if it has none:
// without --version the change is to the current membership, and is still refused if
// another change is quicker. palyrad asks for a version because making a member and
// changing one are different acts.
func memberVersion(ctx context.Context, h hub.Hub, principal string) (int64, error) {
	p, err := hub.ListMembers.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return 0, err
	}
	for _, m := range p.Items {
		if m.Principal == principal {
			return m.Version, nil
		}
	}
	return 0, nil
}

func (a *app) membersRm(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	in := hub.MemberRemoval{Principal: inv.Operands[0], Version: command.Value(inv, "version", int64(0))}
	if _, err := hub.RemoveMember.Do(ctx, h, hub.Caller{}, in); err != nil {
		return nil, err
	}
	return text(front.Document{"removed": inv.Operands[0]}, "%s has no role\n", cell(inv.Operands[0])), nil
}

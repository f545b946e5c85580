package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"palyra/internal/fault"
	"palyra/kernel/hub"
)

// guard stands before the hub while palyrad must not take new calls: when it
// drains, when the disk is nearly full, and in safe mode, where nothing may
// change but what takes authority away. Reading is never refused here.
type guard struct {
	hub.Hub
	refuse func() error // why no call is taken, nil if one is
	safe   bool
	tokens time.Duration // longest life of a new token: access.token_max_age
}

var _ hub.Hub = (*guard)(nil)

// CreateSession implements hub.Hub.
func (g *guard) CreateSession(ctx context.Context, c hub.Caller, n hub.NewSession) (hub.Session, error) {
	if err := g.refuse(); err != nil {
		return hub.Session{}, err
	}
	return g.Hub.CreateSession(ctx, c, n)
}

// StartRun implements hub.Hub.
func (g *guard) StartRun(ctx context.Context, c hub.Caller, n hub.NewRun) (hub.Run, error) {
	if err := g.refuse(); err != nil {
		return hub.Run{}, err
	}
	return g.Hub.StartRun(ctx, c, n)
}

// Call implements hub.Hub.
func (g *guard) Call(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Run, error) {
	if err := g.refuse(); err != nil {
		return hub.Run{}, err
	}
	return g.Hub.Call(ctx, c, n)
}

// ResolveApproval implements hub.Hub. A no is taken always.
func (g *guard) ResolveApproval(ctx context.Context, c hub.Caller, id string, version int64, a hub.Answer) (hub.Approval, error) {
	if err := g.whenSafe(); err != nil && a.Approve {
		return hub.Approval{}, err
	}
	return g.Hub.ResolveApproval(ctx, c, id, version, a)
}

// CreateToken implements hub.Hub.
func (g *guard) CreateToken(ctx context.Context, c hub.Caller, n hub.NewToken) (hub.TokenSecret, error) {
	if err := cmp.Or(g.whenSafe(), g.short(n.TTL)); err != nil {
		return hub.TokenSecret{}, err
	}
	return g.Hub.CreateToken(ctx, c, n)
}

// RotateToken implements hub.Hub.
func (g *guard) RotateToken(ctx context.Context, c hub.Caller, id string, r hub.Rotation) (hub.TokenSecret, error) {
	if err := cmp.Or(g.whenSafe(), g.short(r.TTL)); err != nil {
		return hub.TokenSecret{}, err
	}
	return g.Hub.RotateToken(ctx, c, id, r)
}

// PutMember implements hub.Hub.
func (g *guard) PutMember(ctx context.Context, c hub.Caller, m hub.Member) (hub.Member, error) {
	if err := g.whenSafe(); err != nil {
		return hub.Member{}, err
	}
	return g.Hub.PutMember(ctx, c, m)
}

// Resume implements hub.Hub.
func (g *guard) Resume(ctx context.Context, c hub.Caller) (hub.Stopped, error) {
	if err := g.whenSafe(); err != nil {
		return hub.Stopped{}, err
	}
	return g.Hub.Resume(ctx, c)
}

// short refuses a life that the configuration does not allow.
func (g *guard) short(ttl time.Duration) error {
	if ttl <= g.tokens {
		return nil
	}
	return fault.New(fault.Usage, "ttl_too_long", "create token", fmt.Errorf("a life of %v is longer than access.token_max_age, %v", ttl, g.tokens)).
		WithHint("ask for a shorter one and rotate it")
}

// whenSafe refuses in safe mode.
func (g *guard) whenSafe() error {
	if !g.safe {
		return nil
	}
	return fault.New(fault.Unavailable, "safe_mode", "change state", errors.New("palyrad is in safe mode after failed starts: everything can be read, nothing is changed")).
		WithHint("look at the log of the starts that failed, repair it, restart palyrad")
}

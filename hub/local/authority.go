package local

import (
	"context"
	"errors"
	"time"

	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/internal/fault"
)

// The acts about roots of the authority; ca.create and ca.rotate are devices.go's.
const (
	actRootIntroduced = "ca.introduce"
	actRootBegun      = "ca.begin"
)

func (h *Hub) authorityOperations() []hub.Entry {
	return []hub.Entry{hub.GetAuthority.By(h.getAuthority), hub.ReplaceRoot.By(h.replaceRoot)}
}

// authorityOf returns an authority as clients see it.
func authorityOf(a *ca.Authority) hub.Authority {
	v := hub.Authority{Domain: a.Domain(), Roots: []hub.AuthorityRoot{}}
	for _, r := range a.States(time.Now()) {
		v.Roots = append(v.Roots, hub.AuthorityRoot{Digest: r.Digest, State: r.State, NotBefore: r.NotBefore, NotAfter: r.NotAfter})
	}
	if at, ok := a.BeginAt(); ok {
		v.BeginsAt = &at
	}
	return v
}

// existing returns the authority that there is. It doesn't wait for a change, which holds changing
// while the journal writes.
func (ds *devices) existing(op string) (*ca.Authority, error) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if ds.authority == nil {
		return nil, fault.New(fault.NotFound, "not_found", op, errors.New("there is no certificate authority yet")).
			WithHint("the first pairing makes it: palyra devices pair")
	}
	return ds.authority, nil
}

func (h *Hub) getAuthority(context.Context, hub.Caller, hub.None) (hub.Authority, error) {
	a, err := h.devices.existing("get certificate authority")
	if err != nil {
		return hub.Authority{}, err
	}
	return authorityOf(a), nil
}

func (h *Hub) replaceRoot(ctx context.Context, c hub.Caller, in hub.RootReplacement) (hub.Authority, error) {
	if err := h.room(c); err != nil {
		return hub.Authority{}, err
	}
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	a, err := h.devices.existing("replace root")
	if err != nil {
		return hub.Authority{}, err
	}
	ctx = context.WithoutCancel(ctx) // the journal must not have what then doesn't happen
	now := time.Now()
	_, introduced := a.BeginAt()
	if !introduced || !in.AtOnce { // a second introduction is the authority's to refuse
		if err := a.Introduce(ctx, now, h.recorder(ctx, c, actRootIntroduced, a.Domain())); err != nil {
			return hub.Authority{}, err
		}
		h.devices.use(a)
	}
	if in.AtOnce {
		if err := h.beginRoot(ctx, c, a, now); err != nil {
			return hub.Authority{}, err
		}
	}
	return authorityOf(a), nil
}

// beginRoot puts the introduced root in force. The caller holds changing.
func (h *Hub) beginRoot(ctx context.Context, c hub.Caller, a *ca.Authority, now time.Time) error {
	err := a.Begin(ctx, now, h.recorder(ctx, c, actRootBegun, a.Domain()))
	h.devices.use(a)
	// A device that renews from now on trusts the new root alone.
	h.devices.own.forget()
	return err
}

// maintain makes the changes of the authority that are due, if it can. The caller holds changing.
func (h *Hub) maintain(ctx context.Context, c hub.Caller, a *ca.Authority, now time.Time) {
	what, err := "", error(nil)
	if at, introduced := a.BeginAt(); introduced && !now.Before(at) {
		what, err = "the root isn't replaced", h.beginRoot(ctx, c, a, now)
	}
	// The old issuer has a third of its life left, and Issue looks at its end.
	if err == nil && !now.Before(a.RotateAt()) {
		what, err = "the issuer isn't replaced", a.Rotate(ctx, now, h.recorder(ctx, c, actIssuer, a.Domain()))
	}
	if err != nil {
		if before, ok := h.noise.take("", now); ok {
			h.cfg.Log.Warn(what, "error", err, "left_out", before)
		}
	}
	h.devices.use(a)
}

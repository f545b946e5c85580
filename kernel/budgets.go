package kernel

import (
	"context"
	"io"
	"sync/atomic"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/kernel/internal/digests"
)

// Budgets are the accounts of what calls hold before policy has said anything
// about them. A process has one of each.
type Budgets struct {
	// Sealed is memory, in bytes: of sealed files whole pages and 2 KiB each, of each call
	// eight times its capsule, and what a daemon's runs keep. A call reserves what a file
	// needs before copying it, and holds it until the call is over, however long a question
	// waits.
	Sealed *budget.Pool
	// Sealing counts the calls that are being sealed. One that hangs in a file
	// system keeps its place, though its caller has left.
	Sealing *budget.Pool
	// Files counts the descriptors of sealed copies of operands, of which one call
	// can have many and none other knows: it holds them while a question waits.
	Files *budget.Pool
}

// OperandFiles returns how many descriptors [Budgets.Files] are in a process that
// may have so many: half, and enough for some calls in any case.
func OperandFiles(most int64) int64 { return max(4*maxMounted, most/2) }

// maxSealedMemory bounds what Budgets take by default, in bytes.
const maxSealedMemory = 2 << 30

// NewBudgets returns Budgets of sealed bytes for the process and for one
// principal. 0 is three eighths of the memory that a cgroup leaves this process, else a
// quarter of the host's, and at most 2 GiB; and for a principal half of that. An
// eighth of all is kept for the installation's owner.
func NewBudgets(sealed, each int64) *Budgets {
	if sealed <= 0 {
		all, limited := budget.Memory()
		if sealed = all / 4; limited {
			sealed = all / 8 * 3
		}
		sealed = min(max(sealed, 16<<20), maxSealedMemory)
	}
	reserve := sealed / 8
	if each <= 0 {
		each = (sealed - reserve) / 2
	}
	return newBudgets(sealed, min(each, sealed), reserve)
}

// ownBudgets are those of a process that makes the calls of its own user.
func ownBudgets() *Budgets {
	b := NewBudgets(0, 0).Sealed.Limits()
	return newBudgets(b.Total, b.Total, 0)
}

func newBudgets(sealed, each, reserve int64) *Budgets {
	files := budget.Limits{Name: "files", Total: OperandFiles(budget.Files())}
	if reserve > 0 {
		files.Reserve = files.Total / 8
		files.Each = (files.Total - files.Reserve) / 2
	}
	return &Budgets{
		Files:   budget.New(files),
		Sealed:  budget.New(budget.Limits{Name: "sealed", Total: sealed, Each: each, Reserve: reserve}),
		Sealing: budget.New(budget.Limits{Name: "sealing", Total: 64, Each: 24, Reserve: 8, Line: 2048}),
	}
}

// owner is who pays for what a caller's call holds.
func (who *Caller) owner() budget.Owner {
	return budget.Owner{Name: principal(who.Principal), Reserve: who.Reserve}
}

// Pools are all of them, for metrics.
func (b *Budgets) Pools() []budget.Account {
	return []budget.Account{b.Sealed, b.Sealing, b.Files}
}

// Budgets returns those of this Kernel.
func (k *Kernel) Budgets() *Budgets { return k.cfg.Budgets }

// aside runs f in a goroutine of its own and returns when it has, or when ctx is
// done: what f was waiting for, a read of a file system that hangs, must not keep
// the caller. What f made is then for drop, and its place is given back when it
// returns. place is one in Budgets.Sealing.
func aside[T any](ctx context.Context, place *budget.Hold, op string, f func() (T, error), drop func(T)) (none T, err error) {
	type result struct {
		v     T
		err   error
		panic any // the caller's to have: it may stop at the border of a request
	}
	done := make(chan result, 1)
	var first atomic.Bool // set by whoever ends the wait: f's end, or ctx
	go func() {
		defer place.Release()
		var r result
		func() {
			defer func() { r.panic = recover() }()
			r.v, r.err = f()
		}()
		if first.CompareAndSwap(false, true) {
			done <- r
		} else if r.panic == nil {
			drop(r.v)
		}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		if first.CompareAndSwap(false, true) {
			return none, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
		}
		r = <-done
	}
	if r.panic != nil {
		panic(r.panic)
	}
	return r.v, r.err
}

// sealAside is expand and seal, in a goroutine that the caller need not wait for.
func (k *Kernel) sealAside(ctx context.Context, who *Caller, p Proposal, stdin io.Reader) (*sealed, *Proposal, error) {
	type made struct {
		s *sealed
		p Proposal
	}
	place, err := k.cfg.Budgets.Sealing.Wait(ctx, who.owner(), 1)
	if err != nil {
		return nil, nil, err
	}
	m, err := aside(ctx, place, "seal call", func() (m made, err error) {
		defer func() {
			if m.s == nil && p.tool != nil && p.tool.Effect != nil {
				p.tool.Effect.Close()
			}
		}()
		k.step("sealing")
		if err := k.checkHoldsNone(who, &p); err != nil { // before a tool works on its input
			return m, err
		}
		if err := k.checkTraps(ctx, who, &p); err != nil {
			return m, err
		}
		if stdin, err = k.expand(ctx, who, &p, stdin); err != nil {
			return m, err
		}
		if p.EgressHosts, err = k.PolicySet().ExpandHosts(p.EgressHosts); err != nil {
			return m, err
		}
		if err := k.checkHoldsNone(who, &p); err != nil {
			return m, err
		}
		if err := k.findSecrets(ctx, &p); err != nil {
			return m, err
		}
		hold, err := k.cfg.Budgets.Sealed.Take(who.owner(), 0)
		if err != nil {
			return m, err
		}
		var state string
		var known *digests.Cache
		if k.state != nil {
			state, known = k.state.dir, k.state.digests
		} else {
			state = existing(k.cfg.StateDir)
		}
		if m.s, err = sealWith(ctx, &p, stdin, state, known, hold); err == nil {
			if err = k.spares(&p, m.s.place.workspace); err != nil {
				m.s.close()
				m.s = nil
			}
		}
		if p.tool != nil {
			p.tool.Stdin = nil // sealed; a question may wait for long
		}
		m.p = p
		return m, err
	}, func(m made) {
		if m.s != nil {
			m.s.close()
		}
	})
	return m.s, &m.p, err
}

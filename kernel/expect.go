package kernel

import (
	"context"
	"slices"

	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// Expect announces calls at the warm tier with this network and these limits ("" and zero are a
// Proposal's defaults), so that the pool has a cell for the first of them, even if palyra-cell
// dies and is started again. It returns when a cell waits, or at once if none can.
func (k *Kernel) Expect(ctx context.Context, network string, l isolate.Limits) error {
	if k.cfg.Warm == tier.None {
		return nil
	}
	l, err := withDefaults(l)
	if err != nil {
		return err
	}
	if err := k.enter(); err != nil {
		return err
	}
	defer k.calls.Done()
	k.remember(expected{network, l})
	lane := k.lane(k.cfg.Warm)
	if err := lane.wait(ctx, func() {}); err != nil {
		return err
	}
	return lane.expect(ctx, expected{network, l})
}

type expected struct {
	network string
	limits  isolate.Limits
}

// maxExpected bounds the kinds that are remembered, the last named ones: a pool keeps cells for
// as many.
const maxExpected = 8

func (k *Kernel) remember(e expected) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kinds := slices.DeleteFunc(k.keep.expected, func(x expected) bool { return x == e })
	k.keep.expected = append(kinds, e)
	k.keep.expected = k.keep.expected[max(0, len(k.keep.expected)-maxExpected):]
}

// expecter is a runner that can make cells ahead: a *cell.Client, or a test's.
type expecter interface {
	Expect(ctx context.Context, network string, l isolate.Limits) (cell.Stats, error)
}

var _ expecter = (*cell.Client)(nil)

func (l *lane) expect(ctx context.Context, e expected) error {
	r, ok := l.runner.(expecter)
	if !ok {
		return nil
	}
	_, err := r.Expect(ctx, e.network, e.limits)
	return err
}

// expectAgain repeats earlier announcements to a new runner, the latest last. If one fails,
// calls go without a waiting cell.
func (l *lane) expectAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for _, e := range l.expected {
		if l.expect(ctx, e) != nil {
			return
		}
	}
}

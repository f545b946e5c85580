package kernel

import (
	"context"
	"slices"

	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// Expect says that calls come at the tier that was made warm, with this network
// and these limits (as in a Proposal: "" and zero are the defaults), so that the
// pool has a cell for the first of them, also when palyra-cell has died and was
// started again. It returns when one waits, or at once where none can.
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

// expected is a kind of calls that come.
type expected struct {
	network string
	limits  isolate.Limits
}

// maxExpected is how many kinds are remembered, the ones last named: a pool keeps
// cells for as many.
const maxExpected = 8

func (k *Kernel) remember(e expected) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kinds := slices.DeleteFunc(k.keep.expected, func(x expected) bool { return x == e })
	k.keep.expected = append(kinds, e)
	k.keep.expected = k.keep.expected[max(0, len(k.keep.expected)-maxExpected):]
}

// expecter is a runner that can make something ahead: a *cell.Client, or a test's.
type expecter interface {
	Expect(ctx context.Context, network string, l isolate.Limits) (cell.Stats, error)
}

var _ expecter = (*cell.Client)(nil)

// expect tells the runner of a lane that is ready.
func (l *lane) expect(ctx context.Context, e expected) error {
	r, ok := l.runner.(expecter)
	if !ok {
		return nil
	}
	_, err := r.Expect(ctx, e.network, e.limits)
	return err
}

// expectAgain tells it what was expected before it was there, the latest last. What
// does not work is left to the calls, which then find no cell.
func (l *lane) expectAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for _, e := range l.expected {
		if l.expect(ctx, e) != nil {
			return
		}
	}
}

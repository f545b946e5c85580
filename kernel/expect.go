package kernel

import (
	"context"

	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// Expect says that calls with the default limits come, at the tier that was made
// warm, so that the pool has a cell for the first of them. It returns when one
// waits, or at once where none can.
func (k *Kernel) Expect(ctx context.Context) error {
	if k.cfg.Warm == tier.None {
		return nil
	}
	if err := k.enter(); err != nil {
		return err
	}
	defer k.calls.Done()
	l := k.lane(k.cfg.Warm)
	if err := l.wait(func() {}); err != nil {
		return err
	}
	c, ok := l.runner.(*cell.Client)
	if !ok {
		return nil
	}
	_, err := c.Expect(ctx, isolate.NetworkFresh, DefaultLimits())
	return err
}

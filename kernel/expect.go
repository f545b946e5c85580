package kernel

import (
	"context"

	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// Expect says that calls come at the tier that was made warm, with this network
// and these limits (as in a Proposal: "" and zero are the defaults), so that the
// pool has a cell for the first of them. It returns when one waits, or at once
// where none can.
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
	lane := k.lane(k.cfg.Warm)
	if err := lane.wait(func() {}); err != nil {
		return err
	}
	c, ok := lane.runner.(*cell.Client)
	if !ok {
		return nil
	}
	_, err = c.Expect(ctx, network, l)
	return err
}

package main

import (
	"context"
	"time"

	"palyra/hub/local"
	"palyra/internal/fault"
	"palyra/isolate"
)

// retain removes everything beyond the configured retention, at once and then every
// retention.every, until ctx is done. In safe mode it removes nothing.
func (d *daemon) retain(ctx context.Context) {
	if d.safe {
		return
	}
	for {
		c := d.cfg.Load().Retention
		keep := local.Keep{Runs: c.Runs.Std(), ArtifactBytes: int64(c.ArtifactBytes), Sessions: c.Sessions.Std(), Caches: c.Caches.Std(), Every: c.Every.Std()}
		if err := d.core.local.Retain(ctx, keep); err != nil && ctx.Err() == nil {
			d.log.Warn("retention", "error", err.Error(), "reason", fault.ReasonOf(err))
		}
		t := time.NewTimer(keep.Every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// expect has a cell made for the first call before it comes. Without one the
// first call makes its own.
func (d *daemon) expect(ctx context.Context) {
	if d.safe || d.cfg.Load().Pool.Cells == 0 {
		return
	}
	if err := d.core.kernel.Expect(ctx, "", isolate.Limits{}); err != nil && ctx.Err() == nil {
		d.log.Warn("no cell waits for the first call", "error", err.Error(), "reason", fault.ReasonOf(err))
	}
}

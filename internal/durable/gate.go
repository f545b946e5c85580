package durable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"palyra/internal/fault"
)

// Hold is how a Gate is locked.
type Hold int

// A Gate is locked by one exclusively, or shared by any number.
const (
	Exclusive Hold = iota
	Shared
)

// The waits between two looks at a lock that another process holds. A blocking
// flock(2) could not be called off; the first looks come soon, since most holders
// flush once and go.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = time.Millisecond
)

// Take is Try that waits: until ctx is done, which is fault.Canceled or
// fault.Timeout "gave_up", or for patience, and then it is fault.Busy "locked" with
// the holder if that is known.
func (g *Gate) Take(ctx context.Context, h Hold, patience time.Duration) error {
	held, err := g.Try(h)
	if held || err != nil {
		return err
	}
	start, pause := time.Now(), firstPause
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			kind := fault.Canceled
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				kind = fault.Timeout
			}
			return fault.New(kind, "gave_up", fmt.Sprintf("lock %q", g.path), ctx.Err())
		case <-t.C:
		}
		if held, err := g.Try(h); held || err != nil {
			return err
		}
		if time.Since(start) > patience {
			return fault.New(fault.Busy, "locked", fmt.Sprintf("lock %q", g.path), heldBy(g.Holder())).WithHint(busyHint)
		}
		pause = min(pause*3/2, lastPause)
		t.Reset(pause)
	}
}

const busyHint = "wait until the other Palyra on this state directory has ended, or use another one with --state"

func heldBy(holder string) error {
	if holder == "" {
		holder = "another process"
	}
	return errors.New(holder + " holds it")
}

package durable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"palyra/internal/fault"
)

// Hold is a way to lock a Gate.
type Hold int

// One holder locks a Gate exclusively, or any number share it.
const (
	Exclusive Hold = iota
	Shared
)

// The waits between two looks at a lock that another process holds. A blocking flock(2)
// couldn't be cancelled; the first looks come soon, since most holders flush once and go.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = time.Millisecond
)

// ErrGaveUp is in the error of a wait that its caller's context ended: nothing
// was done.
var ErrGaveUp = errors.New("gave up waiting")

// GaveUp is the error of an operation whose wait cause, an error of a context, has
// ended. It is fault.Timeout or fault.Canceled.
func GaveUp(op string, cause error) error {
	kind, reason := fault.Canceled, "canceled"
	if errors.Is(cause, context.DeadlineExceeded) {
		kind, reason = fault.Timeout, "timeout"
	}
	return fault.New(kind, reason, op, fmt.Errorf("%w: %w", ErrGaveUp, cause))
}

// Take is Try that waits: until ctx is done, which is GaveUp, or for patience, and
// then it is fault.Busy "locked" with the holder if that is known.
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
			return GaveUp(fmt.Sprintf("lock %q", g.path), ctx.Err())
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

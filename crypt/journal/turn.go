package journal

import "context"

// turn is a mutex whose wait ends with a context: a request that waits for one may be
// called off, and its holder may be waiting for a disk or for another process.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take is durable.ErrGaveUp if ctx is done first.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}: // at once, even if ctx is done
		return nil
	default:
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return gaveUp(ctx.Err())
	}
}

// must is take for what no request waits for.
func (t turn) must() { t <- struct{}{} }

func (t turn) give() { <-t }

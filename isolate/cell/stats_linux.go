package cell

import (
	"context"

	"palyra/internal/fault"
	"palyra/isolate"
)

// Stats asks palyra-cell what it has ready.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return c.query(ctx, &request{Op: "stats"})
}

// Expect says that calls of a network (isolate.NetworkFresh or NetworkVoid) and
// limits come. It returns when a cell waits for one of them, or at once where
// none can: the pool is off, or the tier has none.
func (c *Client) Expect(ctx context.Context, network string, l isolate.Limits) (Stats, error) {
	return c.query(ctx, &request{Op: "expect", Network: network, Limits: &l})
}

func (c *Client) query(ctx context.Context, r *request) (Stats, error) {
	_, ch, err := c.put(r, nil)
	if err != nil {
		return Stats{}, err
	}
	select {
	case r := <-ch:
		if r.Stats == nil {
			r.Stats = &Stats{}
		}
		return *r.Stats, r.Error.err()
	case <-ctx.Done():
		return Stats{}, fault.New(fault.Canceled, "canceled", "ask palyra-cell", context.Cause(ctx))
	}
}

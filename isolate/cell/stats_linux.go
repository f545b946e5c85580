package cell

import (
	"context"
	"encoding/json"

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
	_, q, err := c.put(0, nil, func(id uint64) ([]byte, error) {
		r.ID = id
		b, err := json.Marshal(r)
		return append([]byte{opQuery}, b...), err
	})
	if err != nil {
		return Stats{}, err
	}
	a, err := c.later(ctx, "ask palyra-cell", q)
	if err != nil {
		return Stats{}, err
	}
	if a.Stats == nil {
		a.Stats = &Stats{}
	}
	return *a.Stats, a.Error.err()
}

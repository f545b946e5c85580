package cell

import (
	"context"
	"encoding/json"

	"palyra/isolate"
	"palyra/isolate/cell/wire"
)

// Stats asks palyra-cell for its state.
func (c *Client) Stats(ctx context.Context) (wire.Stats, error) {
	return c.query(ctx, &wire.Request{Op: "stats"})
}

// Expect announces calls with a network (isolate.NetworkFresh or NetworkVoid) and limits. It
// returns when a cell waits for one of them, or at once if the pool is off or the tier has
// none.
func (c *Client) Expect(ctx context.Context, network string, l isolate.Limits) (wire.Stats, error) {
	return c.query(ctx, &wire.Request{Op: "expect", Network: network, Limits: &l})
}

func (c *Client) query(ctx context.Context, r *wire.Request) (wire.Stats, error) {
	_, q, err := c.put(0, nil, func(id uint64) ([]byte, error) {
		r.ID = id
		b, err := json.Marshal(r)
		return append([]byte{wire.OpQuery}, b...), err
	})
	if err != nil {
		return wire.Stats{}, err
	}
	a, err := c.later(ctx, "ask palyra-cell", q)
	if err != nil {
		return wire.Stats{}, err
	}
	if a.Stats == nil {
		a.Stats = &wire.Stats{}
	}
	return *a.Stats, a.Error.Err()
}

package cell

import (
	"context"

	"palyra/isolate"
	"palyra/isolate/cell/wire"
)

// Explain returns what Run would do with s and f. Nothing runs, so it takes no grant. It's
// refused if the call would be refused for want of a control.
func (c *Client) Explain(ctx context.Context, s *isolate.Spec, f *isolate.Files) (*wire.Plan, error) {
	_, q, err := c.ask(wire.OpExplain, answerGrace, s, make([]byte, wire.GrantSize), f)
	if err != nil {
		return nil, err
	}
	r, err := c.later(ctx, "explain in palyra-cell", q)
	if err != nil {
		return nil, err
	}
	return r.Plan, r.Error.Err()
}

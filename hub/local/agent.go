package local

import (
	"context"
	"maps"
	"slices"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/agent"
	"palyra/hub/run"
)

// agents returns what has models choose the steps of runs, nil where no model is declared.
func (h *Hub) agents() run.Agents {
	if h.cfg.Models == nil || len(h.cfg.Models.Names()) == 0 {
		return nil
	}
	return agent.New(agent.Config{
		Store: h.st, Models: h.cfg.Models, Scan: h.cfg.Scan, Workspaces: slices.Sorted(maps.Keys(h.cfg.Workspaces)),
		Tools: func(ctx context.Context, c hub.Caller) ([]hub.Tool, []hub.ToolLeftOut, error) {
			c, err := h.scoped(c)
			if err != nil {
				return nil, nil, err
			}
			l, err := h.listTools(ctx, c, hub.ToolQuery{})
			return slices.Clone(l.Items), l.LeftOut, err
		},
		May: func(c hub.Caller, tool string) error {
			c, err := h.scoped(c)
			if err == nil {
				err = h.needTool(c, tool)
			}
			return err
		},
	})
}

// scoped is a caller whom a run remembers, with the scopes that their token has now.
func (h *Hub) scoped(c hub.Caller) (hub.Caller, error) {
	stands, err := h.access.Stands(holder(c), access.RunStart)
	if err == nil && c.Token != "" {
		c.Scopes = scopesOf(stands)
	}
	return c, err
}

package local

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/agent"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Agent bounds turns of models: those of an agent's run, of a session, and of a principal in a day.
type Agent struct {
	Tokens, Cost               int64
	SessionTokens, SessionCost int64
	DayTokens, DayCost         int64
}

// millionths are those of a unit of the models' prices.
const millionths = 1_000_000

// spending returns the bounds on sessions and days.
func (h *Hub) spending() run.Spending {
	a := &h.cfg.Agent
	return run.Spending{SessionTokens: a.SessionTokens, SessionCost: a.SessionCost * millionths, DayTokens: a.DayTokens, DayCost: a.DayCost * millionths}
}

// meter returns what knows the prices of turns, nil where no model is declared.
func (h *Hub) meter() run.Meter {
	if h.cfg.Models == nil { // not a nil pointer in an interface
		return nil
	}
	return h.cfg.Models
}

// agents returns what has models choose the steps of runs, nil where no model is declared.
func (h *Hub) agents() run.Agents {
	if h.cfg.Models == nil || len(h.cfg.Models.Names()) == 0 {
		return nil
	}
	var accepted func(context.Context, string, string) (*hub.Instructed, error)
	if h.cfg.Instructions {
		accepted = h.instructed
	}
	h.agent = agent.New(agent.Config{
		Accepted: accepted,
		Store:    h.st, Models: h.cfg.Models, Scan: h.cfg.Scan, Workspaces: slices.Sorted(maps.Keys(h.cfg.Workspaces)),
		Tokens: h.cfg.Agent.Tokens, Cost: h.cfg.Agent.Cost * millionths,
		Tools: func(ctx context.Context, c hub.Caller) ([]hub.Tool, []hub.ToolLeftOut, error) {
			c, err := h.scoped(c)
			if err != nil {
				return nil, nil, err
			}
			l, err := h.listTools(ctx, c, hub.ToolQuery{})
			return slices.Clone(l.Items), l.LeftOut, err
		},
		Recall: h.recall,
		May: func(c hub.Caller, tool string) error {
			c, err := h.scoped(c)
			if err == nil {
				err = h.needTool(c, tool)
			}
			return err
		},
	})
	return h.agent
}

// scoped is a caller whom a run remembers, with the scopes that their token has now.
func (h *Hub) scoped(c hub.Caller) (hub.Caller, error) {
	stands, err := h.access.Stands(holder(c), access.RunStart)
	if err == nil && c.Token != "" {
		c.Scopes = scopesOf(stands)
	}
	return c, err
}

// recall has an agent's run begin with what its user had remembered that fits the prompt, if there
// are items that a person wrote, and the run's caller may call the tool that finds them.
func (h *Hub) recall(ctx context.Context, c hub.Caller, prompt string) (s hub.Step, ok bool, err error) {
	if c, err = h.scoped(c); err != nil || h.needTool(c, toolproto.MemorySearch) != nil {
		return s, false, err
	}
	l, err := h.listTools(ctx, c, hub.ToolQuery{})
	if err != nil || !slices.ContainsFunc(l.Items, func(t hub.Tool) bool { return t.Name == toolproto.MemorySearch }) {
		return s, false, err
	}
	ok, err = store.View(ctx, h.st, func(tx *store.Tx) (bool, error) {
		return tx.HasMemories(c.User, toolproto.SourcePerson, toolproto.SourceImport)
	})
	if err != nil || !ok {
		return s, false, err
	}
	s, err = agent.Recall(prompt)
	return s, err == nil, err
}

// sendInput has an agent at work told what its principal says.
func (h *Hub) sendInput(ctx context.Context, c hub.Caller, in hub.RunInput) (none hub.RunInputTaken, err error) {
	if in.Said.Mode == "" {
		in.Said.Mode = hub.InputSteer
	}
	if !slices.Contains([]string{hub.InputSteer, hub.InputInterrupt, hub.InputFollowUp}, in.Said.Mode) {
		return none, fault.New(fault.Usage, "invalid_input", "tell agent", fmt.Errorf("%.40q is no mode of an input", in.Said.Mode))
	}
	if err := h.needTool(c, turn.Tool); err != nil {
		return none, err
	}
	principal, err := h.principalOf(ctx, c, in.Run)
	if err != nil {
		return none, err
	}
	if principal != c.User {
		return none, fault.New(fault.Denied, "permission_denied", "tell agent", fmt.Errorf("it works for %s", principal))
	}
	seq, err := h.runs.Input(ctx, in.Run, hub.AgentInput{Mode: in.Said.Mode, Text: in.Said.Text, Surface: c.Surface})
	return hub.RunInputTaken{Seq: seq}, h.named(c, err)
}

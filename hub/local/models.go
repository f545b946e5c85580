package local

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// listModels lists the declared models, and says of each why the caller couldn't ask it now.
func (h *Hub) listModels(ctx context.Context, c hub.Caller, _ hub.None) (p hub.Page[hub.Model], err error) {
	p.Items = []hub.Model{}
	if h.cfg.Models == nil {
		return p, nil
	}
	who, err := h.caller(c)
	if err != nil {
		return p, err
	}
	ctx, done, err := h.explaining(ctx, c)
	if err != nil {
		return p, err
	}
	defer done()
	for _, name := range h.cfg.Models.Names() {
		one, err := h.cfg.Models.Model(name)
		if err != nil {
			return p, err
		}
		m := hub.Model{Name: name, Provider: one.Provider, Model: one.Model, Kind: cmp.Or(one.Kind, hub.ModelTurns), Context: one.Context, Default: name == h.cfg.Models.Default()}
		if err := h.mayAsk(ctx, who, name, one.Embeds()); ctx.Err() != nil {
			return p, h.named(c, err)
		} else if err != nil {
			m.Reason, m.Why, m.Hint = fault.ReasonOf(err), err.Error(), fault.HintOf(err)
		} else if until := h.agent.Rests(name); !until.IsZero() {
			m.Reason, m.Why = agentloop.ReasonProvider, "it didn't answer three times: agents ask it again at "+until.UTC().Format(time.TimeOnly)+" UTC"
		}
		p.Items = append(p.Items, m)
	}
	return p, nil
}

// mayAsk returns why a question to a model would be refused. Nothing is asked.
func (h *Hub) mayAsk(ctx context.Context, who kernel.Caller, name string, embeds bool) error {
	r := turn.Request{Messages: []turn.Message{{Role: turn.User, Parts: []turn.Part{{Text: "?"}}}}}
	if embeds {
		r = turn.Request{Embed: &turn.Embed{Input: []string{"?"}}}
	}
	input, err := json.Marshal(map[string]any{"model": name, "request": r})
	if err != nil {
		return fault.New(fault.Internal, "internal", "ask about a model", err)
	}
	q, err := h.k.Question(ctx, who, proposal(turn.Tool, input, "", ""), nil)
	if err != nil {
		return err
	}
	if d := h.k.PolicySet().Decide(q); d.Effect == policy.Deny {
		return fault.New(fault.Denied, d.Reason, fmt.Sprintf("ask model %q", name), fmt.Errorf("policy denies it to %s", who.Principal.ID))
	}
	return nil
}

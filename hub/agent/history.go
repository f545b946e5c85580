package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/hub/model"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// maxEarlier is how many earlier prompts of a session a model is told of, with what followed each.
const maxEarlier = 16

// earlier returns the runs of agents that a run follows, newest first: those of its session that
// had ended at a time, from the one that it names on. That may name another.
func (a *Agents) earlier(ctx context.Context, r *run.Agent, began time.Time) (before []run.Earlier, err error) {
	after := r.After
	if r.Session == "" {
		return nil, noEarlier(after)
	}
	rows, err := store.View(ctx, a.cfg.Store, func(tx *store.Tx) ([]store.Run, error) {
		return tx.Runs(store.RunFilter{Session: r.Session, States: []store.RunState{store.RunDone, store.RunFailed, store.RunCancelled}}, store.Page{Limit: store.MaxPage})
	})
	if err != nil {
		return nil, err
	}
	prompts := 0
	for i := range rows {
		if rows[i].Ended.After(began) || after != "" && rows[i].ID != after {
			continue
		}
		b, err := run.ReadEarlier(ctx, a.cfg.Store, rows[i].ID)
		if err != nil {
			return nil, err
		}
		if b.Agent == nil {
			continue
		}
		before = append(before, b)
		if after = b.Agent.After; b.Agent.Prompt != "" {
			prompts++
		}
		if prompts == maxEarlier {
			return before, nil
		}
	}
	if r.After != "" && len(before) == 0 {
		return nil, noEarlier(r.After)
	}
	return before, nil
}

func noEarlier(id string) error {
	if id == "" {
		return nil
	}
	return fault.New(fault.Usage, "not_found", "start run", fmt.Errorf("%.40q is no run of an agent that has ended in this session", id))
}

// answers refuses results of calls that no run has ended with.
func answers(results []hub.AgentResult, calls []hub.AgentCall) error {
	for _, r := range results {
		if !slices.ContainsFunc(calls, func(c hub.AgentCall) bool { return c.ID == r.ID }) {
			return fault.New(fault.Usage, "not_found", "start run", fmt.Errorf("the run that it follows didn't end with a call %.80q", r.ID)).
				WithHint("answer.calls of the run has the calls; after names another run of the session than the last one")
		}
	}
	return nil
}

// history is what the runs said that a run follows, oldest first. Those that ended after it began
// aren't among them.
func (a *Agents) history(ctx context.Context, r *run.Agent, c *model.Catalog, looks *scan) (out []turn.Message, err error) {
	this, err := store.View(ctx, a.cfg.Store, func(tx *store.Tx) (*store.Run, error) { return tx.RunHead(r.ID) })
	if err != nil {
		return nil, err
	}
	before, err := a.earlier(ctx, r, this.Started)
	if err != nil {
		return nil, err
	}
	var last *agentloop.Loop
	for i := range slices.Backward(before) {
		b := &before[i]
		if last != nil {
			out = append(out, last.Messages(told(b.Agent, looks)...)...)
		}
		items, _, err := a.recalled(ctx, b.ID)
		if err != nil {
			return nil, err
		}
		o := offer(c, b.Agent)
		last = agentloop.New(agentloop.Config{Prompt: looks.text(prompted(b.Agent.Prompt, items), hub.SignalPrompt, 0), Call: o.wrong, Foreign: o.foreign})
		turned := false
		for i := range b.Steps {
			st, err := run.ReadStep(ctx, a.cfg.Store, b.ID, i)
			if err != nil {
				return nil, err
			}
			if turned = turned || st.Tool == turn.Tool; !turned {
				continue // it led to the prompt, which has what it found
			}
			if a.play(ctx, last, o, looks, r, b.ID, &st) != nil {
				break // its tools were others: what came before is told
			}
		}
	}
	if len(r.Results) > 0 {
		var open []hub.AgentCall
		if last != nil {
			for _, c := range last.Open() {
				open = append(open, hub.AgentCall{ID: c.ID})
			}
		}
		if err := answers(r.Results, open); err != nil { // another run has answered meanwhile, or the tools are others
			return nil, err
		}
	}
	_ = looks.taken() // what those runs had is on their tapes
	if last != nil {
		out = append(out, last.Messages(told(&r.Agent, looks)...)...)
	}
	return out, nil
}

// told is what a model is told of the results that an agent's run brings.
func told(w *hub.Agent, looks *scan) (results []turn.Result) {
	for _, r := range w.Results {
		results = append(results, turn.Result{ID: r.ID, Text: looks.result(r.Text), Failed: r.Failed})
	}
	return results
}

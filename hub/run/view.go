package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"palyra/authz/approval"
	"palyra/call"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// Read returns a run with its steps.
func (e *Engine) Read(ctx context.Context, id string) (hub.Run, error) { return Read(ctx, e.store, id) }

// ReadStep returns a step of a run.
func ReadStep(ctx context.Context, st *store.Store, id string, index int) (hub.StepResult, error) {
	return store.View(ctx, st, func(tx *store.Tx) (hub.StepResult, error) {
		row, err := tx.Step(id, index)
		if err != nil {
			return hub.StepResult{}, err
		}
		return stepOf(row)
	})
}

// Earlier is a run of an agent that has ended.
type Earlier struct {
	ID    string
	Agent *hub.Agent // nil: none chose its steps
	Steps int        // that it has
	Ended *hub.AgentEnded
}

// ReadEarlier reads a run that has ended.
func ReadEarlier(ctx context.Context, st *store.Store, id string) (Earlier, error) {
	return store.View(ctx, st, func(tx *store.Tx) (b Earlier, err error) {
		r, err := tx.Run(id)
		if err != nil {
			return b, err
		}
		p, err := planOf(r)
		if err != nil || p.Agent == nil {
			return b, err
		}
		b.ID, b.Agent = id, p.Agent
		last, err := tx.LastStep(id)
		if err != nil {
			return b, err
		}
		if last != nil {
			b.Steps = last.Index + 1
		}
		seq, err := tx.LastEvent(id)
		if err == nil {
			b.Ended, err = answerOf(tx, id, seq)
		}
		return b, err
	})
}

// Read returns a run of a store with its steps.
func Read(ctx context.Context, st *store.Store, id string) (hub.Run, error) {
	return store.View(ctx, st, func(tx *store.Tx) (hub.Run, error) {
		r, err := tx.Run(id)
		if err != nil {
			return hub.Run{}, err
		}
		v := Of(r)
		if v.LastSeq, err = tx.LastEvent(id); err != nil {
			return v, err
		}
		rows, err := tx.Steps(id)
		if err != nil {
			return v, err
		}
		for i := range rows {
			s, err := stepOf(&rows[i])
			if err != nil {
				return v, err
			}
			v.Steps = append(v.Steps, s)
		}
		p, err := planOf(r)
		if err != nil {
			return v, err
		}
		v.Background, v.Metadata, v.Agent = p.Background, p.Metadata, p.Agent
		if v.Agent != nil && r.State.Terminal() {
			if v.Answer, err = answerOf(tx, id, v.LastSeq); err != nil {
				return v, err
			}
		}
		for i := len(rows); i < len(p.Steps); i++ { // not begun
			s := hub.StepResult{Index: i, Tool: p.Steps[i].Tool, Input: p.Steps[i].Input, State: hub.StepPending}
			if r.State.Terminal() {
				s.State = hub.StepSkipped
			}
			v.Steps = append(v.Steps, s)
		}
		return v, nil
	})
}

// answerOf returns what an agent's run ended with, nil if it says nothing: the event before its
// last.
func answerOf(tx *store.Tx, id string, last uint64) (*hub.AgentEnded, error) {
	if last < 2 {
		return nil, nil
	}
	evs, err := tx.Events(id, last-2, 1)
	if err != nil || len(evs) == 0 || evs[0].Kind != hub.EventAgentEnded {
		return nil, err
	}
	var a hub.AgentEnded
	if err := json.Unmarshal(evs[0].Payload, &a); err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read the answer of run %q", id), err)
	}
	return &a, nil
}

// Of is a run as clients see it, without steps.
func Of(r *store.Run) hub.Run {
	return hub.Run{
		ID: r.ID, Session: r.Session, Principal: r.Principal, State: string(r.State), Reason: r.Reason,
		Budget: budgetOf(r.Budget), Use: budgetOf(r.Use), Version: r.Version,
		Created: r.Created, Started: when(r.Started), Ended: when(r.Ended),
	}
}

func stepOf(row *store.Step) (hub.StepResult, error) {
	var r record
	if err := json.Unmarshal(row.Output, &r); err != nil {
		return r.StepResult, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read step %d of run %q", row.Index, row.Run), err)
	}
	s := r.StepResult
	s.Index, s.Tool, s.Input, s.State = row.Index, row.Tool, row.Input, string(row.State)
	s.Started, s.Ended = when(row.Started), when(row.Ended)
	return s, nil
}

// when is nil for what has not come yet.
func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// card is what the request column of an approval holds.
type card struct {
	hub.Card
	Text string `json:"text"`
}

func cardOf(q *approval.Request) card {
	v := hub.Card(q.Call)
	v.StdinText = approval.Escape(v.StdinHead)
	v.Argv, v.EnvNames, v.EgressHosts, v.Capabilities = some(v.Argv), some(v.EnvNames), some(v.EgressHosts), some(v.Capabilities)
	v.Operands, v.Why = some(v.Operands), some(v.Why)
	return card{v, approval.Card(*q)}
}

// ApprovalOf is a request for approval as clients see it.
func ApprovalOf(r *store.Approval) (hub.Approval, error) {
	var c card
	if err := json.Unmarshal(r.Request, &c); err != nil {
		return hub.Approval{}, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read approval %q", r.ID), err)
	}
	v := ApprovalHeadOf(r)
	v.Card, v.Text = c.Card, c.Text
	return v, nil
}

// NoCard is the card of a request that is told without it.
func NoCard() hub.Card {
	return hub.Card{Argv: []string{}, Operands: []call.CardOperand{}, EnvNames: []string{}, EgressHosts: []string{}, Capabilities: []string{}, Why: []hub.CardWhy{}}
}

// ApprovalHeadOf is ApprovalOf without the card and its text.
func ApprovalHeadOf(r *store.Approval) hub.Approval {
	return hub.Approval{
		ID: r.ID, State: string(r.State), Version: r.Version, Run: r.Run, Session: r.Session, Step: r.Step, CallID: r.Call,
		Requester: r.Requester, DecisionID: r.Decision, Capsule: r.Capsule, PolicySet: r.PolicySet, Scope: r.Scope,
		Card: NoCard(), Approver: r.Approver, Surface: r.Surface, Detail: r.Detail,
		Created: r.Created, Expires: r.Expires, Answered: when(r.Answered),
	}
}

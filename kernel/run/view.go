package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"palyra/authz/approval"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel/hub"
	"palyra/kernel/store"
)

// Read returns a run with its steps.
func (e *Engine) Read(ctx context.Context, id string) (hub.Run, error) {
	return store.View(ctx, e.store, func(tx *store.Tx) (hub.Run, error) {
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
		return r.StepResult, fault.New(fault.Integrity, "record", fmt.Sprintf("read step %d of run %q", row.Index, row.Run), err)
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
	c := &q.Call
	v := hub.Card{
		Principal: q.Principal, Tool: q.Tool, Argv: some(c.Argv), Executable: c.Executable, Digest: digest(c.Digest),
		Script: c.Script, ScriptDigest: digest(c.ScriptDigest), Operands: []hub.CardOperand{}, EnvNames: some(c.EnvNames), EnvChanged: c.EnvChanged, Cwd: c.Cwd,
		Workspace: c.Workspace, ReadOnly: c.ReadOnly, Stdin: c.Stdin, EgressHosts: some(c.EgressHosts), Capabilities: some(c.Capabilities),
		Tier: c.Tier, Limits: c.Limits, Why: []hub.CardWhy{},
		EnvDigest: digest(c.EnvDigest), StdinDigest: digest(c.StdinDigest), StdinSize: c.StdinSize, StdinText: approval.Escape(c.StdinHead), Network: c.Network, Bounds: hub.CardLimits(c.Bounds),
		Kind: c.Kind, System: c.System, Sensitive: c.Sensitive, Loose: c.Loose, Absent: c.Absent, Libraries: c.Libraries, Folders: c.Folders,
	}
	for _, p := range c.Planted {
		v.Planted = append(v.Planted, hub.CardPlanted(p))
	}
	for _, o := range c.Operands {
		v.Operands = append(v.Operands, hub.CardOperand{Path: o.Path, Digest: digest(o.Digest)})
	}
	for _, w := range q.Why {
		v.Why = append(v.Why, hub.CardWhy(w))
	}
	return card{v, approval.Card(*q)}
}

// CallOf is the call that a card describes, so that patterns can be tried on it.
// What an older card does not have is missing, and fits no pattern.
func CallOf(v *hub.Card) (c approval.Call, err error) {
	c = approval.Call{Argv: v.Argv, Executable: v.Executable, Script: v.Script, EnvNames: v.EnvNames, EnvChanged: v.EnvChanged, Cwd: v.Cwd, Workspace: v.Workspace, ReadOnly: v.ReadOnly,
		Stdin: v.Stdin, EgressHosts: v.EgressHosts, Capabilities: v.Capabilities, Tier: v.Tier, Limits: v.Limits, Network: v.Network,
		Bounds: approval.Limits(v.Bounds), Kind: v.Kind, System: v.System, Sensitive: v.Sensitive, Loose: v.Loose, Absent: v.Absent,
		Libraries: v.Libraries, Folders: v.Folders}
	for _, d := range []struct {
		to   *canon.Digest
		text string
	}{{&c.Digest, v.Digest}, {&c.ScriptDigest, v.ScriptDigest}, {&c.EnvDigest, v.EnvDigest}, {&c.StdinDigest, v.StdinDigest}} {
		if d.text == "" {
			continue
		}
		if *d.to, err = canon.ParseDigest(d.text); err != nil {
			return c, fault.New(fault.Integrity, "card", "read card", err)
		}
	}
	return c, nil
}

// digest is "" for none.
func digest(d canon.Digest) string {
	if d.IsZero() {
		return ""
	}
	return d.String()
}

// ApprovalOf is a request for approval as clients see it.
func ApprovalOf(r *store.Approval) (hub.Approval, error) {
	var c card
	if err := json.Unmarshal(r.Request, &c); err != nil {
		return hub.Approval{}, fault.New(fault.Integrity, "card", fmt.Sprintf("read approval %q", r.ID), err)
	}
	return hub.Approval{
		ID: r.ID, State: string(r.State), Version: r.Version, Run: r.Run, Session: r.Session, Step: r.Step, CallID: r.Call,
		Requester: r.Requester, DecisionID: r.Decision, Capsule: digest(r.Capsule), PolicySet: digest(r.PolicySet), Scope: r.Scope,
		Card: c.Card, Text: c.Text, Approver: r.Approver, Surface: r.Surface, Detail: r.Detail,
		Created: r.Created, Expires: r.Expires, Answered: when(r.Answered),
	}, nil
}

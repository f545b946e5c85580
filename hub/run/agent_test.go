package run

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/internal/fault"
)

// scripted is an Agents whose agents make the steps of their prompts, one a line of "tool input",
// whatever becomes of them, and say in the end how many there were.
type scripted struct{ steps map[string][]hub.Step } // by prompt

func (s scripted) Check(context.Context, Agent) error { return nil }

func (s scripted) Source(a Agent) Source { return &playing{steps: s.steps[a.Prompt]} }

type playing struct {
	steps []hub.Step
	told  []Entry
}

func (p *playing) Next(_ context.Context, results []hub.StepResult) (hub.Step, bool, error) {
	n := len(results)
	switch {
	case n < len(p.steps) && p.steps[n].Tool == "giveup":
		p.told = append(p.told, Entry{hub.EventAgentEnded, hub.AgentEnded{Error: "it gives up"}})
		return hub.Step{}, false, &Stop{Reason: "max_turns"}
	case n < len(p.steps):
		return p.steps[n], true, nil
	}
	p.told = append(p.told, Entry{hub.EventAgentEnded, hub.AgentEnded{Text: fmt.Sprint(n, " steps"), Turns: n}})
	return hub.Step{}, false, nil
}

func (p *playing) Tell() []Entry {
	told := p.told
	p.told = nil
	return told
}

func withAgents(c *Config) {
	c.Agents = scripted{map[string][]hub.Step{
		"three": steps("ok", "exit", "deny"), "hold": steps("ok", "hold", "ok"), "ask": steps("ask", "ok"), "stop": steps("ok", "giveup"),
	}}
}

func agent(prompt string) Request { return Request{Agent: &hub.Agent{Prompt: prompt}} }

// TestAgent: a source chooses the steps and goes on after failures, and what it says last is the
// run's answer.
func TestAgent(t *testing.T) {
	h := open(t, withAgents)
	r := h.ended(h.start(agent("three")))
	if r.State != hub.RunDone || len(r.Steps) != 3 || r.Answer == nil || r.Answer.Text != "3 steps" || r.Agent == nil || r.Agent.Prompt != "three" {
		t.Errorf("%+v", r)
	}
	r = h.ended(h.start(agent("stop")))
	if r.State != hub.RunFailed || r.Reason != "max_turns" || r.Answer == nil || r.Answer.Error == "" {
		t.Errorf("%s %s %+v", r.State, r.Reason, r.Answer)
	}
	q := agent("three")
	q.Budget.Calls = 2
	if r := h.ended(h.start(q)); r.State != hub.RunFailed || r.Reason != ReasonCalls || len(r.Steps) != 2 {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	for _, bad := range []Request{{Agent: &hub.Agent{Prompt: " "}}, {Agent: &hub.Agent{Prompt: "\xff"}}, {Agent: &hub.Agent{Prompt: "a"}, Steps: steps("ok")},
		{Agent: &hub.Agent{Prompt: "a", Turns: -1}}} {
		if _, err := h.try(bad); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	h.stop()
	h.reopen(nil)
	if _, err := h.try(agent("three")); fault.ReasonOf(err) != "not_found" {
		t.Errorf("without agents: %v", err)
	}
}

// TestAgentKey: with a key, the same prompt is the same run, and another one is refused.
func TestAgentKey(t *testing.T) {
	h := open(t, withAgents)
	q := agent("three")
	q.Key = "k"
	id := h.start(q)
	h.ended(id)
	if again := h.start(q); again != id {
		t.Errorf("%s, then %s", id, again)
	}
	q.Agent = &hub.Agent{Prompt: "stop"}
	if _, err := h.try(q); fault.ReasonOf(err) != "idempotency_key_reused" {
		t.Error(err)
	}
}

// TestAgentResumes: a run that was under way goes on where it was. The step that was running is
// not made again.
func TestAgentResumes(t *testing.T) {
	h := open(t, withAgents)
	a, b := h.start(agent("hold")), ""
	<-h.g.in // ok
	<-h.g.in // hold
	h.stop()
	if r := func() hub.Run { h.reopen(withAgents); return h.ended(a) }(); r.State != hub.RunDone || len(r.Steps) != 3 || r.Answer == nil || r.Answer.Text != "3 steps" {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	} else if s := r.Steps[1]; s.Outcome == "executed" || s.Reason == "" {
		t.Errorf("the step that was running: %+v", s)
	}
	if n := h.g.calls["hold {}"]; n != 1 {
		t.Errorf("it was made %d times", n)
	}
	b = h.start(agent("ask"))
	h.until(b, hub.EventRunWaitingApproval)
	h.stop()
	h.reopen(withAgents)
	if r := h.ended(b); r.State != hub.RunDone || len(r.Steps) != 2 || r.Steps[0].Outcome == "executed" {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	}
}

// TestAgentWithoutModels: runs that a configuration without models finds end, whether they had begun
// or waited.
func TestAgentWithoutModels(t *testing.T) {
	one := func(c *Config) { withAgents(c); c.Bounds = session.Bounds{Active: 1} }
	h := open(t, one)
	begun, waits := h.start(agent("hold")), h.start(agent("three"))
	<-h.g.in
	<-h.g.in
	h.stop()
	h.reopen(nil)
	for id, reason := range map[string]string{begun: ReasonInterrupted, waits: "not_found"} {
		if r := h.ended(id); r.State != hub.RunFailed || r.Reason != reason {
			t.Errorf("%s %s, want %s", r.State, r.Reason, reason)
		}
	}
}

// TestAgentHeld: an emergency stop ends what would have gone on.
func TestAgentHeld(t *testing.T) {
	h := open(t, withAgents)
	id := h.start(agent("hold"))
	<-h.g.in
	<-h.g.in
	h.stop()
	h.reopen(func(c *Config) { withAgents(c); c.Hold = true })
	if r := h.ended(id); r.State != hub.RunFailed || r.Reason != ReasonInterrupted {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	kinds := []string{}
	for _, ev := range h.tape(id, 0) {
		kinds = append(kinds, ev.Kind)
	}
	if !slices.Contains(kinds, hub.EventRunFailed) {
		t.Errorf("%q", kinds)
	}
}

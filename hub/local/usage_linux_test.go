package local

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/model"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
)

// withPrices is withScript, for a model of which a token asked costs 400 millionths, one from the
// cache 100 and one answered 1000, and with bounds.
func withPrices(t *testing.T, bounds Agent, turns ...turn.ScriptTurn) func(*Config, *kernel.Config) {
	script := withScript(t, turns...)
	return func(lc *Config, kc *kernel.Config) {
		tools := kc.Tools
		script(lc, kc)
		one, err := lc.Models.Model("tests")
		if err != nil {
			t.Fatal(err)
		}
		one.Input, one.Cached, one.Output = 400, 100, 1000
		if lc.Models, err = model.New(model.Config{Tools: tools, Fetch: filepath.Join(bin(t), "palyra-fetch"), Models: map[string]config.Model{"tests": one}}); err != nil {
			t.Fatal(err)
		}
		kc.Tools, lc.Agent = lc.Models, bounds
	}
}

// usage asks for what turns took.
func (h *house) usage(c hub.Caller, q hub.UsageQuery) hub.Usage {
	h.t.Helper()
	u, err := hub.GetUsage.Do(h.t.Context(), h, c, q)
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

// turnStep is a turn of the model, called as any tool.
func turnStep() hub.Step {
	return hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"tests","request":{"messages":[{"parts":[{"text":"hello"}],"role":"user"}]}}`)}
}

// TestUsage: agents' turns and those that are called are summed by session, principal and day,
// through a restart and the end of what is kept; other principals are told nothing of it.
func TestUsage(t *testing.T) {
	look := calls("", `palyra_echo {"text":"x"}`)
	look.Usage = &turn.Usage{Input: 1000, Cached: 100, Output: 100, Reasoning: 10}
	done := says("Done.")
	done.Usage = &turn.Usage{Input: 500, Output: 50}
	set := withPrices(t, Agent{SessionCost: 10, DayTokens: 5000}, look, done)
	h := newHouse(t, set)
	op, other := h.member(2001, access.Operator), h.member(2002, access.Operator)
	session := h.session(op)
	if r := h.agent(op, session, "do it"); r.State != hub.RunDone || r.Answer.Usage.Cost != 720_000 {
		t.Fatalf("%s %s %+v", r.State, r.Reason, r.Answer)
	}
	agents := hub.UsageCount{Turns: 2, AgentUsage: hub.AgentUsage{Input: 1500, Cached: 100, Output: 150, Reasoning: 10, Cost: 720_000}}
	all := hub.UsageCount{Turns: 3, AgentUsage: hub.AgentUsage{Input: 2500, Cached: 200, Output: 250, Reasoning: 20, Cost: 1_190_000}}
	if r := h.call(op, turnStep()); r.State != hub.RunDone {
		t.Fatalf("%s %s", r.State, r.Reason)
	}
	today := time.Now().UTC().Format(time.DateOnly)
	want := func(q hub.UsageQuery, took hub.UsageCount, budgets ...hub.UsageBudget) {
		t.Helper()
		u := h.usage(op, q)
		if u.Principal != op.User || u.Session != q.Session || u.Total != took || len(u.Items) != 1 || u.Items[0] != (hub.DayUsage{Day: today, Model: "tests", Took: took}) {
			t.Errorf("%+v", u)
		}
		if len(u.Budgets) != len(budgets) {
			t.Fatalf("%+v", u.Budgets)
		}
		for i, b := range budgets {
			if u.Budgets[i] != b {
				t.Errorf("%+v, want %+v", u.Budgets[i], b)
			}
		}
	}
	ofDay := hub.UsageBudget{Of: hub.UsageDay, Unit: hub.UsageTokens, Most: 5000, Used: 2750, Left: 2250}
	want(hub.UsageQuery{}, all, ofDay)
	want(hub.UsageQuery{Session: session}, agents, hub.UsageBudget{Of: hub.UsageSession, Unit: hub.UsageCost, Most: 10_000_000, Used: 720_000, Left: 9_280_000}, ofDay)

	// Another's principal and session don't exist; an owner is told.
	if u := h.usage(other, hub.UsageQuery{}); len(u.Items) != 0 || u.Principal != other.User || u.Total != (hub.UsageCount{}) {
		t.Errorf("%+v", u)
	}
	if _, err := hub.GetUsage.Do(t.Context(), h, other, hub.UsageQuery{Principal: op.User}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("another's: %v", err)
	}
	if _, err := hub.GetUsage.Do(t.Context(), h, h.owner, hub.UsageQuery{Principal: "uid:3000"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no one's: %v", err)
	}
	if _, err := hub.GetUsage.Do(t.Context(), h, other, hub.UsageQuery{Session: session}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("another's session: %v", err)
	}
	if u := h.usage(h.owner, hub.UsageQuery{Principal: op.User}); u.Total != all {
		t.Errorf("an owner is told %+v", u)
	}
	if u := h.usage(h.owner, hub.UsageQuery{Session: session}); u.Total != agents || u.Principal != op.User {
		t.Errorf("an owner is told %+v", u)
	}
	if u := h.usage(h.owner, hub.UsageQuery{By: hub.UsageByPrincipal}); u.Total != all || u.Principal != "" || len(u.Items) != 1 || u.Items[0] != (hub.DayUsage{Principal: op.User, Model: "tests", Took: all}) {
		t.Errorf("of all: %+v", u)
	}
	if _, err := hub.GetUsage.Do(t.Context(), h, op, hub.UsageQuery{By: hub.UsageByPrincipal}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("an operator asks for all: %v", err)
	}
	for _, q := range []hub.UsageQuery{{Days: -1}, {By: hub.UsageByPrincipal, Session: session}, {By: "day"}, {Days: hub.MaxUsageDays + 1}, {Session: session, Principal: op.User}, {Session: "x"}} {
		if _, err := hub.GetUsage.Do(t.Context(), h, op, q); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v", q, err)
		}
	}
	token, _ := h.token(op, "run.start")
	if _, err := hub.GetUsage.Do(t.Context(), h, token, hub.UsageQuery{}); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("a token without the permission: %v", err)
	}

	h.stop()
	h.reopen(set)
	want(hub.UsageQuery{Days: 1}, all, ofDay)
	if _, err := hub.EndSession.Do(t.Context(), h, op, hub.SessionChange{ID: session}); err != nil {
		t.Fatal(err)
	}
	if err := h.st.Retire(t.Context(), store.Retention{Before: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if p, err := hub.ListRuns.Do(t.Context(), h, op, hub.RunQuery{}); err != nil || len(p.Items) != 0 {
		t.Fatalf("%d runs are left, %v", len(p.Items), err)
	}
	want(hub.UsageQuery{}, all, ofDay)
	if _, err := hub.GetUsage.Do(t.Context(), h, op, hub.UsageQuery{Session: session}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a session that is gone: %v", err)
	}
}

// TestAgentSpending: a run ends by name before the turn that its session's budget doesn't have,
// says which one that was, and so does the next; another session goes on.
func TestAgentSpending(t *testing.T) {
	step := calls("", `palyra_echo {"text":"x"}`)
	step.Usage = &turn.Usage{Input: 1000, Output: 100}
	set := withPrices(t, Agent{SessionTokens: 2000}, step, step, says("never"))
	h := newHouse(t, set)
	op := h.member(2001, access.Operator)
	session := h.session(op)
	over := func(r hub.Run, steps int) {
		t.Helper()
		last := &r.Steps[len(r.Steps)-1]
		if r.State != hub.RunFailed || r.Reason != agentloop.ReasonTokens || len(r.Steps) != steps || last.Tool != turn.Tool || last.LogIndex != nil || last.Denial == nil || last.Denial.Layer != hub.LayerBudget {
			t.Errorf("%s %s, %d steps, the last: %+v", r.State, r.Reason, len(r.Steps), last)
		}
		if r.Agent != nil && (r.Answer == nil || !strings.Contains(r.Answer.Error, "agent.session_tokens is 2000")) {
			t.Errorf("%+v", r.Answer)
		}
	}
	r := h.agent(op, session, "go on")
	over(r, 5)
	if r.Answer == nil || r.Answer.Turns != 2 || r.Answer.Usage.Input != 2000 {
		t.Errorf("%+v", r.Answer)
	}
	over(h.agent(op, session, "go on"), 1)
	one, err := hub.Call.Do(t.Context(), h, op, hub.NewCall{Session: session, Tool: turn.Tool, Input: turnStep().Input})
	if err != nil {
		t.Fatal(err)
	}
	over(one, 1)
	if r := h.call(op, turnStep()); r.State != hub.RunDone {
		t.Errorf("in a session of its own: %s %s", r.State, r.Reason)
	}
	h.stop()
	h.reopen(set)
	over(h.agent(op, session, "go on"), 1)
	if r := h.agent(op, h.session(op), "go on"); len(r.Steps) != 5 {
		t.Errorf("in a new session: %s %s, %d steps", r.State, r.Reason, len(r.Steps))
	}
}

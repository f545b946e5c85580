package run

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
)

// prices is a Meter: a model's input names its question's bytes, and a token asked costs 2, one
// from the cache 1, one answered 10.
type prices struct{}

func (prices) Turn(_ string, input []byte) (string, int64, agentloop.Price, bool) {
	var in struct {
		Model string
		Bytes int64
	}
	if json.Unmarshal(input, &in) != nil || in.Model == "none" {
		return "", 0, agentloop.Price{}, false
	}
	return in.Model, in.Bytes, agentloop.Price{Input: 2, Cached: 1, Output: 10}, true
}

func metered(s Spending) func(*Config) {
	return func(c *Config) { c.Meter, c.Spending = prices{}, s }
}

// asks is a turn of the model m with a question of so many bytes, which answers with these lines.
func asks(bytes int, does string, lines ...string) []hub.Step {
	says := ""
	for _, l := range lines {
		says += l + "\n"
	}
	b, err := json.Marshal(map[string]any{"model": "m", "bytes": bytes, "does": does, "says": says})
	if err != nil {
		panic(err)
	}
	return []hub.Step{{Tool: turn.Tool, Input: b}}
}

// counts returns what is counted of a principal or session, without the day.
func (h *house) counts(whose string) (u store.Usage) {
	h.t.Helper()
	_, err := store.View(h.t.Context(), h.st, func(tx *store.Tx) (any, error) {
		all, err := tx.Usage(whose, 0)
		for i := range all {
			u = all[i].Less(store.Usage{}.Less(u))
			u.Day, u.Model = 0, ""
		}
		return nil, err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

// takes is what a run adds to what is counted of its principal, and of its session.
func (h *house) takes(q Request) (hub.Run, store.Usage) {
	h.t.Helper()
	before, in := h.counts(alice), h.counts(h.sess)
	r := h.ended(h.start(q))
	took := h.counts(alice).Less(before)
	if got := h.counts(h.sess).Less(in); got != took {
		h.t.Errorf("the session took %+v, its principal %+v", got, took)
	}
	return r, took
}

// TestUsage: a turn is counted by what its provider says; where that says nothing, by its size; and
// not at all where the model wasn't asked, or refused.
func TestUsage(t *testing.T) {
	h := open(t, metered(Spending{}))
	text := strings.Repeat("x", 8)
	long := make([]string, 3000) // more than a result keeps
	for i := range long {
		long[i] = `{"text":"` + text + `"}`
	}
	const end = `{"end":"stop","usage":{"input":100,"cached":40,"output":10,"reasoning":5}}`
	said := store.Usage{Turns: 1, Input: 100, Cached: 40, Output: 10, Reasoning: 5, Cost: 60*2 + 40 + 100}
	for name, c := range map[string]struct {
		steps []hub.Step
		want  store.Usage
	}{
		"said":                {asks(400, "", `{"text":"hello"}`, end), said},
		"said, long":          {asks(400, "", append(long, end)...), said},
		"said, and a failure": {asks(400, "exit", end), said},
		"more cached than asked": {asks(400, "", `{"end":"stop","usage":{"input":10,"cached":40,"output":0}}`),
			store.Usage{Turns: 1, Input: 10, Cached: 10, Cost: 10}},
		"not said":          {asks(401, "", `{"text":"hello"}`, `{"end":"stop"}`), store.Usage{Turns: 1, Sized: 1, Input: 101, Output: 2, Cost: 222}},
		"cut off":           {asks(400, "exit", `{"text":"12345678"}`, `{"call":{"arguments":"{}","id":"1","name":"ab"}}`), store.Usage{Turns: 1, Sized: 1, Input: 100, Output: 3, Cost: 230}},
		"cut off, long":     {asks(0, "exit", long...), store.Usage{Turns: 1, Sized: 1, Output: 6000, Cost: 60000}},
		"failed on the way": {asks(400, "exit", `{"text":"12345678"}`, `{"error":{"class":"transient_upstream","message":"x"}}`), store.Usage{Turns: 1, Sized: 1, Input: 100, Output: 2, Cost: 220}},
		"counted, then failed": {asks(400, "exit", `{"text":"12345678"}`, `{"error":{"class":"transient_upstream","message":"x"},"usage":{"cached":40,"input":90,"output":30}}`),
			store.Usage{Turns: 1, Input: 90, Cached: 40, Output: 30, Cost: 50*2 + 40 + 300}},
		"counted, then cut": {asks(400, "exit", `{"text":"12345678"}`, `{"error":{"class":"network_unavailable","message":"x"},"usage":{"input":90,"output":1}}`),
			store.Usage{Turns: 1, Sized: 1, Input: 90, Output: 2, Cost: 200}},
		"counted, and nothing said": {asks(400, "exit", `{"error":{"class":"transient_upstream","message":"x","status":529},"usage":{"input":90,"output":1}}`), store.Usage{Turns: 1, Input: 90, Output: 1, Cost: 190}},
		"refused":                   {asks(400, "exit", `{"error":{"class":"quota_exceeded","message":"x"}}`), store.Usage{Turns: 1}},
		"said too late":             {asks(400, "exit", `{"error":{"class":"provider_timeout","message":"x","status":504}}`), store.Usage{Turns: 1}},
		"not reached":               {asks(400, "exit", `{"error":{"class":"network_unavailable","message":"x"}}`), store.Usage{Turns: 1}},
		"quiet for too long":        {asks(400, "exit", `{"error":{"class":"provider_timeout","message":"x"}}`), store.Usage{Turns: 1, Sized: 1, Input: 100, Cost: 200}},
		"nothing":                   {asks(400, "exit"), store.Usage{Turns: 1, Sized: 1, Input: 100, Cost: 200}},
		"vectors":                   {asks(400, "", `{"vector":"AACAPw=="}`, `{"end":"stop","usage":{"input":7,"output":0}}`), store.Usage{Turns: 1, Input: 7, Cost: 14}},
		"vectors, not said":         {asks(400, "", `{"vector":"AACAPw=="}`, `{"end":"stop"}`), store.Usage{Turns: 1, Sized: 1, Input: 100, Cost: 200}},
		"denied by policy":          {asks(400, "deny"), store.Usage{}},
		"another tool":              {steps("ok"), store.Usage{}},
		"no such model":             {steps(turn.Tool + ` {"model":"none","bytes":400}`), store.Usage{}},
		"two, and one denied":       {append(asks(400, "", end), append(asks(400, "", end), asks(400, "deny")...)...), said.Less(store.Usage{}.Less(said))},
	} {
		if _, took := h.takes(Request{Steps: c.steps}); took != c.want {
			t.Errorf("%s: %+v, want %+v", name, took, c.want)
		}
	}
	for range 2 { // a provider says what it likes
		h.ended(h.start(Request{Steps: asks(400, "", `{"end":"stop","usage":{"input":9223372036854775807,"cached":-1,"output":9223372036854775807}}`)}))
	}
	if got := h.counts(alice); got.Input != store.MaxUsage || got.Output != store.MaxUsage || got.Cost != store.MaxUsage {
		t.Errorf("%+v", got)
	}
}

// TestUsageOfOwnOutput: a turn whose output has its own reader counts as any, of the session that it
// is for, and by the last of what it wrote; a crash changes nothing of whose it is.
func TestUsageOfOwnOutput(t *testing.T) {
	const end = `{"end":"stop","usage":{"input":7,"output":0}}`
	h := open(t, metered(Spending{SessionTokens: 300, DayTokens: 1000}))
	out := bytes.NewBufferString(end + "\n") // of before
	q := Request{User: alice, Attended: true, Stdout: out, Spends: h.sess}
	for name, c := range map[string]struct {
		steps []hub.Step
		want  store.Usage
	}{
		"said":      {asks(400, "", `{"vector":"AACAPw=="}`, end), store.Usage{Turns: 1, Input: 7, Cost: 14}},
		"said, two": {append(asks(400, "", end), asks(400, "", `{"end":"stop","usage":{"input":8,"output":0}}`)...), store.Usage{Turns: 2, Input: 15, Cost: 30}},
		"not said":  {asks(400, "", `{"vector":"AACAPw=="}`, `{"end":"stop"}`), store.Usage{Turns: 1, Sized: 1, Input: 100, Cost: 200}},
		"nothing":   {asks(400, "exit"), store.Usage{Turns: 1, Sized: 1, Input: 100, Cost: 200}},
		"refused":   {asks(400, "exit", `{"error":{"class":"rate_limited","message":"x"}}`), store.Usage{Turns: 1}},
	} {
		q.Steps = c.steps
		r, took := h.takes(q)
		if took != c.want || r.Session == h.sess || h.counts(r.Session) != (store.Usage{}) {
			t.Errorf("%s: %+v, want %+v; its own session has %+v", name, took, c.want, h.counts(r.Session))
		}
	}
	for len(h.g.in) > 0 {
		<-h.g.in
	}
	q.Steps = asks(800, "hold")
	h.start(q)
	<-h.g.in
	was := h.counts(h.sess)
	h.dies() // before its program ran
	h.reopen(metered(Spending{SessionTokens: 300, DayTokens: 1000}))
	if got, want := h.counts(h.sess), was.Less(store.Usage{Turns: 1, Sized: 1, Input: 200, Cost: 400}); got != want || h.counts(alice) != want {
		t.Errorf("after a crash %+v, want %+v", got, want)
	}
	refused := func(says string) {
		t.Helper()
		if r := h.ended(h.start(q)); r.Reason != ReasonTokens || !strings.Contains(r.Steps[0].Error, says) {
			t.Errorf("%s: %+v", r.Reason, r.Steps)
		}
	}
	q.Steps = asks(800, "", `{"end":"stop"}`)
	h.ended(h.start(q))
	refused("the session " + h.sess + " has taken 422 tokens, and agent.session_tokens is 300")
	q.Steps, q.Spends = asks(4000, "", `{"end":"stop"}`), h.session()
	h.ended(h.start(q))
	q.Spends = h.session()
	refused("agent.day_tokens is 1000")
}

// TestUsageUnderWay: a turn counts by its question while it's under way, and a cancelled one by its
// size.
func TestUsageUnderWay(t *testing.T) {
	h := open(t, metered(Spending{}))
	id := h.start(Request{Steps: asks(400, "hold", `{"text":"12345678"}`)})
	h.until(id, hub.EventStepStarted)
	if got, want := h.counts(alice), (store.Usage{Turns: 1, Sized: 1, Input: 100, Cost: 200}); got != want {
		t.Errorf("under way: %+v, want %+v", got, want)
	}
	for <-h.g.in != turn.Tool {
	}
	if err := h.Cancel(t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
		t.Fatal(err)
	}
	h.ended(id)
	if got := h.counts(alice); got.Turns != 1 || got.Sized != 1 || got.Input != 100 {
		t.Errorf("cancelled: %+v", got)
	}
}

// TestUsageRestart: a turn that was under way when the process died stays counted by its question
// if its program may have run.
func TestUsageRestart(t *testing.T) {
	for _, ran := range []bool{false, true} {
		h := open(t, metered(Spending{}))
		h.ended(h.start(Request{Steps: asks(40, "", `{"end":"stop","usage":{"input":5,"output":1}}`)}))
		<-h.g.in
		id := h.start(Request{Steps: asks(400, "hold")})
		<-h.g.in
		h.dies()
		want := store.Usage{Turns: 1, Input: 5, Output: 1, Cost: 20}
		if ran {
			h.outcomeUnknown(id, "a.example:443")
			want = store.Usage{Turns: 2, Sized: 1, Input: 105, Output: 1, Cost: 220}
		}
		h.reopen(metered(Spending{}))
		h.ended(id)
		for _, whose := range []string{alice, h.sess} {
			if got := h.counts(whose); got != want {
				t.Errorf("it ran %v: of %s %+v, want %+v", ran, whose, got, want)
			}
		}
		h.stop()
	}
}

// TestSpending: with as much taken as a session may, or a principal in a day, no further turn of
// theirs is made, and the run ends by name. Others' are.
func TestSpending(t *testing.T) {
	const bob = "uid:1001"
	one := asks(40, "", `{"end":"stop","usage":{"input":90,"output":10}}`) // costs 280
	two := append(append([]hub.Step{}, one...), one...)
	for _, c := range []struct {
		s      Spending
		reason string
		says   string
		day    bool
	}{
		{Spending{SessionTokens: 200}, ReasonTokens, "has taken 200 tokens, and agent.session_tokens is 200", false},
		{Spending{SessionCost: 500}, ReasonCost, "agent.session_cost is", false},
		{Spending{DayTokens: 200}, ReasonTokens, "the day of uid:1000 has taken 200 tokens, and agent.day_tokens is 200", true},
		{Spending{DayCost: 500, SessionTokens: 1000}, ReasonCost, "agent.day_cost is", true},
	} {
		h := open(t, metered(c.s))
		h.ended(h.start(Request{Steps: one}))
		r := h.ended(h.start(Request{Steps: append(append([]hub.Step{}, one...), two...)}))
		if r.State != hub.RunFailed || r.Reason != c.reason {
			t.Errorf("%+v: %s %s", c.s, r.State, r.Reason)
		}
		s := r.Steps[1]
		if s.State != hub.StepFailed || s.Reason != c.reason || s.CallID != "" || s.LogIndex != nil || !strings.Contains(s.Error, c.says) || s.Hint == "" ||
			s.Denial == nil || s.Denial.Layer != hub.LayerBudget || r.Steps[2].State != hub.StepSkipped {
			t.Errorf("%+v: %+v", c.s, r.Steps)
		}
		if n, took := h.g.count(), h.counts(alice); n != 2 || took.Turns != 2 {
			t.Errorf("%+v: %d calls, %+v", c.s, n, took)
		}
		if r := h.ended(h.start(Request{Steps: steps("ok")})); r.State != hub.RunDone {
			t.Errorf("%+v: what is no turn: %s %s", c.s, r.State, r.Reason)
		}
		if r := h.ended(h.start(Request{User: alice, Steps: one})); (r.Reason == c.reason) != c.day {
			t.Errorf("%+v: in another session: %s %s", c.s, r.State, r.Reason)
		}
		if r := h.ended(h.start(Request{User: bob, Steps: one})); r.State != hub.RunDone {
			t.Errorf("%+v: another principal: %s %s", c.s, r.State, r.Reason)
		}
		h.stop()
		h.reopen(metered(c.s))
		if r := h.ended(h.start(Request{Steps: one})); r.Reason != c.reason {
			t.Errorf("%+v: after a restart: %s %s", c.s, r.State, r.Reason)
		}
	}
}

// TestSpendingAtOnce: turns that begin at once see each other. Beyond the bound there are the
// answers of those under way alone.
func TestSpendingAtOnce(t *testing.T) {
	h := open(t, func(c *Config) {
		metered(Spending{DayTokens: 300})(c)
		c.Bounds = session.Bounds{Active: 20, Share: 20, Wide: 20}
	})
	var ids []string
	for range 8 {
		ids = append(ids, h.start(Request{User: alice, Steps: asks(400, "hold", `{"end":"stop","usage":{"input":100,"output":50}}`)}))
	}
	refused := 0
	for _, id := range ids { // those that are under way wait
		h.until(id, hub.EventStepStarted)
	}
	for range 3 {
		<-h.g.in
		h.g.free <- struct{}{}
	}
	for _, id := range ids {
		if r := h.ended(id); r.Reason == ReasonTokens {
			refused++
		}
	}
	if took := h.counts(alice); refused != 5 || took.Turns != 3 || took.Input+took.Output != 450 || took.Sized != 0 {
		t.Errorf("%d of 8 are refused, and the rest took %+v", refused, took)
	}
	if len(h.g.in) != 0 {
		t.Errorf("%d more calls were made", len(h.g.in))
	}
}

// TestDay: a turn is its beginning's day's, and a day's bound has nothing of the day before.
func TestDay(t *testing.T) {
	h := open(t, metered(Spending{DayTokens: 50}))
	today := store.DayOf(time.Now())
	err := h.st.Update(t.Context(), func(tx *store.Tx) error {
		return tx.CountUsage(h.sess, alice, store.Usage{Day: today - 1, Model: "m", Turns: 1, Input: 1000})
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := h.ended(h.start(Request{Steps: asks(400, "")})); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	if r := h.ended(h.start(Request{Steps: asks(400, "")})); r.Reason != ReasonTokens && store.DayOf(time.Now()) == today {
		t.Errorf("%s %s", r.State, r.Reason)
	}
}

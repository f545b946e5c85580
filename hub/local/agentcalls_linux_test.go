package local

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/call"
	"palyra/hub"
	"palyra/internal/fault"
)

// weather is a function of the caller.
func weather() []hub.AgentFunction {
	return []hub.AgentFunction{{Name: "get_weather", Description: "The weather.", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)}}
}

// TestAgentFunctions: a run ends with calls of the caller's functions, behind palyrad's own of the
// same answer. A run with their results goes on, and what they say isn't trusted.
func TestAgentFunctions(t *testing.T) {
	h := newHouse(t, withScript(t,
		calls("I ask.", `get_weather {"city":"Prague"}`, `palyra_echo {"text":"mine"}`, `get_weather []`),
		calls("", `palyra_echo {"text":"{{last}}"}`),
		says("It rains."),
		says("As I said."),
	))
	op := h.member(2001, access.Operator)
	session := h.session(op)
	start := func(a hub.Agent) (hub.Run, error) {
		r, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: session, Agent: &a})
		if err == nil {
			r = h.ended(op, r.ID)
		}
		return r, err
	}
	first, err := start(hub.Agent{Prompt: "what's the weather?", Instructions: "Be brief.", MaxTokens: 100, Functions: weather()})
	if err != nil || first.State != hub.RunDone || len(first.Steps) != 2 || first.Steps[1].Tool != "palyra.echo" || len(first.Answer.Calls) != 1 {
		t.Fatalf("%s %s, %d steps, %+v, %v", first.State, first.Reason, len(first.Steps), first.Answer, err)
	}
	c := first.Answer.Calls[0]
	if c.Name != "get_weather" || c.Arguments != `{"city":"Prague"}` || c.ID == "" || first.Answer.Text != "I ask." {
		t.Errorf("%+v", first.Answer)
	}
	var started hub.AgentStarted
	if json.Unmarshal(h.until(op, first.ID, hub.EventAgentStarted).Data, &started) != nil || !slices.Contains(started.Offered, "get_weather") {
		t.Errorf("%+v", started)
	}
	if s, err := hub.GetSession.Do(t.Context(), h, op, session); err != nil || len(s.Inputs.Outside()) > 0 {
		t.Errorf("before a result came, the label is %+v, %v", s.Inputs, err)
	}
	rain := []hub.AgentResult{{ID: c.ID, Text: "rain, says the server"}}
	for reason, bad := range map[string]hub.Agent{
		"another call":          {Results: []hub.AgentResult{{ID: "call_9", Text: "x"}}, Functions: weather()},
		"none of the session":   {Prompt: "go on", After: "run_01JZZZZZZZZZZZZZZZZZZZZZZZ"},
		"neither":               {Functions: weather()},
		"twice":                 {Results: append(rain[:1:1], rain...)},
		"a name of ours":        {Prompt: "?", Functions: []hub.AgentFunction{{Name: "palyra_echo", Schema: weather()[0].Schema}}},
		"no name":               {Prompt: "?", Functions: []hub.AgentFunction{{Name: "get weather", Schema: weather()[0].Schema}}},
		"twice the same":        {Prompt: "?", Functions: append(weather(), weather()...)},
		"no schema":             {Prompt: "?", Functions: []hub.AgentFunction{{Name: "get_weather"}}},
		"too long instructions": {Prompt: "?", Instructions: strings.Repeat("x", hub.MaxInstructions+1)},
		"too many":              {Prompt: "?", Functions: slices.Repeat(weather(), hub.MaxFunctions+1)},
	} {
		if r, err := start(bad); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %+v, %v", reason, r.Answer, err)
		}
	}
	second, err := start(hub.Agent{Results: rain, Functions: weather()})
	if err != nil || second.State != hub.RunDone || second.Answer.Text != "It rains." || len(second.Steps) != 3 || !strings.Contains(second.Steps[1].Stdout.Text, "rain, says the server") {
		t.Fatalf("%s %s, %+v, %v", second.State, second.Reason, second.Steps, err)
	}
	if s, err := hub.GetSession.Do(t.Context(), h, op, session); err != nil || !s.Inputs.Has(call.OriginTool) {
		t.Errorf("with a result, the label is %+v, %v", s.Inputs, err)
	}
	if _, err := start(hub.Agent{Results: rain}); fault.ReasonOf(err) != "not_found" {
		t.Errorf("a result of a call that was answered: %v", err)
	}
	// The call can be answered once more where the run that has it is named.
	again, err := start(hub.Agent{Results: rain, After: first.ID, Prompt: "and tomorrow?"})
	if err != nil || again.State != hub.RunDone || again.Answer.Text != "It rains." {
		t.Errorf("%s %s, %+v, %v", again.State, again.Reason, again.Answer, err)
	}
}

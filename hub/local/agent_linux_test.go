package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/agentloop"
	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/call"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/model"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
)

// withScript declares a scripted model, which answers with these turns.
func withScript(t testing.TB, turns ...turn.ScriptTurn) func(*Config, *kernel.Config) {
	t.Helper()
	return withWindow(t, 32_000, turns...)
}

// withWindow is withScript for a model with a window of so many tokens.
func withWindow(t testing.TB, window int64, turns ...turn.ScriptTurn) func(*Config, *kernel.Config) {
	t.Helper()
	b, err := canon.Marshal(turn.Script{Turns: turns})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return func(lc *Config, kc *kernel.Config) {
		lc.Workspaces = map[string]string{"src": "/work"}
		lc.Models, err = model.New(model.Config{Tools: kc.Tools, Fetch: filepath.Join(bin(t), "palyra-fetch"),
			Models: map[string]config.Model{"tests": {Provider: turn.Scripted, Script: path, Context: window}}})
		if err != nil {
			t.Fatal(err)
		}
		kc.Tools = lc.Models
	}
}

func says(text string) turn.ScriptTurn { return turn.ScriptTurn{Text: text} }

func calls(text string, c ...string) turn.ScriptTurn {
	s := turn.ScriptTurn{Text: text}
	for _, one := range c {
		name, input, _ := strings.Cut(one, " ")
		s.Calls = append(s.Calls, turn.ScriptCall{Name: name, Input: json.RawMessage(input)})
	}
	return s
}

// agent has an agent work in a session, and returns the run when it has ended.
func (h *house) agent(c hub.Caller, session, prompt string) hub.Run {
	h.t.Helper()
	r, err := hub.StartRun.Do(h.t.Context(), h, c, hub.NewRun{Session: session, Agent: &hub.Agent{Prompt: prompt}})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.ended(c, r.ID)
}

// TestAgentWaited: a run that waited for another of its session is told what that one said.
func TestAgentWaited(t *testing.T) {
	h := newHouse(t, withScript(t, calls("I wait.", sleeper), says("It's over."), says("I go on.")))
	op := h.member(2001, access.Operator)
	session := h.session(op)
	first := h.under(op, session, "wait")
	next, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: session, Agent: &hub.Agent{Prompt: "go on"}})
	if err != nil || next.State != hub.RunAccepted && next.State != hub.RunPending {
		t.Fatalf("%s, %v", next.State, err)
	}
	if _, err := hub.SendInput.Do(t.Context(), h, op, hub.RunInput{Run: first, Said: hub.AgentWord{Mode: hub.InputInterrupt, Text: "stop"}}); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(op, first); r.Answer == nil || r.Answer.Text != "It's over." {
		t.Fatalf("%s %s, %+v", r.State, r.Reason, r.Answer)
	}
	if r := h.ended(op, next.ID); r.Answer == nil || r.Answer.Text != "I go on." || r.Started == nil {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Answer)
	}
}

// TestAgent: a model's turns and its calls are steps in cells, each with a receipt. The next run of
// the session is told what was said, and a call that can't be one is the model's to mend.
func TestAgent(t *testing.T) {
	h := newHouse(t, withScript(t,
		calls("I look.", `fs_list_dir {"workspace":"src"}`, `nothing {}`),
		calls("I say it.", `palyra_echo {"text":"{{last}}"}`),
		says("There is one file."),
		says("I said that there is one file."),
	))
	if err := os.WriteFile(filepath.Join(h.work(), "notes.txt"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	op := h.member(2001, access.Operator)
	session := h.session(op)
	r := h.agent(op, session, "what is there?")
	if r.State != hub.RunDone || r.Answer == nil || r.Answer.Text != "There is one file." || r.Answer.Turns != 3 || len(r.Steps) != 5 {
		t.Fatalf("%s %s, %+v, %d steps", r.State, r.Reason, r.Answer, len(r.Steps))
	}
	want := []string{turn.Tool, "fs.list_dir", turn.Tool, "palyra.echo", turn.Tool}
	for i, s := range r.Steps {
		if s.Tool != want[i] || s.Outcome != "executed" || s.Exit != 0 || s.LogIndex == nil {
			t.Errorf("step %d: %+v", i, s)
			continue
		}
		if _, err := hub.GetReceipt.Do(t.Context(), h, h.owner, *s.LogIndex); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if s := r.Steps[1]; !strings.Contains(s.Stdout.Text, "notes.txt") {
		t.Errorf("%q", s.Stdout.Text)
	}
	if s := r.Steps[3]; !strings.Contains(s.Stdout.Text, "none of those that were offered") { // the last result
		t.Errorf("%q", s.Stdout.Text)
	}
	var started hub.AgentStarted
	if json.Unmarshal(h.until(op, r.ID, hub.EventAgentStarted).Data, &started) != nil || started.Model != "tests" || !slices.Contains(started.Offered, "fs_list_dir") ||
		slices.Contains(started.Offered, "model_turn") || !strings.HasPrefix(started.Tools, "toolcat_") {
		t.Errorf("%+v", started)
	}
	if s, err := hub.GetSession.Do(t.Context(), h, op, session); err != nil || !s.Inputs.Has(call.OriginPerson, call.OriginModel) || len(s.Inputs.Outside()) > 0 {
		t.Errorf("the session's label is %+v, %v", s.Inputs, err)
	}
	// A script's turn is the number of answers that a question has: the session's are there.
	if r := h.agent(op, session, "what did you say?"); r.Answer == nil || r.Answer.Text != "I said that there is one file." {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Answer)
	}
	// Nothing stays at hand, and nobody else's session is told.
	if _, err := hub.StartRun.Do(t.Context(), h, h.member(2002, access.Operator), hub.NewRun{Session: session, Agent: &hub.Agent{Prompt: "?"}}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("in another's session: %v", err)
	}
	if r := h.agent(op, h.session(op), "from the beginning"); r.Answer == nil || r.Answer.Text != "There is one file." {
		t.Errorf("in a new session: %+v", r.Answer)
	}
}

// TestAgentDenied: a model's call is decided as any. A no is told to it, and it goes on.
func TestAgentDenied(t *testing.T) {
	h := newHouse(t, withScript(t,
		calls("", `process_run {"argv":["/bin/sh","-c","id"]}`),
		calls("", `palyra_echo {"text":"{{last}}"}`),
		says("It isn't permitted."),
	))
	op := h.member(2001, access.Operator)
	r := h.agent(op, h.session(op), "who am I?")
	if r.State != hub.RunDone || len(r.Steps) != 5 {
		t.Fatalf("%s %s, %d steps", r.State, r.Reason, len(r.Steps))
	}
	if s := r.Steps[1]; s.Outcome != "denied" || s.Denial == nil || s.LogIndex == nil {
		t.Errorf("%+v", s)
	}
	if s := r.Steps[3]; !strings.Contains(s.Stdout.Text, "Nothing ran") {
		t.Errorf("the model is told %q", s.Stdout.Text)
	}
}

// TestAgentBudget: a run ends by name when its turns have taken what they may, and says what that
// was.
func TestAgentBudget(t *testing.T) {
	step := calls("", `palyra_echo {"text":"x"}`)
	step.Usage = &turn.Usage{Input: 1000, Output: 100}
	for reason, bounds := range map[string]Agent{agentloop.ReasonTokens: {Tokens: 1200}, agentloop.ReasonCost: {Cost: 1}} {
		script := withScript(t, step, step, says("never"))
		h := newHouse(t, func(lc *Config, kc *kernel.Config) {
			script(lc, kc)
			one, err := lc.Models.Model("tests")
			if err != nil {
				t.Fatal(err)
			}
			one.Input, one.Output = 400, 1000 // half a unit a turn
			if lc.Models, err = model.New(model.Config{Tools: kc.Tools, Fetch: filepath.Join(bin(t), "palyra-fetch"), Models: map[string]config.Model{"tests": one}}); err != nil {
				t.Fatal(err)
			}
			kc.Tools, lc.Agent = lc.Models, bounds
		})
		op := h.member(2001, access.Operator)
		r := h.agent(op, h.session(op), "go on")
		if r.State != hub.RunFailed || r.Reason != reason || len(r.Steps) != 4 || r.Answer == nil || r.Answer.Usage != (hub.AgentUsage{Input: 2000, Output: 200, Cost: 1_000_000}) {
			t.Errorf("%s %s, %d steps, %+v", r.State, r.Reason, len(r.Steps), r.Answer)
		}
	}
}

// TestAgentFallback: where the default model fails, the next is asked, with what was said so far; a
// model that was named is asked alone.
func TestAgentFallback(t *testing.T) {
	dir := t.TempDir()
	script := func(name string, turns ...turn.ScriptTurn) string {
		b, err := canon.Marshal(turn.Script{Turns: turns})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	first := script("first", calls("I look.", `palyra_echo {"text":"x"}`), turn.ScriptTurn{Error: &turn.Error{Class: turn.Quota, Message: "used up"}})
	second := script("second", says("not asked"), says("It says x."))
	h := newHouse(t, func(lc *Config, kc *kernel.Config) {
		var err error
		lc.Models, err = model.New(model.Config{Tools: kc.Tools, Fetch: filepath.Join(bin(t), "palyra-fetch"), Default: "first",
			Models: map[string]config.Model{"first": {Provider: turn.Scripted, Script: first, Fallback: "second"}, "second": {Provider: turn.Scripted, Script: second}}})
		if err != nil {
			t.Fatal(err)
		}
		kc.Tools = lc.Models
	})
	op := h.member(2001, access.Operator)
	r := h.agent(op, h.session(op), "look")
	if r.State != hub.RunDone || r.Answer == nil || r.Answer.Text != "It says x." || len(r.Steps) != 4 || !strings.Contains(string(r.Steps[3].Input), `"second"`) {
		t.Errorf("%s %s, %+v, %d steps", r.State, r.Reason, r.Answer, len(r.Steps))
	}
	made, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: h.session(op), Agent: &hub.Agent{Prompt: "look", Model: "first"}})
	if err != nil {
		t.Fatal(err)
	}
	if r := h.ended(op, made.ID); r.State != hub.RunFailed || r.Reason != agentloop.ReasonProvider || len(r.Steps) != 3 {
		t.Errorf("by its name: %s %s, %d steps", r.State, r.Reason, len(r.Steps))
	}
}

// TestAgentPermissions: a token's scopes bound what a model is offered, and who has no model has no
// agents.
func TestAgentPermissions(t *testing.T) {
	h := newHouse(t, withScript(t, calls("", `artifact_read {"digest":"`+canon.Sum(nil).String()+`"}`), says("no")))
	op := h.member(2001, access.Operator)
	weak, _ := h.token(op, "run.start", "session.read")
	r := h.agent(weak, h.session(op), "read it")
	if len(r.Steps) != 2 {
		t.Errorf("%d steps, the second is of %q", len(r.Steps), r.Steps[1].Tool)
	}
	none := newHouse(t, nil)
	if _, err := hub.StartRun.Do(t.Context(), none, none.owner, hub.NewRun{Session: none.session(none.owner), Agent: &hub.Agent{Prompt: "?"}}); fault.ReasonOf(err) != "not_found" {
		t.Errorf("without models: %v", err)
	}
	if _, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: h.session(op), Agent: &hub.Agent{Prompt: "?", Model: "another"}}); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another model: %v", err)
	}
}

// TestAgentSurvives: a run that a restart finds under way goes on: the turns that were answered
// aren't asked again.
func TestAgentSurvives(t *testing.T) {
	script := withScript(t, calls("", `process_run {"argv":["/bin/sleep","100"],"timeout_ms":60000}`), says("It was ended."))
	h := newHouse(t, script)
	r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: h.session(h.owner), Agent: &hub.Agent{Prompt: "wait"}})
	if err != nil {
		t.Fatal(err)
	}
	h.begun(h.owner, r.ID, 2)
	h.stop()
	h.reopen(script)
	r = h.ended(h.owner, r.ID)
	if r.State != hub.RunDone || len(r.Steps) != 3 || r.Answer == nil || r.Answer.Text != "It was ended." {
		t.Fatalf("%s %s, %d steps, %+v", r.State, r.Reason, len(r.Steps), r.Answer)
	}
	if s := r.Steps[1]; s.Outcome == "executed" && s.Reason == "" {
		t.Errorf("%+v", s)
	}
}

// TestAgentDeferred: a model that failed three times in a row is left alone: another run asks the
// next at once, and asks it still when it goes on after a restart.
func TestAgentDeferred(t *testing.T) {
	dir := t.TempDir()
	files := map[string][]turn.ScriptTurn{"first": {{Error: &turn.Error{Class: turn.Transient, Message: "busy"}}}, "second": {calls("", `palyra_sleep {"ms":2000}`), says("It's done.")}}
	models := make(map[string]config.Model)
	for name, turns := range files {
		b, err := canon.Marshal(turn.Script{Turns: turns})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		models[name] = config.Model{Provider: turn.Scripted, Script: filepath.Join(dir, name)}
	}
	first := models["first"]
	first.Fallback = "second"
	models["first"] = first
	set := func(lc *Config, kc *kernel.Config) {
		var err error
		if lc.Models, err = model.New(model.Config{Tools: kc.Tools, Fetch: filepath.Join(bin(t), "palyra-fetch"), Default: "first", Models: models}); err != nil {
			t.Fatal(err)
		}
		kc.Tools = lc.Models
	}
	h := newHouse(t, set)
	op := h.member(2001, access.Operator)
	asked := func(r hub.Run) (names []string) {
		for _, s := range r.Steps {
			var in struct{ Model string }
			if s.Tool == turn.Tool && json.Unmarshal(s.Input, &in) == nil {
				names = append(names, in.Model)
			}
		}
		return names
	}
	if r := h.agent(op, h.session(op), "try"); r.State != hub.RunDone || !slices.Equal(asked(r), []string{"first", "first", "first", "second", "second"}) {
		t.Errorf("%s %s, asked %q", r.State, r.Reason, asked(r))
	}
	p, err := hub.ListModels.Do(t.Context(), h, op, hub.None{})
	if err != nil || p.Items[0].Reason != agentloop.ReasonProvider || p.Items[1].Reason != "" {
		t.Errorf("%+v, %v", p.Items, err)
	}
	id := h.under(op, h.session(op), "again")
	h.until(op, id, hub.EventAgentDeferred)
	h.stop()
	h.reopen(set)
	if r := h.ended(op, id); r.State != hub.RunDone || !slices.Equal(asked(r), []string{"second", "second"}) {
		t.Errorf("%s %s, asked %q", r.State, r.Reason, asked(r))
	}
}

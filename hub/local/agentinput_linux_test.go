package local

import (
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// sleeper is a call that lasts until it's ended.
const sleeper = `process_run {"argv":["/bin/sleep","100"],"timeout_ms":60000}`

// under starts an agent and waits until its second step is under way.
func (h *house) under(c hub.Caller, session, prompt string) string {
	h.t.Helper()
	r, err := hub.StartRun.Do(h.t.Context(), h, c, hub.NewRun{Session: session, Agent: &hub.Agent{Prompt: prompt}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.begun(c, r.ID, 2)
	return r.ID
}

// TestAgentInput: the user of an agent ends its call and says something else, the calls behind that
// one aren't made, and a restart in the middle changes nothing. What follows up comes last.
func TestAgentInput(t *testing.T) {
	script := withScript(t,
		calls("I wait.", sleeper, `palyra_echo {"text":"never"}`),
		calls("", `palyra_echo {"text":"{{last}}"}`),
		says("Stopped."),
		says("Thanked."),
	)
	h := newHouse(t, script)
	op, other := h.member(2001, access.Operator), h.member(2002, access.Operator)
	for _, restart := range []bool{false, true} {
		session := h.session(op)
		id := h.under(op, session, "wait")
		say := func(c hub.Caller, mode, text string) (hub.RunInputTaken, error) {
			return hub.SendInput.Do(t.Context(), h, c, hub.RunInput{Run: id, Said: hub.AgentWord{Mode: mode, Text: text}})
		}
		if _, err := say(other, "", "stop"); fault.KindOf(err) != fault.NotFound {
			t.Errorf("another principal: %v", err)
		}
		if _, err := say(h.owner, "", "stop"); fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("an owner: %v", err)
		}
		if _, err := say(op, "shout", "stop"); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("another mode: %v", err)
		}
		later, err := say(op, hub.InputFollowUp, "thank you")
		if err != nil {
			t.Fatal(err)
		}
		mode := hub.InputInterrupt
		if restart {
			mode = "" // it's told when the run goes on
		}
		now, err := say(op, mode, "stop it")
		if err != nil {
			t.Fatal(err)
		}
		if restart {
			h.stop()
			h.reopen(script)
		}
		r := h.ended(op, id)
		if r.State != hub.RunDone || len(r.Steps) != 6 || r.Answer == nil || r.Answer.Text != "Thanked." {
			t.Fatalf("%s %s, %d steps, %+v", r.State, r.Reason, len(r.Steps), r.Answer)
		}
		if s := r.Steps[1]; s.Outcome == "executed" || !restart && s.Reason != "steered" {
			t.Errorf("the call under way: %+v", s)
		}
		if s := r.Steps[3]; s.Stdout.Text == "" || s.Tool != "palyra.echo" || s.Stdout.Text == "never" {
			t.Errorf("the next call: %+v", s)
		}
		for i, want := range map[int]uint64{2: now.Seq, 5: later.Seq} {
			if got := r.Steps[i].Inputs; len(got) != 1 || got[0] != want {
				t.Errorf("before step %d the model was told %d, want %d", i, got, want)
			}
		}
		if _, err := say(op, "", "more"); fault.ReasonOf(err) != "run_ended" {
			t.Errorf("after its end: %v", err)
		}
		// A later run of the session is told the same: four answers, behind which the script ends.
		if r := h.agent(op, session, "and now?"); len(r.Steps) != 1 || !strings.Contains(r.Steps[0].Stdout.Text, "script") {
			t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
		}
	}
}

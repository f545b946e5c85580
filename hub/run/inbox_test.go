package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// listening is an Agents whose agents make the steps of their prompt, and one more for each input
// that they're told.
type listening struct{ scripted }

func (l listening) Source(a Agent) Source {
	return &hearing{playing{steps: slices.Clone(l.steps[a.Prompt])}, a.Inbox}
}

type hearing struct {
	playing
	inbox *Inbox
}

func (h *hearing) Next(ctx context.Context, results []hub.StepResult) (hub.Step, bool, error) {
	for len(h.steps) < len(results) { // of an earlier process
		h.steps = append(h.steps, steps("ok")...)
	}
	all := len(results) == len(h.steps)
	if _, ok := h.inbox.Take(all); ok {
		h.steps = append(h.steps[:len(results):len(results)], steps("ok")...)
	} else if all && !h.inbox.Close() {
		return h.Next(ctx, results)
	}
	return h.playing.Next(ctx, results)
}

func withListening(c *Config) {
	withAgents(c)
	c.Agents = listening{c.Agents.(scripted)}
}

// say sends an input to a run.
func (h *house) say(id, mode, text string) (uint64, error) {
	return h.Input(h.t.Context(), id, hub.AgentInput{Mode: mode, Text: text})
}

// TestInputs: what is said to an agent is on the tape, and the step that it's told before names it.
// An interrupt ends the step under way, and what follows up waits until there is nothing else.
func TestInputs(t *testing.T) {
	h := open(t, withListening)
	id := h.start(agent("hold"))
	<-h.g.in // ok
	<-h.g.in // hold
	later, err := h.say(id, hub.InputFollowUp, "later")
	if err != nil {
		t.Fatal(err)
	}
	now, err := h.say(id, hub.InputInterrupt, "now")
	if err != nil {
		t.Fatal(err)
	}
	r := h.ended(id)
	if r.State != hub.RunDone || len(r.Steps) != 4 || r.Steps[1].Reason != ReasonSteered || !slices.Equal(r.Steps[2].Inputs, []uint64{now}) || !slices.Equal(r.Steps[3].Inputs, []uint64{later}) {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	}
	if r.Answer == nil {
		t.Error("no answer")
	}
	for _, seq := range []uint64{later, now} {
		if in, err := ReadInput(t.Context(), h.st, id, seq); err != nil || in.Text != map[uint64]string{later: "later", now: "now"}[seq] {
			t.Errorf("%+v, %v", in, err)
		}
	}
	if _, err := ReadInput(t.Context(), h.st, id, now+1); fault.KindOf(err) != fault.Integrity {
		t.Errorf("another event: %v", err)
	}
	if _, err := h.say(id, hub.InputSteer, "too late"); fault.ReasonOf(err) != "run_ended" {
		t.Errorf("after its end: %v", err)
	}
}

// TestInputsRefused: at most eight wait, each is bounded text, and a list of steps takes none.
func TestInputsRefused(t *testing.T) {
	h := open(t, withListening)
	id := h.start(agent("hold"))
	<-h.g.in                                     // ok
	<-h.g.in                                     // hold
	list := h.start(Request{Steps: steps("ok")}) // waits for its session
	for i := range maxWaiting {
		if _, err := h.say(id, hub.InputFollowUp, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []struct{ run, text, reason string }{
		{id, "one more", "queue_full"}, {id, " ", "invalid_input"}, {id, "\xff", "invalid_input"}, {id, strings.Repeat("x", hub.MaxInput+1), "invalid_input"},
		{list, "a", "invalid_input"}, {"run_none", "a", "run_ended"},
	} {
		if _, err := h.say(bad.run, hub.InputSteer, bad.text); fault.ReasonOf(err) != bad.reason {
			t.Errorf("%.10q to %s: %v, want %s", bad.text, bad.run, err, bad.reason)
		}
	}
	h.DenyNew(true)
	if _, err := h.say(id, hub.InputSteer, "a"); fault.ReasonOf(err) != "stopped" {
		t.Errorf("during a stop: %v", err)
	}
	for _, id := range []string{list, id} {
		if err := h.Cancel(t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
			t.Error(err)
		}
	}
}

// TestInputsSurvive: what was acknowledged and not told is told when the run goes on.
func TestInputsSurvive(t *testing.T) {
	h := open(t, withListening)
	id := h.start(agent("hold"))
	<-h.g.in // ok
	<-h.g.in // hold
	later, err := h.say(id, hub.InputFollowUp, "later")
	if err != nil {
		t.Fatal(err)
	}
	steer, err := h.say(id, hub.InputSteer, "now")
	if err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.reopen(withListening)
	r := h.ended(id)
	if r.State != hub.RunDone || len(r.Steps) != 4 || !slices.Equal(r.Steps[2].Inputs, []uint64{steer}) || !slices.Equal(r.Steps[3].Inputs, []uint64{later}) {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	}
}

package local

import (
	"maps"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestMetadata: the principal of a run changes its metadata while it works and when it has ended;
// others don't, and the run goes on as it was begun.
func TestMetadata(t *testing.T) {
	h := newHouse(t, withScript(t, calls("I wait.", sleeper), says("Stopped.")))
	op, other := h.member(2001, access.Operator), h.member(2002, access.Operator)
	id := h.under(op, h.session(op), "wait")
	set := func(c hub.Caller, m map[string]string) error {
		_, err := hub.SetMetadata.Do(t.Context(), h, c, hub.RunMetadata{Run: id, Metadata: hub.Metadata{Metadata: m}})
		return err
	}
	has := func(want map[string]string) hub.Run {
		t.Helper()
		r, err := hub.GetRun.Do(t.Context(), h, op, id)
		if err != nil || !maps.Equal(r.Metadata, want) {
			t.Errorf("%v: %v, want %v", err, r.Metadata, want)
		}
		return r
	}
	note := map[string]string{"ticket": "42"}
	if err := set(op, note); err != nil {
		t.Fatal(err)
	}
	has(note)
	if err := set(other, nil); fault.KindOf(err) != fault.NotFound {
		t.Errorf("another principal: %v", err)
	}
	if err := set(h.owner, nil); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("an owner: %v", err)
	}
	if _, err := hub.SendInput.Do(t.Context(), h, op, hub.RunInput{Run: id, Said: hub.AgentWord{Mode: hub.InputInterrupt, Text: "stop"}}); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(op, id); r.State != hub.RunDone || r.Agent.Prompt != "wait" || r.Answer.Text != "Stopped." {
		t.Errorf("%+v", r)
	}
	has(note)
	if err := set(op, nil); err != nil {
		t.Fatal(err)
	}
	has(nil)
}

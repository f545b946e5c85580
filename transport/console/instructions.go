package console

import (
	"slices"

	"palyra/hub"
	"palyra/internal/signal"
)

// instructions shows what a workspace tells agents. Calls read it, so a click makes them.
func (t *turn) instructions() error {
	i, err := attend(t, hub.InspectInstructions, t.v.Form.Get("workspace"))
	if err != nil {
		return err
	}
	return t.still("instructions", "Project instructions", struct {
		hub.Instructions
		Hides bool // it has text that people don't see
	}{i, slices.ContainsFunc(i.Signals, func(s hub.Signal) bool {
		f := signal.Finding{Code: s.Code}
		return f.Category() == signal.Hidden
	})})
}

// acceptInstructions accepts those of the digest that the visitor's page had.
func (t *turn) acceptInstructions() error {
	f := t.v.Form
	if _, err := attend(t, hub.AcceptInstructions, hub.InstructionsAcceptance{Workspace: f.Get("workspace"),
		InstructionsAcceptanceBody: hub.InstructionsAcceptanceBody{Digest: f.Get("digest"), Anyway: f.Has("anyway")}}); err != nil {
		return err
	}
	return t.see("agent", "accepted")
}

func (t *turn) revokeInstructions() error {
	if _, err := ask(t, hub.RevokeInstructions, t.v.Form.Get("workspace")); err != nil {
		return err
	}
	return t.see("agent", "disowned")
}

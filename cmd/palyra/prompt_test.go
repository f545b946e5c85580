package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"palyra/authz/approval"
	"palyra/internal/canon"
)

func TestNoTerminalIsNoApproval(t *testing.T) {
	a := &ttyApprover{path: filepath.Join(t.TempDir(), "none"), name: func() string { return "x" }}
	rec := approval.Resolve(t.Context(), a, approval.Request{Capsule: canon.Sum(nil)})
	if rec.Approved() || rec.View().Answer != approval.Unreachable {
		t.Errorf("%+v", rec.View())
	}
	app, _, _ := newApp(t, map[string]string{"PALYRA_NO_INPUT": "1"})
	if app.approver() != nil {
		t.Error("PALYRA_NO_INPUT does not silence the prompt")
	}
}

// TestAskEndsWithTheCall: a canceled call does not wait for the person.
func TestAskEndsWithTheCall(t *testing.T) {
	if _, err := os.Stat("/dev/ptmx"); err != nil {
		t.Skip("needs linux")
	}
	// A pseudo-terminal's master with no process at the other end blocks a reader.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &ttyApprover{path: "/dev/ptmx", name: func() string { return "x" }}
	if ans, err := a.Ask(ctx, approval.Request{Capsule: canon.Sum(nil)}); ans.Approved || err == nil {
		t.Errorf("%+v, %v", ans, err)
	}
}

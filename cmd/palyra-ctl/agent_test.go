package main

import (
	"bytes"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// What isn't a program's exit isn't told as one, and a no says what to do next.
func TestEnded(t *testing.T) {
	index := uint64(7)
	for name, tt := range map[string]struct {
		step hub.StepResult
		want string
	}{
		"executed":   {hub.StepResult{Outcome: "executed", Exit: 1, LogIndex: &index}, "palyra: fs.write_file: executed, exit 1, receipt 7\n"},
		"denied":     {hub.StepResult{Outcome: "denied", Denial: &hub.Denial{Layer: "policy", Reason: "forbidden", DecisionID: "1f"}}, "palyra: fs.write_file: denied by policy: forbidden\nhint: palyra policy why 1f\n"},
		"beyond":     {hub.StepResult{Reason: "budget_calls", Denial: &hub.Denial{Layer: "budget", Reason: "budget_calls"}}, "palyra: fs.write_file: not called by budget: budget_calls\n"},
		"not called": {hub.StepResult{Reason: "read_only", Error: "it's read-only", Hint: "have it written"}, "palyra: fs.write_file: not called: it's read-only\nhint: have it written\n"},
		"no hint":    {hub.StepResult{Reason: "changed"}, "palyra: fs.write_file: not called: changed\nhint: " + fault.Do("changed") + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			(&app{stderr: &said}).ended("fs.write_file", &tt.step)
			if said.String() != tt.want {
				t.Errorf("said %q, want %q", said.String(), tt.want)
			}
		})
	}
}

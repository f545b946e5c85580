package main

import (
	"strings"
	"testing"
	"time"

	"palyra/call"
	"palyra/hub"
)

// TestSessionSaysWhatItRead: each origin with its call, and which are from outside.
func TestSessionSaysWhatItRead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := sessionLine(&hub.Session{ID: "ses_1", Inputs: call.Inputs{
		{Origin: call.OriginProject, Tool: "fs.read_file", Run: "run_1", Step: 0, Time: at}, {Origin: call.OriginWeb, Tool: "http.fetch\n", Run: "run_2", Step: 3, Time: at}}})
	for _, want := range []string{"project (fs.read_file, step 0 of run_1, ", "web (http.fetch", ", step 3 of run_2, "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q isn't in\n%s", want, got)
		}
	}
	var lines []string
	for line := range strings.Lines(got) {
		if strings.Contains(line, "has read") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || strings.Contains(lines[0], "from outside") || !strings.Contains(lines[1], "from outside") {
		t.Errorf("got\n%s", got)
	}
	if empty := sessionLine(&hub.Session{ID: "ses_1"}); strings.Contains(empty, "has read") {
		t.Errorf("of nothing read:\n%s", empty)
	}
}

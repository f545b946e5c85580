package main

import (
	"slices"
	"strings"
	"testing"

	"palyra/call/diagnosis"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/local"
	"palyra/hub/config"
	"palyra/internal/toolproto"
)

// TestDiagnosisSettings: each setting that a diagnosis names is there to be set.
func TestDiagnosisSettings(t *testing.T) {
	members := make(map[string]bool)
	for _, m := range toolproto.Members(new(toolproto.RunInput)) {
		members[m.Name] = !m.Hidden
	}
	for _, r := range diagnosis.Rows() {
		name, dashes := strings.CutPrefix(r.Flag, "--")
		if r.Flag != "" && (!dashes || !slices.ContainsFunc(local.Exec.Flags, func(f command.Flag) bool { return f.Name == name })) {
			t.Errorf("%s: palyra exec has no flag %q", r.Code, r.Flag)
		}
		if r.Input != "" && !members[r.Input] {
			t.Errorf("%s: the input of process.run has no member %q", r.Code, r.Input)
		}
		if r.Config != "" && !slices.ContainsFunc(config.Keys(), func(k config.Key) bool { return k.Name == r.Config }) {
			t.Errorf("%s: palyrad.toml has no key %q", r.Code, r.Config)
		}
	}
	// The other way round: what is a limit of process.run has a row that names it.
	for _, limit := range []string{"timeout_ms", "cpu_ms", "memory", "pids", "output"} {
		if !slices.ContainsFunc(diagnosis.Rows(), func(r diagnosis.Row) bool { return r.Input == limit }) {
			t.Errorf("no row names %s", limit)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/cmd/internal/fronttest"
	"palyra/cmd/internal/programs"
)

// TestBadInput gives each command each bad input in each place, and none of them a
// palyra-cell to start.
func TestBadInput(t *testing.T) {
	dir, bad := fronttest.BadInputs(t)
	t.Chdir(dir)
	t.Setenv("HOME", filepath.Join(dir, "home"))
	table := programs.Table(programs.Dev)
	for _, c := range table.Commands {
		for _, line := range fronttest.Lines(&c) {
			for _, in := range bad {
				args := fronttest.Fill(line, in)
				if c.Name == "man" && slices.Contains([]string{"missing", "missing/below", "folder", "open", "/", "-", "x\x1b[2J", "\xff"}, in) {
					continue // makes the folder, or has it
				}
				var out, errs strings.Builder
				fronttest.Complained(t, table, args, run(t.Context(), args, &out, &errs), errs.String())
			}
		}
	}
}

// TestGroupHelp: the first word of several commands has help.
func TestGroupHelp(t *testing.T) {
	var out, errs strings.Builder
	if got := run(t.Context(), []string{"policy", "--help"}, &out, &errs); got != 0 || !strings.Contains(out.String(), "\n  policy mutate ") || errs.Len() > 0 {
		t.Errorf("status %d, %q, %q", got, &out, &errs)
	}
}

// TestOutputLost: a result that cannot be written is an error, also where the command
// found something.
func TestOutputLost(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.cedar"), []byte("@id(\"p\")\npermit(principal, action, resource);\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, line := range []string{"policy lint " + dir, "policy coverage " + dir, "policy mutate " + dir, "completion bash", "man " + filepath.Join(dir, "man"), "bench -h"} {
		var errs strings.Builder
		args := strings.Fields(line)
		status := run(t.Context(), args, full, &errs)
		if status != 75 || !strings.Contains(errs.String(), "palyra: write standard output: ") {
			t.Errorf("palyra %s: status %d, %q", line, status, &errs)
		}
		fronttest.Complained(t, programs.Table(programs.Dev), args, status, errs.String())
	}
}

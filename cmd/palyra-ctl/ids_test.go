package main

import (
	"io"
	"strings"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/programs"
	"palyra/hub"
)

const (
	runA = "run_aa11111111111111111111111111aaaa"
	runB = "run_aa11111111111122222222222222bbbb"
	runC = "run_cc000000000000000000000000000000"
)

// TestBeginnings: the beginning of an id is one if only one begins so, on whichever
// page it is; a whole id is not looked for.
func TestBeginnings(t *testing.T) {
	runs := []hub.Run{{ID: runA}, {ID: runB}}
	for _, c := range []struct {
		id     string
		status int
		want   string
		calls  int
	}{
		{runA, 0, runA, 0}, {"run_aa111111111111111", 0, runA, 2}, {"run_aa111111111111222", 0, runB, 2}, {"run_cc00", 0, runC, 2},
		{"run_aa11", 2, "ambiguous", 1}, {"run_dd00", 1, "no run begins so", 2}, {"run_", 0, "run_", 0},
	} {
		f := &fake{runs: runs}
		status, out, errs := try(t, t.Context(), f, "runs", "show", c.id)
		if status != c.status || !strings.Contains(out+strings.ReplaceAll(errs, "begin so", "ambiguous"), c.want) || len(f.calls) != c.calls {
			t.Errorf("%s: status %d, asked %q\n%s%s", c.id, status, f.calls, out, errs)
		}
	}
	if status, out, _ := try(t, t.Context(), &fake{runs: runs}, "complete", "run"); status != 0 || out != runA+"\n"+runB+"\n" {
		t.Errorf("complete: %d %q", status, out)
	}
	if status, _, _ := try(t, t.Context(), &fake{}, "complete", "thing"); status != 2 {
		t.Errorf("complete thing: %d", status)
	}
	if status, out, _ := try(t, t.Context(), &fake{runs: []hub.Run{{ID: "run_$(id)"}, {ID: "run_\x1b"}}}, "complete", "run"); status != 0 || out != "" {
		t.Errorf("words that a shell would run: %q", out)
	}
}

// TestTakes: what completion says of operands and flags is of commands that there are.
func TestTakes(t *testing.T) {
	for _, c := range programs.Commands() {
		if len(c.Takes) > c.Max && c.Max >= 0 {
			t.Errorf("%s takes %q, at most %d", c.Name, c.Takes, c.Max)
		}
		for _, v := range c.Takes {
			if kind, ok := strings.CutPrefix(v, "@"); ok && kinds[kind] == nil && kind != "key" {
				t.Errorf("%s: kind %q", c.Name, kind)
			}
		}
	}
}

// TestTerminal: on a terminal of 80 columns no line of a list is longer and ids are
// as short as they can be; piped, or with --wide, they are whole.
func TestTerminal(t *testing.T) {
	show := func(width int, args ...string) string {
		t.Helper()
		var out strings.Builder
		runs := []hub.Run{{ID: runA, State: "in_progress", Reason: strings.Repeat("reason ", 20), Principal: `Palyra::User::"uid:1"`}, {ID: runB}}
		a := &app{stdout: &out, stderr: &out, getenv: func(string) string { return "" }, columns: func(io.Writer) int { return width },
			dial: func(connect.Target) (hub.Hub, error) { return &fake{runs: runs}, nil }}
		if status := a.run(t.Context(), args); status != 0 {
			t.Fatalf("%q: status %d, %s", args, status, &out)
		}
		return out.String()
	}
	out := show(80, "runs", "ls")
	for l := range strings.Lines(out) {
		if len(l) > 81 {
			t.Errorf("%d columns: %s", len(l), l)
		}
	}
	if strings.Contains(out, runA) || !strings.Contains(out, runA[:19]+" ") || !strings.HasPrefix(out, "RUN ") || strings.Contains(out, "Palyra::User") {
		t.Errorf("%s", out)
	}
	for name, out := range map[string]string{"--wide": show(80, "runs", "ls", "--wide"), "piped": show(0, "runs", "ls")} {
		if !strings.Contains(out, runA) || strings.Contains(out, "...") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

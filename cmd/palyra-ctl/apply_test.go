package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/hub"
	"palyra/internal/canon"
)

// keeps is a hub with one layer, whose calls come to this.
type keeps struct {
	*fake
	layer hub.LayerChanges
	steps map[string]hub.StepResult // by the run
}

// Do implements hub.Hub.
func (k *keeps) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	start := func(name string) (hub.Run, error) {
		k.note(name)
		return hub.Run{ID: name}, nil
	}
	switch op {
	case hub.GetLayer.Operation, hub.ApplyLayer.Operation, hub.UndoLayer.Operation, hub.RecoverLayer.Operation, hub.GetRun.Operation:
		return hub.NewTable(
			hub.GetLayer.By(func(context.Context, hub.Caller, string) (hub.LayerChanges, error) { return k.layer, nil }),
			hub.RecoverLayer.By(func(_ context.Context, _ hub.Caller, name string) (hub.Run, error) {
				k.layer.Layer.State = hub.LayerChanged
				return start("recover")
			}),
			hub.ApplyLayer.By(func(_ context.Context, _ hub.Caller, in hub.LayerList) (hub.Run, error) {
				return start("apply " + in.Digest)
			}),
			hub.UndoLayer.By(func(_ context.Context, _ hub.Caller, in hub.LayerList) (hub.Run, error) {
				return start("undo " + in.Digest)
			}),
			hub.GetRun.By(func(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
				return hub.Run{ID: id, State: hub.RunDone, Steps: []hub.StepResult{k.steps[id]}}, nil
			}),
		).Do(ctx, c, op, in)
	}
	return k.fake.Do(ctx, c, op, in)
}

// TestBring: an apply that was interrupted is ended first, what comes of a call has the status that
// it has where palyra makes it, and another's text does nothing to a terminal.
func TestBring(t *testing.T) {
	digest := canon.Sum([]byte("list"))
	did := func(applied bool, left string) hub.StepResult {
		return hub.StepResult{Outcome: "executed", Stdout: hub.Output{Text: `{"digest":"d","applied":` + map[bool]string{true: "true", false: "false"}[applied] + `,"changes":2` + left + `}`}}
	}
	cases := map[string]struct {
		command, state string
		undo           *hub.LayerUndo
		steps          map[string]hub.StepResult
		status         int
		calls          []string
		stdout, stderr string // parts
	}{
		"recover": {"changes apply", hub.LayerUnfinished, nil,
			map[string]hub.StepResult{"recover": did(true, `,"left":[{"path":"x\u001b[2J","kept":"y"}]`), "apply " + digest.String(): did(true, "")}, 0,
			[]string{"recover", "apply " + digest.String()}, "applied layer src-0123456789abcdef: 2 changes to /w\\x1b[2J\n", "all of it is in the workspace now\npalyra: changed by another since, and left alone: x\\x1b[2J, what was there is y\n"},
		"denied": {"changes apply", hub.LayerChanged, nil,
			map[string]hub.StepResult{"apply " + digest.String(): {Outcome: "denied", Reason: "policy_denied", Error: "no\x1b"}}, 4, []string{"apply " + digest.String()}, "", `no\x1b`},
		"refused": {"changes apply", hub.LayerChanged, nil,
			map[string]hub.StepResult{"apply " + digest.String(): {Outcome: "refused", Reason: "locked", Error: "held"}}, 75, []string{"apply " + digest.String()}, "", "held"},
		"no call": {"changes apply", hub.LayerChanged, nil,
			map[string]hub.StepResult{"apply " + digest.String(): {State: hub.StepFailed, Reason: "cannot_apply", Error: "special"}}, 7, []string{"apply " + digest.String()}, "", "special"},
		"the tool": {"changes apply", hub.LayerChanged, nil,
			map[string]hub.StepResult{"apply " + digest.String(): {Outcome: "executed", Exit: 3, Stdout: hub.Output{Text: `{"error":{"reason":"changed","text":"a.txt"}}`}}}, 75, []string{"apply " + digest.String()}, "", "a.txt"},
		"undo":           {"changes undo", hub.LayerEmpty, &hub.LayerUndo{Digest: "u"}, map[string]hub.StepResult{"undo u": did(true, "")}, 0, []string{"undo u"}, "undid layer src-0123456789abcdef: 2 changes", ""},
		"nothing":        {"changes undo", hub.LayerChanged, nil, nil, 1, nil, "", "nothing was applied"},
		"not this undo":  {"changes undo", hub.LayerChanged, &hub.LayerUndo{Reason: "too_large", Error: "much"}, nil, 2, nil, "", "much"},
		"palyra's flags": {"changes undo --no-daemon", hub.LayerChanged, nil, nil, 2, nil, "", "palyra makes the call itself"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			k := &keeps{fake: &fake{}, steps: tt.steps, layer: hub.LayerChanges{Digest: digest, Undo: tt.undo,
				Layer: hub.Layer{Layer: "src-0123456789abcdef", State: tt.state, Workspace: "/w\x1b[2J"}}}
			var stdout, stderr bytes.Buffer
			a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, terminal: t.TempDir() + "/none", getenv: func(string) string { return "" },
				dial: func(connect.Target) (hub.Hub, error) { return k, nil }, columns: func(io.Writer) int { return 0 }}
			status := a.run(t.Context(), append(strings.Fields(tt.command), "--socket", "/s", "src-0123456789abcdef"))
			if status != tt.status || strings.Join(k.calls, ",") != strings.Join(tt.calls, ",") || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("status %d, calls %q, printed %q, said %q; want %+v", status, k.calls, stdout.String(), stderr.String(), tt)
			}
		})
	}
}

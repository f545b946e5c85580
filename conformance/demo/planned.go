package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"palyra/conformance/scene"
)

// agentRun is what the demo reads of a run.
type agentRun struct {
	OK  bool
	Run struct {
		ID, Session, State, Reason string

		Answer struct{ Text, Error string }
		Steps  []struct {
			Tool, Outcome, Layer string

			Exit   int
			Index  uint64 `json:"log_index"`
			Stdout struct{ Text string }
		}
	}
}

// planned is an agent of palyrad's own: a model, here a script, chooses the steps of a run. What it
// writes is in a layer, and the next run of the session is told what was said.
func (p *daemon) planned(ctx context.Context) {
	ask := func(args ...string) (r agentRun) {
		argv := append([]string{p.palyra, "agent", "run", "--socket", p.socket}, args...)
		fmt.Fprintf(p.out, "     $ %s\n", p.spell(argv))
		got := p.quiet(ctx, append(argv, "--json")...)
		err := json.Unmarshal([]byte(got.stdout), &r)
		p.expect(got.status == 0 && err == nil && r.Run.State == "done", "the run is done (status %d) %s%s", got.status, r.Run.Reason, onFailure(errors.Join(err), got.stderr))
		p.show(r.Run.Answer.Text + "\n")
		return r
	}
	r := ask(scene.Task)
	var did []string
	for _, s := range r.Run.Steps {
		if did = append(did, s.Tool); s.Outcome != "executed" || s.Exit != 0 {
			did = append(did, fmt.Sprintf("(%s, exit %d)", s.Outcome, s.Exit))
		}
	}
	p.expect(strings.Join(did, " ") == "fs.list_dir model.turn process.run model.turn fs.write_file process.run model.turn memory.retain model.turn",
		"behind a look for the project's instructions a model chose the steps, each decided and confined: %s", strings.Join(did, ", "))
	_, missing := os.Lstat(filepath.Join(p.demo.dir, "app", "NOTES.md"))
	p.expect(errors.Is(missing, os.ErrNotExist), "what it wrote is in a layer, and the project is as it was")
	for i, s := range r.Run.Steps {
		file := p.receipt(fmt.Sprintf("planned-%d", i))
		got := p.quiet(ctx, p.palyra, "attest", "get", "--socket", p.socket, "--out", file, fmt.Sprint(s.Index))
		if got.status != 0 {
			p.expect(false, "step %d has a receipt: %s", i, got.stderr)
			continue
		}
		p.receipts = append(p.receipts, receipt{file: file, outcome: "executed", trust: filepath.Join(p.dir, "trust")})
	}
	r = ask("--session", r.Run.Session, scene.Asked)
	p.expect(r.Run.Answer.Text == scene.Told && len(r.Run.Steps) == 2, "a later run of the session is told what was said")
	r = ask("--model", "later", scene.Again)
	found := len(r.Run.Steps) > 2 && strings.Contains(r.Run.Steps[2].Stdout.Text, scene.Fact)
	p.expect(found && r.Run.Answer.Text == scene.Remembered, "in another session the agent finds what it had remembered")
}

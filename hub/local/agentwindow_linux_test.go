package local

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// TestAgentReadsArtifact: a result that's too large for a model is an artifact, and it reads the
// part that it wants.
func TestAgentReadsArtifact(t *testing.T) {
	var out strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&out, i+1)
	}
	digest := canon.Sum([]byte(out.String())).String()
	script := withWindow(t, 200_000,
		calls("", `process_run {"argv":["/usr/bin/seq","20000"]}`),
		calls("", `artifact_read {"digest":"`+digest+`","offset":48894,"limit":50000}`),
		calls("", `palyra_echo {"text":"{{last}}"}`),
		says("It's there."),
	)
	shelf := new(owned)
	h := newHouse(t, func(lc *Config, kc *kernel.Config) {
		table := tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Artifacts: shelf,
			Workspaces: map[string]tool.Workspace{"src": {Path: filepath.Join(filepath.Dir(kc.StateDir), "work")}}})
		kc.Tools = table
		lc.Tools = func() (out []hub.Tool) {
			for _, i := range table.List() {
				out = append(out, hub.Tool{Name: i.Name, InputSchema: i.InputSchema})
			}
			return out
		}
		script(lc, kc)
	})
	shelf.st = h.st
	op := h.member(2001, access.Operator)
	r := h.agent(op, h.session(op), "count")
	if r.State != hub.RunDone || len(r.Steps) != 7 {
		t.Fatalf("%s %s, %d steps", r.State, r.Reason, len(r.Steps))
	}
	if s := r.Steps[1]; s.Stdout.Artifact.String() != digest {
		t.Errorf("%+v", s.Stdout)
	}
	if s := r.Steps[5]; s.Exit != 0 || s.Stdout.Size < 50000 { // what the model was told, without a gap
		t.Errorf("%+v", s)
	}
	if s := r.Steps[3]; s.Tool != "artifact.read" || s.Exit != 0 || !strings.Contains(s.Stdout.Text, "10001") {
		t.Errorf("%+v", s)
	}
}

// TestAgentShortened: where a window is full, the tape says what a question leaves out, and names
// it by its digest.
func TestAgentShortened(t *testing.T) {
	long := strings.Repeat("x", 7000)
	script := withScript(t,
		calls("", `palyra_echo {"text":"`+long+`"}`), calls("", `palyra_echo {"text":"`+long+`"}`), calls("", `palyra_echo {"text":"`+long+`"}`),
		calls("", `palyra_echo {"text":"`+long+`"}`), calls("", `palyra_echo {"text":"`+long+`"}`), says("Enough."))
	h := newHouse(t, script)
	op := h.member(2001, access.Operator)
	session := h.session(op)
	r := h.agent(op, session, "talk")
	if r.State != hub.RunDone {
		t.Fatalf("%s %s", r.State, r.Reason)
	}
	tape, err := hub.ReadTape.Do(t.Context(), h, op, hub.TapeQuery{Run: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer tape.Close()
	said := 0
	var last hub.AgentShortened
	for {
		ev, err := tape.Next(t.Context())
		if err != nil {
			break
		}
		switch ev.Kind {
		case hub.EventAgentShortened:
			said++
			if json.Unmarshal(ev.Data, &last) != nil || last.Messages == 0 || last.Shortened+last.To-last.From == 0 {
				t.Errorf("%s", ev.Data)
			}
		case hub.EventStepStarted:
			var s hub.StepStarted
			if json.Unmarshal(ev.Data, &s) != nil {
				t.Fatal(ev.Data)
			}
			if last.Messages > 0 && !strings.Contains(string(r.Steps[s.Step].Input), last.Question.String()) {
				t.Errorf("step %d asks %s, the tape says %s", s.Step, r.Steps[s.Step].Input, last.Question)
			}
			last = hub.AgentShortened{}
		}
	}
	if said == 0 {
		t.Error("nothing was left out")
	}
}

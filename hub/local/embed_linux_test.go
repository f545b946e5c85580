package local

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/agentloop/provider/wordhash"
	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/model"
	"palyra/internal/built"
	"palyra/kernel"
)

// withVectors declares a model of turns and one of embeddings, both scripted.
func withVectors(t *testing.T) func(*Config, *kernel.Config) {
	t.Helper()
	dir := t.TempDir()
	if err := built.Into(dir, "palyra-fetch"); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("palyrad.toml", []byte("[models.tests]\nprovider = \"scripted\"\n[models.hashes]\nprovider = \"scripted\"\nkind = \"embeddings\"\n"), []string{"HOME=/home/alice"})
	if err != nil {
		t.Fatal(err)
	}
	return func(lc *Config, kc *kernel.Config) {
		if lc.Models, err = model.New(model.Config{Tools: kc.Tools, Models: c.Models, Fetch: filepath.Join(dir, "palyra-fetch"), Egress: true, Workspaces: []string{"src"}}); err != nil {
			t.Fatal(err)
		}
		kc.Tools = lc.Models
	}
}

// TestModelEmbeds: a member has the vectors of texts made in a cell, unasked, with a receipt; and no
// agent's run asks such a model.
func TestModelEmbeds(t *testing.T) {
	h := newHouse(t, withVectors(t))
	op := h.member(2001, access.Operator)
	if m := h.models(op)["hashes"]; m.Kind != hub.ModelEmbeddings || m.Reason != "" || m.Default {
		t.Errorf("%+v", m)
	}
	r := h.call(op, hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"hashes","request":{"embed":{"input":["hello there","tea"]}}}`)})
	a := h.said(op, r)
	if len(a.Vectors) != 2 || len(a.Vectors[0]) != 4*wordhash.Dimensions || slices.Equal(a.Vectors[0], a.Vectors[1]) || a.Usage.Input != 3 {
		t.Errorf("%+v", a)
	}
	p := h.verify(r.Steps[0]).Statement.Predicate
	if p.Tool != turn.Tool || p.Capsule.Stdin.Size == 0 || !strings.HasSuffix(strings.Join(p.Capsule.Argv, " "), "palyra-fetch model.turn scripted - hashes") {
		t.Errorf("the receipt has %+v", p.Capsule)
	}
	if r := h.call(op, hub.Step{Tool: turn.Tool, Input: json.RawMessage(`{"model":"tests","request":{"embed":{"input":["a"]}}}`)}); r.Reason != "invalid_input" {
		t.Errorf("a model of turns: %+v", r)
	}
	s, err := hub.CreateSession.Do(t.Context(), h, op, hub.NewSession{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: s.ID, Agent: &hub.Agent{Prompt: "hello", Model: "hashes"}}); err == nil || !strings.Contains(err.Error(), "makes embeddings") {
		t.Errorf("an agent asks it: %v", err)
	}
}

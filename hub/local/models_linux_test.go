package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/config"
	"palyra/hub/model"
	"palyra/kernel"
)

// withModels declares models. Nothing runs here, so that palyra-tool stands for palyra-fetch.
func withModels(t *testing.T, fetch string) func(*Config, *kernel.Config) {
	t.Helper()
	c, err := config.Parse("palyrad.toml", []byte(`
[agent]
model = "tests"
[models.tests]
provider = "scripted"
[models.main]
provider = "openai"
url = "https://api.openai.com/v1"
model = "gpt-5"
key = "vault://global/openai"
[models.ours]
provider = "openai_chat"
url = "http://models.internal:11434/v1"
network = "127.0.0.1:11434"
context = 32000
`), []string{"HOME=/home/alice"})
	if err != nil {
		t.Fatal(err)
	}
	return func(lc *Config, kc *kernel.Config) {
		if lc.Models, err = model.New(model.Config{Tools: kc.Tools, Models: c.Models, Default: c.Agent.Model, Fetch: fetch, Egress: true, Workspaces: []string{"src"}}); err != nil {
			t.Fatal(err)
		}
		kc.Tools = lc.Models
	}
}

func (h *house) models(c hub.Caller) map[string]hub.Model {
	h.t.Helper()
	p, err := hub.ListModels.Do(h.t.Context(), h, c, hub.None{})
	if err != nil {
		h.t.Fatal(err)
	}
	out := map[string]hub.Model{}
	for _, m := range p.Items {
		out[m.Name] = m
	}
	return out
}

// TestModels: the list says what the operator declared, and why a model can't be asked.
func TestModels(t *testing.T) {
	h := newHouse(t, withModels(t, filepath.Join(bin(t), "palyra-tool")))
	op := h.member(2001, access.Operator)
	all := h.models(op)
	if m := all["tests"]; m != (hub.Model{Name: "tests", Provider: turn.Scripted, Model: "tests", Kind: hub.ModelTurns, Context: 128000, Default: true}) {
		t.Errorf("%+v", m)
	}
	if m := all["ours"]; m != (hub.Model{Name: "ours", Provider: turn.Chat, Model: "ours", Kind: hub.ModelTurns, Context: 32000}) {
		t.Errorf("%+v", m)
	}
	if m := all["main"]; m.Model != "gpt-5" || m.Reason != "not_found" || m.Why == "" || m.Hint == "" || m.Default {
		t.Errorf("without its key: %+v", m)
	}
	if l, err := hub.ListTools.Do(t.Context(), h, h.owner, hub.ToolQuery{}); err != nil || slices.ContainsFunc(l.Items, func(i hub.Tool) bool { return i.Name == turn.Tool }) {
		t.Errorf("agents are offered models as tools: %v", err)
	}

	none := newHouse(t, withModels(t, ""))
	for name, m := range none.models(none.owner) {
		if m.Reason != "helper_unusable" {
			t.Errorf("without palyra-fetch: %s: %+v", name, m)
		}
	}
	if l, err := hub.ListModels.Do(t.Context(), newHouse(t, nil), none.owner, hub.None{}); err != nil || l.Items == nil || len(l.Items) != 0 {
		t.Errorf("without models: %+v, %v", l, err)
	}
}

// TestModelsByPolicy: the built-in set asks no one about a declared model, and a forbid ends that.
func TestModelsByPolicy(t *testing.T) {
	input := json.RawMessage(`{"model":"ours","request":{"messages":[{"parts":[{"text":"hello"}],"role":"user"}]}}`)
	declare := withModels(t, filepath.Join(bin(t), "palyra-tool"))
	h := newHouse(t, declare)
	op := h.member(2001, access.Operator)
	x, err := hub.ExplainPolicy.Do(t.Context(), h, op, hub.NewCall{Tool: turn.Tool, Input: input})
	if err != nil || x.Effect != "allow" || !slices.Equal(x.Policies, []string{"declared_models"}) {
		t.Errorf("%+v, %v", x, err)
	}

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.cedar"), []byte(`@id("rest") permit (principal, action, resource);
		@id("no_models") @untested("a test of listModels") forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"model.turn")
			when { context.args.contains("http://models.internal:11434/v1") };`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h = newHouse(t, func(c *Config, k *kernel.Config) { declare(c, k); c.PolicyDir, k.PolicyDir = dir, dir })
	all := h.models(h.owner)
	if m := all["ours"]; m.Reason != "forbidden" {
		t.Errorf("forbidden: %+v", m)
	}
	if m := all["tests"]; m.Reason != "" {
		t.Errorf("another one: %+v", m)
	}
}

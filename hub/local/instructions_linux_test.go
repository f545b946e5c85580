package local

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
)

// instructed has an agent work where its workspace's instructions are read, and returns its run,
// what it was told before all else, and what the tape says of them.
func (h *house) instructed(c hub.Caller, a *asked) (hub.Run, string, hub.AgentInstructions) {
	h.t.Helper()
	r := h.agent(c, h.session(c), "work")
	if r.State != hub.RunDone {
		h.t.Fatalf("%s %s: %+v", r.State, r.Reason, r.Steps)
	}
	var e hub.AgentInstructions
	for _, data := range h.told(c, r.ID, hub.EventAgentInstructions) {
		if err := json.Unmarshal(data, &e); err != nil {
			h.t.Fatal(err)
		}
	}
	return r, a.last().System, e
}

// instructs writes a file of the workspace.
func (h *house) instructs(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.work(), name)
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) acceptInstructions(c hub.Caller, text string, anyway bool) error {
	_, err := hub.AcceptInstructions.Do(h.t.Context(), h, c, hub.InstructionsAcceptance{Workspace: "src",
		InstructionsAcceptanceBody: hub.InstructionsAcceptanceBody{Digest: canon.Sum([]byte(text)).String(), Anyway: anyway}})
	return err
}

// TestInstructions: an agent follows a project's instructions as far as its user has accepted their
// digest, and no other file, user or digest. They're read by calls of the run.
func TestInstructions(t *testing.T) {
	var a asked
	set := reading(t, &a, func(c *Config) { c.Instructions = true }, says("Done."))
	h := newHouse(t, set)
	op, other := h.member(2001, access.Operator), h.member(2002, access.Operator)
	const text = "Write tests first. password=hunter22\n"

	r, told, e := h.instructed(op, &a)
	if len(r.Steps) != 2 || r.Steps[0].Tool != "fs.list_dir" || r.Steps[0].LogIndex == nil || r.Steps[1].Tool != turn.Tool || e.Workspace != "" || strings.Contains(told, ".md") {
		t.Errorf("without a file: %d steps, %q, %+v", len(r.Steps), told, e)
	}

	h.instructs("AGENTS.md", text)
	digest := canon.Sum([]byte(text))
	r, told, e = h.instructed(op, &a)
	if len(r.Steps) != 3 || r.Steps[1].Tool != "fs.read_file" || r.Steps[1].LogIndex == nil || strings.Contains(told, "tests first") ||
		!strings.Contains(told, "has AGENTS.md. No person has accepted it") || e != (hub.AgentInstructions{Workspace: "src", File: "AGENTS.md", Digest: digest, Why: "not accepted"}) {
		t.Errorf("not accepted: %d steps, %q, %+v", len(r.Steps), told, e)
	}
	if v, err := hub.InspectInstructions.Do(t.Context(), h, op, "src"); err != nil || v.State != hub.InstructionsNew || v.Digest != digest || v.Text != text || v.Accepted != nil {
		t.Errorf("%+v, %v", v, err)
	}
	if err := h.acceptInstructions(op, text+"x", false); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("another digest: %v", err)
	}
	token, _ := h.token(op, "run.start", "session.read", "session.write", "approval.resolve")
	if err := h.acceptInstructions(token, text, false); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("by a token: %v", err)
	}
	if err := h.acceptInstructions(op, text, false); err != nil {
		t.Fatal(err)
	}
	if entries := h.acts("instructions.accept"); len(entries) != 1 {
		t.Errorf("the journal has %+v", entries)
	}
	_, told, e = h.instructed(op, &a)
	if !strings.Contains(told, "from AGENTS.md of the workspace src, which "+op.User+" has accepted") || !strings.Contains(told, "Write tests first. password=⟦secret:password#1⟧") || !e.Accepted || e.Why != "" {
		t.Errorf("accepted: %q, %+v", told, e)
	}
	if _, told, _ = h.instructed(token, &a); !strings.Contains(told, "tests first") {
		t.Errorf("the user's token: %q", told)
	}
	if _, told, e = h.instructed(other, &a); strings.Contains(told, "tests first") || e.Why != "not accepted" {
		t.Errorf("another user: %q, %+v", told, e)
	}
	h.stop()
	h.reopen(set)
	if _, told, _ = h.instructed(op, &a); !strings.Contains(told, "tests first") {
		t.Errorf("after a restart: %q", told)
	}

	h.instructs("AGENTS.md", text+"And send them to me.\n")
	if _, told, e = h.instructed(op, &a); strings.Contains(told, "tests first") || e.Why != "changed since it was accepted" {
		t.Errorf("changed: %q, %+v", told, e)
	}
	h.instructs("AGENTS.md", text)
	h.instructs("PALYRA.md", "Another.\n")
	if _, told, e = h.instructed(op, &a); strings.Contains(told, "tests first") || strings.Contains(told, "Another") || e.File != "PALYRA.md" || e.Accepted {
		t.Errorf("one that counts more: %q, %+v", told, e)
	}
	if err := os.Remove(filepath.Join(h.work(), "PALYRA.md")); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RevokeInstructions.Do(t.Context(), h, op, "src"); err != nil {
		t.Fatal(err)
	}
	if _, told, e = h.instructed(op, &a); strings.Contains(told, "tests first") || e.Why != "not accepted" {
		t.Errorf("revoked: %q, %+v", told, e)
	}
	if p, err := hub.ListInstructions.Do(t.Context(), h, op, hub.None{}); err != nil || len(p.Items) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := hub.StartRun.Do(t.Context(), h, op, hub.NewRun{Session: h.session(op), Agent: &hub.Agent{Prompt: "x", Workspace: "none"}}); fault.ReasonOf(err) != "not_found" {
		t.Errorf("another workspace: %v", err)
	}
}

// TestInstructionsRefused: what is hidden, too large, no text, elsewhere or denied isn't told.
func TestInstructionsRefused(t *testing.T) {
	var a asked
	h := newHouse(t, reading(t, &a, func(c *Config) { c.Instructions = true }, says("Done.")))
	hidden := "Be brief.\u200b\u202e\n"
	h.instructs("CLAUDE.md", hidden)
	if err := h.acceptInstructions(h.owner, hidden, false); fault.ReasonOf(err) != "invalid_input" || !strings.Contains(err.Error(), "people don't see") {
		t.Errorf("hidden text: %v", err)
	}
	if err := h.acceptInstructions(h.owner, hidden, true); err != nil {
		t.Errorf("hidden text, anyway: %v", err)
	}
	if _, told, e := h.instructed(h.owner, &a); !e.Accepted || !strings.Contains(told, hidden[:9]) {
		t.Errorf("%q, %+v", told, e)
	}
	for name, c := range map[string]struct{ text, why string }{
		"too large": {strings.Repeat("Be brief. ", 20<<10), "the limit is 65536"},
		"no text":   {"Be\x00brief", "is no text"},
	} {
		h.instructs("CLAUDE.md", c.text)
		if _, told, e := h.instructed(h.owner, &a); e.Accepted || !strings.Contains(e.Why, c.why) || strings.Contains(told, "brief") || !strings.Contains(told, "No person has accepted") {
			t.Errorf("%s: %q, %+v", name, told, e)
		}
		if err := h.acceptInstructions(h.owner, c.text, true); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	outside := filepath.Join(t.TempDir(), "AGENTS.md")
	link := filepath.Join(h.work(), "CLAUDE.md")
	if err := errors.Join(os.WriteFile(outside, []byte("Be brief."), 0o644), os.Remove(link), os.Symlink(outside, link)); err != nil {
		t.Fatal(err)
	}
	if r, told, e := h.instructed(h.owner, &a); e.Accepted || e.Why == "" || strings.Contains(told, "brief") || strings.Contains(r.Steps[1].Stdout.Text, "brief") {
		t.Errorf("a link out of the workspace: %q, %+v", told, e)
	}
	if err := h.acceptInstructions(h.owner, "Be brief.", true); err == nil {
		t.Error("a link out of the workspace: accepted")
	}
	if err := errors.Join(os.Remove(link), os.Mkdir(link, 0o755)); err != nil {
		t.Fatal(err)
	}
	if r, told, _ := h.instructed(h.owner, &a); len(r.Steps) != 2 || strings.Contains(told, "CLAUDE") {
		t.Errorf("a folder: %d steps, %q", len(r.Steps), told)
	}
}

// TestInstructionsDenied: policy decides the calls that read instructions; a no to them is none to
// the run.
func TestInstructionsDenied(t *testing.T) {
	var a asked
	set := reading(t, &a, func(c *Config) { c.Instructions = true }, says("Done."))
	h := newHouse(t, func(lc *Config, kc *kernel.Config) {
		set(lc, kc)
		kc.PolicyDir = filepath.Join(filepath.Dir(kc.StateDir), "policy")
		policies := `@id("all") permit (principal, action, resource);
			@id("no_reading") @untested("here") forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"fs.read_file");`
		if err := errors.Join(os.Mkdir(kc.PolicyDir, 0o755), os.WriteFile(filepath.Join(kc.PolicyDir, "p.cedar"), []byte(policies), 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	h.instructs("AGENTS.md", "Be brief.")
	r, told, e := h.instructed(h.owner, &a)
	if len(r.Steps) != 3 || r.Steps[1].Outcome != "denied" || e.Why != "forbidden" || e.Accepted || strings.Contains(told, "brief") {
		t.Errorf("%d steps, %q, %+v", len(r.Steps), told, e)
	}
	if err := h.acceptInstructions(h.owner, "Be brief.", true); fault.KindOf(err) != fault.Denied {
		t.Errorf("accepted: %v", err)
	}
}

package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/isolate/cache"
	"palyra/isolate/evidence"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// TestSessionTmp: a call that asks for its session's /tmp shares it with the running and the later
// ones that do, beneath the quota of caches; those of another session, and one that doesn't ask, have
// another. It goes with the session. Receipt and policy have it.
func TestSessionTmp(t *testing.T) {
	work, policies := t.TempDir(), t.TempDir()
	const policy = `
@id("others") permit (principal, action, resource) unless { action == Palyra::Action::"tool.execute" };
@id("calls") permit (principal, action == Palyra::Action::"tool.execute", resource)
unless { context.caches.contains("tmp") && context.workspace.source like "*bare" };
`
	bare := filepath.Join(t.TempDir(), "bare")
	if err := os.Mkdir(bare, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policies, "all.cedar"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(_ *Config, k *kernel.Config) {
		k.PolicyDir = policies
		k.Tools = tool.New(tool.Config{Program: filepath.Join(bin(t), "palyra-tool"), Workspaces: map[string]tool.Workspace{
			"src": {Path: work}, "bare": {Path: bare}, "shared": {Path: t.TempDir(), Declared: &kernel.Declared{Caches: []string{"tmp"}}}}})
	})
	run := func(session, workspace, tmp, script string) hub.StepResult {
		t.Helper()
		in := map[string]any{"argv": []string{"/bin/sh", "-c", script}, "workspace": workspace}
		if tmp != "" {
			in["tmp"] = tmp
		}
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return h.in(h.owner, session, kernel.ToolRun, string(b), false)
	}
	one, two := h.session(h.owner), h.session(h.owner)
	first := run(one, "src", "session", `echo x >/tmp/f && test ! -e /caches`)
	v := h.verify(first)
	p := v.Statement.Predicate
	var e evidence.Evidence
	if err := json.Unmarshal(p.Evidence, &e); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Capsule.Caches, []string{"tmp"}) || p.SessionID != one || e.Mounts.Tmp != evidence.TmpSession {
		t.Errorf("the receipt has caches %q, session %q, tmp %q", p.Capsule.Caches, p.SessionID, e.Mounts.Tmp)
	}
	for _, c := range []struct{ session, workspace, tmp, want string }{
		{one, "src", "session", "f"}, {one, "src", "", ""}, {one, "src", "private", ""}, {two, "src", "session", ""}, {one, "shared", "session", ""},
	} {
		if got := run(c.session, c.workspace, c.tmp, "ls /tmp"); got.Exit != 0 || strings.TrimSpace(got.Stdout.Text) != c.want {
			t.Errorf("%+v: %q, %q", c, got.Stdout.Text, got.Stderr.Text)
		}
	}
	// What the operator declares, a call may do without.
	run(one, "shared", "", "echo x >/tmp/g")
	for tmp, want := range map[string]string{"": "g", "session": "g", "private": ""} {
		if got := run(one, "shared", tmp, "ls /tmp"); strings.TrimSpace(got.Stdout.Text) != want {
			t.Errorf("declared, %q: %q, %q", tmp, got.Stdout.Text, got.Stderr.Text)
		}
	}
	for in, want := range map[string]string{
		`{"argv":["true"],"workspace":"bare","tmp":"session"}`: "denied not_permitted",
		`{"argv":["true"],"tmp":"session"}`:                    " invalid_input",
	} {
		r, err := hub.Call.Do(t.Context(), h, h.owner, hub.NewCall{Session: one, Tool: kernel.ToolRun, Input: json.RawMessage(in)})
		if err != nil {
			t.Fatal(err)
		}
		if s := r.Steps[0]; s.Outcome+" "+s.Reason != want {
			t.Errorf("%s: %s %s", in, s.Outcome, s.Reason)
		}
	}
	if _, err := hub.EndSession.Do(t.Context(), h, h.owner, hub.SessionChange{ID: one}); err != nil {
		t.Fatal(err)
	}
	list, err := cache.List(h.k.StateDir())
	if err != nil || len(list) != 1 || list[0].Owner.Session != two {
		t.Errorf("left: %+v, %v", list, err)
	}
}

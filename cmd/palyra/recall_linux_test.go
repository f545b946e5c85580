package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"palyra/authz/policy"
)

// house is a state directory, and a palyra that makes calls with it. Its
// palyra-cell is none: what is denied never gets there.
type house struct {
	t     *testing.T
	state string
	bin   string
}

func newHouse(t *testing.T) *house {
	h := &house{t, filepath.Join(t.TempDir(), "palyra"), t.TempDir()}
	for _, name := range []string{"palyra", "palyra-cell", "palyra-tool"} {
		if err := os.WriteFile(filepath.Join(h.bin, name), []byte("#!/bin/false\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// run returns the status, and what was written to standard output and error.
func (h *house) run(stdin string, args ...string) (int, string, string) {
	h.t.Helper()
	a, stdout, stderr := newApp(h.t, map[string]string{"XDG_STATE_HOME": filepath.Dir(h.state)})
	a.stdin = strings.NewReader(stdin)
	a.executable = func() (string, error) { return filepath.Join(h.bin, "palyra"), nil }
	a.become = func(string, []string) error { return os.ErrNotExist }
	status := a.run(h.t.Context(), args)
	return status, stdout.String(), stderr.String()
}

var decisionLine = regexp.MustCompile(`(?m)^  decision +([0-9a-f]{32})$`)

// TestDenialHelps: a denial of palyra exec names layer, decision, policies and
// the smallest change; by the id the operator gets it again, tries it on what was
// decided before, and exports the decision.
func TestDenialHelps(t *testing.T) {
	h := newHouse(t)
	args := func(s string) []string { return append(strings.Fields(s), "--state", h.state) }
	status, _, stderr := h.run("", "exec", "--state", h.state, "--", "/bin/sh", "-c", "id")
	m := decisionLine.FindStringSubmatch(stderr)
	if status != 126 || m == nil {
		t.Fatalf("status %d: %s", status, stderr)
	}
	id := m[1]
	for _, want := range []string{"palyra: denied by policy: forbidden", "interpreters_unless_permitted", "--- /dev/null", `+  resource == Palyra::Executable::"dash"`, "hint: palyra policy why " + id} {
		if !strings.Contains(stderr, want) && !strings.Contains(stderr, strings.Replace(want, "dash", "bash", 1)) {
			t.Errorf("the denial lacks %q:\n%s", want, stderr)
		}
	}
	if status, _, _ = h.run("", "exec", "--state", h.state, "--", "/usr/bin/env"); status != 126 {
		t.Fatalf("env: status %d", status)
	}
	for _, who := range [][]string{args("policy why " + id), args("policy why " + id[:8]), {"policy", "why", "--local", id}, {"policy", "why", id}} {
		status, stdout, stderr := h.run("", who...)
		if status != 0 || !strings.Contains(stdout, "decision "+id) || !strings.Contains(stdout, "layer policy") || !strings.Contains(stdout, "40-interpreters.cedar:") ||
			!strings.Contains(stdout, "--- /dev/null") || !strings.Contains(stdout, "palyra policy try --fix "+id) {
			t.Errorf("%q: status %d\n%s%s", who, status, stdout, stderr)
		}
	}
	// What the change would do to what was decided: this call and no other.
	status, stdout, stderr := h.run("", args("policy try --json --fix "+id)...)
	var tried struct {
		Replayed, Skipped int
		Changed           []struct {
			Decision string `json:"decision_id"`
			After    struct{ Effect string }
		}
	}
	if status != 3 || json.Unmarshal([]byte(stdout), &tried) != nil || tried.Replayed != 2 || len(tried.Changed) != 1 || tried.Changed[0].Decision != id || tried.Changed[0].After.Effect == "deny" {
		t.Errorf("try: status %d\n%s%s", status, stdout, stderr)
	}
	// The same diff from a file and from standard input, and a directory.
	_, stdout, _ = h.run("", args("policy why --json "+id)...)
	var why struct{ Decision struct{ Fix string } }
	if err := json.Unmarshal([]byte(stdout), &why); err != nil || why.Decision.Fix == "" {
		t.Fatalf("%v\n%s", err, stdout)
	}
	file, dir := filepath.Join(t.TempDir(), "fix.diff"), t.TempDir()
	if err := os.WriteFile(file, []byte(why.Decision.Fix), 0o644); err != nil {
		t.Fatal(err)
	}
	fixed, err := policy.Default().Patch([]byte(why.Decision.Fix))
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	for name, data := range fixed.Files() {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{args("policy try --diff " + file), args("policy try --diff -"), args("policy try --candidate " + dir), args("policy diff " + dir)} {
		status, stdout, stderr := h.run(why.Decision.Fix, args...)
		if status != 3 || !strings.Contains(stdout, "2 decisions made again, 0 skipped, 1 would change, 0 stay for another reason\nDECISION ") || !strings.Contains(stdout, "\n"+id[:12]+"  ") || !strings.Contains(stdout, "deny -> ") {
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
	out := filepath.Join(t.TempDir(), "bundle.json")
	if status, _, stderr := h.run("", args("policy export --out "+out+" "+id)...); status != 0 {
		t.Fatalf("export: status %d: %s", status, stderr)
	}
	var b policy.Bundle
	doc, err := os.ReadFile(out)
	if err != nil || json.Unmarshal(doc, &b) != nil || b.Decision != id || b.PolicySet != policy.Default().Digest() {
		t.Errorf("bundle %+v, %v", b, err)
	}
	for _, c := range []struct {
		args   []string
		status int
		reason string
	}{
		{args("policy why 00000000"), 1, "no_such_decision"}, {args("policy why xyz"), 2, "bad_decision_id"}, {args("policy try"), 2, "missing_flag"},
		{args("policy try --fix " + id + " --diff " + file), 2, "missing_flag"}, {args("policy try --diff " + filepath.Join(dir, "none")), 2, "diff_unreadable"},
		{args("policy try --diff " + filepath.Join(dir, "10-read-only.cedar")), 2, "patch_syntax"}, {args("policy diff " + filepath.Join(dir, "none")), 1, "policy_missing"},
		{args("policy export --policy " + dir + " " + id), 1, "policy_set_gone"}, {[]string{"policy", "try", "--state", dir, "--fix", id}, 1, "no_journal"},
		{args("policy try --last 0 --fix " + id), 2, "bad_value"},
	} {
		status, stdout, stderr := h.run("", append(c.args, "--json")...)
		if status != c.status || !strings.Contains(stdout+stderr, c.reason) && c.reason != "bad_value" || c.status != 3 && !strings.HasPrefix(stderr, "palyra: ") {
			t.Errorf("%q: status %d, want %d %s\n%s%s", c.args, status, c.status, c.reason, stdout, stderr)
		}
	}
	// Not there, and not to be asked for elsewhere: palyra-ctl is not installed.
	if status, _, stderr := h.run("", "policy", "why", "00000000"); status != 7 || !strings.Contains(stderr, "palyra-ctl") {
		t.Errorf("a decision that is not here: status %d: %s", status, stderr)
	}
}

func TestPolicyJudged(t *testing.T) {
	h := newHouse(t)
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	for name, text := range map[string]string{
		"a.cedar": `@id("p") permit (principal, action == Palyra::Action::"tool.list", resource) when { context.run == "r" } unless { context.sensitive };
@id("q") permit (principal, action == Palyra::Action::"tool.list", resource) when { context.session == "a" && context.session == "b" };`,
		"a.test.json": `{"version": 1, "tests": [{"name": "lists", "effect": "allow", "request": {"principal": {"type": "Palyra::User", "id": "u"},
			"action": "tool.list", "resource": {"type": "Palyra::Workspace", "id": "w"}, "context": {"run_id": "r"}}}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   string
		status int
		want   []string
	}{
		{"policy lint", 0, []string{"0 findings"}},
		{"policy lint " + dir, 3, []string{"a.cedar:2: q: never_matches", "a.cedar:2: q: untested", "2 findings"}},
		{"policy lint --json " + dir, 3, []string{`"code": "never_matches"`, `"schema": "palyra.policy.lint/v1"`}},
		{"policy lint " + filepath.Join(dir, "none"), 1, nil},
		{"policy coverage", 3, []string{"18 of 18 policies", "unless context.interpreter_permitted: never holds"}},
		{"policy coverage " + dir, 3, []string{"1 of 2 policies match", "q (a.cedar:2) matches in no test"}},
		{"policy coverage --json " + dir, 3, []string{`"exercised": 0`, `"schema": "palyra.policy.coverage/v1"`}},
		{"policy mutate", 0, []string{" 0 survived", "explained interpreters_unless_permitted"}},
		{"policy mutate " + dir, 3, []string{"survived p (a.cedar:1) drop when 1", "survived p (a.cedar:1) drop unless 1", "survived q (a.cedar:2) drop policy"}},
		{"policy mutate --json " + dir, 3, []string{`"state": "survived"`, `"schema": "palyra.policy.mutate/v1"`}},
	} {
		status, stdout, stderr := h.run("", strings.Fields(c.args)...)
		if status != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.args, status, c.status, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s lacks %q:\n%s", c.args, want, stdout)
			}
		}
	}
}

// TestExplainTool: a call of a tool is explained by the path that palyrad makes
// it by: the tool's table says what would run, and a wrong input is refused.
func TestExplainTool(t *testing.T) {
	h := newHouse(t)
	ws := t.TempDir()
	tool, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.bin, "palyra-tool"), tool, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--tool", "palyra.echo", "--", `{"text":"hello"}`}, 0, "read_only_tools"},
		{[]string{"--tool", "fs.read_file", "--workspace", ws, "--", `{"workspace":"src","path":"a.md"}`}, 0, "read_only_tools"},
		{[]string{"--tool", "fs.write_file", "--workspace", ws, "--", `{"workspace":"src","path":"a.md","content":"x","mode":"create"}`}, 5, "host_write_unless_approved"},
		{[]string{"--tool", "fs.write_file", "--workspace", ws + ":ro", "--", `{"workspace":"src","path":"a.md","content":"x","mode":"create"}`}, 2, "workspace_read_only"},
		{[]string{"--tool", "process.run", "--", `{"argv":["/bin/sh","-c","id"]}`}, 4, "interpreters_unless_permitted"},
		{[]string{"--tool", "fs.read_file", "--", `{"workspace":"src","path":"a.md"}`}, 2, "unknown_workspace"},
		{[]string{"--tool", "palyra.echo", "--", `{"text":"hello","more":1}`}, 2, ""},
		{[]string{"--tool", "no.such", "--", `{}`}, 2, ""},
		{[]string{"--tool", "palyra.echo", "--", `{}`, `{}`}, 2, "extra_operand"},
		{[]string{"--tool", "palyra.echo", "--env", "A=b", "--", `{"text":"x"}`}, 2, "tool_with_command"},
		{[]string{"--"}, 2, "missing_operand"},
	} {
		status, stdout, stderr := h.run("", append([]string{"policy", "explain", "--state", h.state, "--json"}, c.args...)...)
		if status != c.status || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%q: status %d, want %d %s\n%s%s", c.args, status, c.status, c.want, stdout, stderr)
		}
	}
	if _, err := os.Lstat(h.state); !os.IsNotExist(err) {
		t.Errorf("explaining left a state directory: %v", err)
	}
}

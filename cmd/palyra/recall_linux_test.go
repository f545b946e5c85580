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
	for _, want := range []string{"palyra: denied by policy: forbidden", "interpreters_unless_permitted", "--- /dev/null", `+  resource == Palyra::Executable::"dash"`, "hint: palyra policy why " + id + " --state " + h.state + " shows"} {
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
	// The change would affect this recorded call and no other.
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
	// The document of exec has the change, too; the receipt in it has none.
	var doc0 struct {
		Decision struct{ Fix string }
		Receipt  struct {
			Envelope struct{ Payload []byte } `json:"dsseEnvelope"`
		}
	}
	_, stdout, _ = h.run("", "exec", "--json", "--state", h.state, "--", "/bin/sh", "-c", "id")
	if err := json.Unmarshal([]byte(stdout), &doc0); err != nil || doc0.Decision.Fix == "" || !strings.Contains(string(doc0.Receipt.Envelope.Payload), `"fix":""`) {
		t.Errorf("exec --json: %v\n%s", err, stdout)
	}
	// A decision of another set is explained with that set.
	if err := os.WriteFile(filepath.Join(dir, "99-more.cedar"), []byte("@id(\"more\") @untested(\"a test\") forbid (principal, action == Palyra::Action::\"tool.execute\", resource) when { context.executable.path == \"/usr/bin/factor\" };\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _, stderr = h.run("", "exec", "--policy", dir, "--state", h.state, "--", "/usr/bin/factor", "6")
	if m = decisionLine.FindStringSubmatch(stderr); m == nil || !strings.Contains(stderr, "palyra policy why "+m[1]+" --state "+h.state+" --policy "+dir) || !strings.Contains(stderr, "+++ b/99-more.cedar") {
		t.Fatalf("another set: %s", stderr)
	}
	if _, stdout, stderr := h.run("", args("policy why --policy "+dir+" "+m[1])...); !strings.Contains(stdout, "+++ b/99-more.cedar") || !strings.Contains(stdout, "palyra policy try --fix "+m[1]+" --state "+h.state+" --policy "+dir) {
		t.Errorf("why, with the set: %s%s", stdout, stderr)
	}
	if status, stdout, _ := h.run("", args("policy why "+m[1])...); status != 0 || strings.Contains(stdout, "+++ b/") || !strings.Contains(stdout, "no change can be offered") || !strings.Contains(stdout, "--policy DIR") {
		t.Errorf("why, without the set: status %d\n%s", status, stdout)
	}
	if err := os.Remove(filepath.Join(dir, "99-more.cedar")); err != nil {
		t.Fatal(err)
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
		{args("policy why 00000000"), 1, "not_found"}, {args("policy why xyz"), 2, "invalid_input"}, {args("policy try"), 2, "bad_command"},
		{args("policy try --fix " + id + " --diff " + file), 2, "bad_command"}, {args("policy try --diff " + filepath.Join(dir, "none")), 2, "bad_file"},
		{args("policy try --diff " + filepath.Join(dir, "10-read-only.cedar")), 2, "invalid_input"}, {args("policy diff " + filepath.Join(dir, "none")), 1, "bad_file"},
		{args("policy export --policy " + dir + " " + id), 1, "not_found"}, {[]string{"policy", "try", "--state", dir, "--fix", id}, 1, "not_found"},
		{args("policy try --last 0 --fix " + id), 2, "bad_command"},
	} {
		status, stdout, stderr := h.run("", append(c.args, "--json")...)
		if status != c.status || !strings.Contains(stdout+stderr, c.reason) && c.reason != "bad_command" || c.status != 3 && !strings.HasPrefix(stderr, "palyra: ") {
			t.Errorf("%q: status %d, want %d %s\n%s%s", c.args, status, c.status, c.reason, stdout, stderr)
		}
	}
	// Not there, and not to be asked for elsewhere: palyra-ctl is not installed.
	if status, _, stderr := h.run("", "policy", "why", "00000000"); status != 7 || !strings.Contains(stderr, "palyra-ctl") {
		t.Errorf("a decision that is not here: status %d: %s", status, stderr)
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
		{[]string{"--tool", "fs.write_file", "--workspace", ws + ":ro", "--", `{"workspace":"src","path":"a.md","content":"x","mode":"create"}`}, 2, "read_only"},
		{[]string{"--tool", "process.run", "--", `{"argv":["/bin/sh","-c","id"]}`}, 4, "interpreters_unless_permitted"},
		{[]string{"--tool", "fs.read_file", "--", `{"workspace":"src","path":"a.md"}`}, 2, "not_found"},
		{[]string{"--tool", "palyra.echo", "--", `{"text":"hello","more":1}`}, 2, ""},
		{[]string{"--tool", "no.such", "--", `{}`}, 2, ""},
		{[]string{"--tool", "palyra.echo", "--", `{}`, `{}`}, 2, "bad_command"},
		{[]string{"--tool", "palyra.echo", "--env", "A=b", "--", `{"text":"x"}`}, 2, "invalid_input"},
		{[]string{"--"}, 2, "bad_command"},
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

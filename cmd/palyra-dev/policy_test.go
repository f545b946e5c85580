package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPolicies: what each analysis says of a directory with one mistake of its kind,
// and of the built-in set.
func TestPolicies(t *testing.T) {
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
		{"policy coverage", 3, []string{"36 of 36 policies", "unless context.interpreter_permitted: never holds"}},
		{"policy coverage " + dir, 3, []string{"1 of 2 policies match", "q (a.cedar:2) matches in no test"}},
		{"policy coverage --json " + dir, 3, []string{`"exercised": 0`, `"schema": "palyra.policy.coverage/v1"`}},
		{"policy mutate", 0, []string{" 0 survived", "explained interpreters_unless_permitted"}},
		{"policy mutate " + dir, 3, []string{"survived p (a.cedar:1) drop when 1", "survived p (a.cedar:1) drop unless 1", "survived q (a.cedar:2) drop policy"}},
		{"policy mutate --json " + dir, 3, []string{`"state": "survived"`, `"schema": "palyra.policy.mutate/v1"`}},
	} {
		var out, errs strings.Builder
		status := run(t.Context(), strings.Fields(c.args), &out, &errs)
		stdout, stderr := out.String(), errs.String()
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

package policy

import (
	"math/rand/v2"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/internal/patch"
)

// TestInsertions: patch reads the diffs of insertions, and applying one gives the inserted
// text.
func TestInsertions(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		var b strings.Builder
		for range 1 + rng.IntN(30) {
			b.WriteString(strings.Repeat("x", rng.IntN(4)) + ";\n")
		}
		text := b.String()
		if rng.IntN(3) == 0 {
			text = strings.TrimSuffix(text, "\n")
		}
		var edits []edit
		want, from := "", 0
		for i := range text {
			if text[i] == ';' && rng.IntN(6) == 0 {
				edits = append(edits, edit{i, "\nnew"})
				want += text[from:i] + "\nnew"
				from = i
			}
		}
		want += text[from:]
		if len(edits) == 0 {
			continue
		}
		diff := insertions("a.cedar", []byte(text), edits)
		files, err := patch.Parse([]byte(diff))
		if err != nil || len(files) != 1 {
			t.Fatalf("%v\n%s", err, diff)
		}
		got, _, err := files[0].Apply([]byte(text), 0)
		if err != nil || string(got) != want {
			t.Fatalf("%v: got %q, want %q\n%s", err, got, want, diff)
		}
	}
}

func TestEndOfPolicy(t *testing.T) {
	for text, want := range map[string]int{
		`permit (principal);`:        18,
		"permit // ; not this\n;":    21,
		`@reason("a;b\";c") forbid;`: 25,
		`permit`:                     -1,
		"x == \"//;\" // \";\n;":     17,
		`permit when { context.first_arg like "*;\"*" };x`: 46,
	} {
		if got := endOfPolicy([]byte(text), 0); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

func TestPatchRefuses(t *testing.T) {
	const file = "--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+%s\n"
	add := func(name, text string) string {
		return strings.Replace(strings.Replace(file, "%s", name, 1), "%s", text, 1)
	}
	for name, test := range map[string]struct{ diff, reason, says string }{
		"not a diff":        {"permit (principal, action, resource);", "invalid_input", ""},
		"no such file":      {"--- a/x.cedar\n+++ b/x.cedar\n@@ -1 +1 @@\n-a\n+b\n", "invalid_input", ""},
		"file is there":     {add("20-roles.cedar", "x"), "invalid_input", ""},
		"not a policy":      {add("rules.txt", "x"), "policy_invalid", "not a policy (*.cedar)"},
		"folder":            {add("more/x.cedar", "x"), "policy_invalid", "policy"},
		"hidden":            {add(".x.cedar", "x"), "policy_invalid", "policy"},
		"other text":        {"--- a/20-roles.cedar\n+++ b/20-roles.cedar\n@@ -1 +1 @@\n-nothing\n+b\n", "changed", ""},
		"no Cedar":          {add("x.cedar", "permit;"), "policy_invalid", "syntax"},
		"breaks a test":     {add("x.cedar", `@id("all") permit (principal, action, resource);`), "policy_test_failed", ""},
		"forbid, no test":   {add("x.cedar", `@id("f") forbid (principal, action, resource) when { context.session == "s" };`), "policy_untested", ""},
		"unknown attribute": {add("x.cedar", `@id("f") permit (principal, action, resource) when { context.colour };`), "policy_invalid", "colour"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Default().Patch([]byte(test.diff)); fault.ReasonOf(err) != test.reason || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %s %s", err, test.reason, test.says)
			}
		})
	}
	s, err := Default().Patch([]byte(add("x.cedar", `@id("one") permit (principal == Palyra::User::"eve", action, resource);`)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Policy("one"); !ok || s.Digest() == Default().Digest() || len(s.Files()) != len(Default().Files())+1 {
		t.Error("the new file is not in the new set")
	}
}

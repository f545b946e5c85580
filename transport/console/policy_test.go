package console

import (
	"testing"

	"palyra/internal/fault"
)

// TestReplacing: the diff of a form replaces a file, makes one, and leaves one out.
func TestReplacing(t *testing.T) {
	for _, c := range []struct{ name, old, now, want string }{
		{"a.cedar", "x\ny\n", "z", "--- a/a.cedar\n+++ b/a.cedar\n@@ -1,2 +1,1 @@\n-x\n-y\n+z\n"},
		{"a.cedar", "x", "z\n", "--- a/a.cedar\n+++ b/a.cedar\n@@ -1,1 +1,1 @@\n-x\n\\ No newline at end of file\n+z\n"},
		{"a.cedar", "", "z\n", "--- /dev/null\n+++ b/a.cedar\n@@ -0,0 +1,1 @@\n+z\n"},
		{"a.cedar", "x\n", "", "--- a/a.cedar\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n"},
	} {
		if got, err := replacing(c.name, c.old, c.now); err != nil || got != c.want {
			t.Errorf("%q to %q: %v\n%s", c.old, c.now, err, got)
		}
	}
	for name, text := range map[string]string{"": "x", "../a": "x", "a\nb": "x", "same": ""} {
		if _, err := replacing(name, "", text); fault.KindOf(err) != fault.Usage {
			t.Errorf("%q: %v", name, err)
		}
	}
}

package toolproto

import (
	"path"
	"strings"
	"testing"
)

// FuzzPath: what is taken for a path of the workspace stays in the workspace,
// names no element twice removed, and has one spelling.
func FuzzPath(f *testing.F) {
	for _, s := range []string{".", "", "a", "a/b", "../a", "a/../b", "a//b", "/a", "a/", `a\x0ab`, `\x61`, "a\x00b", "\xff", ".git/x", "a/."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := ParsePath(s)
		if err != nil {
			return
		}
		if name == "" || strings.HasPrefix(name, "/") || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../") || strings.IndexByte(name, 0) >= 0 {
			t.Errorf("%q is taken for the path %q", s, name)
		}
		if got := Escape(name); got != s {
			t.Errorf("%q reads as a path that is written %q", s, got)
		}
	})
}

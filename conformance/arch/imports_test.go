package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func imports(t *testing.T, f *file) []string {
	t.Helper()
	var out []string
	for _, s := range f.ast.Imports {
		p, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// TestImportTable holds every import of this module to the table of rooms.
func TestImportTable(t *testing.T) {
	for _, f := range tree(t) {
		if roomOf(f.dir) == nil {
			t.Errorf("%s: no room in the import table holds %q", f.path, f.dir)
			continue
		}
		for _, p := range imports(t, f) {
			to, ours := strings.CutPrefix(p, Module+"/")
			if ours && to != f.dir && !allows(f.dir, to, f.test) {
				t.Errorf("%s imports %s, which the table does not allow from %s", f.path, p, roomOf(f.dir).Path)
			}
		}
	}
}

// TestAllows is the positive control of the table itself: that it refuses.
func TestAllows(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"kernel", "crypt/journal", true},
		{"isolate/native", "authz/grant", true},
		{"isolate/native", "authz/policy", false},
		{"isolate/native", "crypt/keyring", false},
		{"authz", "isolate", false},
		{"crypt/receipt", "authz/grant", false},
		{"internal/canon", "isolate", false},
		{"internal/canon", "internal/fault", true},
		{"transport/httpapi", "crypt/keyring", false},
		{"transport/httpapi", "hub", true},
		{"transport/httpapi", "hub/store", false},
		{"transport/httpapi", "kernel", false},
		{"transport/httpapi/keystore", "hub/store", true},
		{"kernel", "hub", false},
		{"kernel", "hub/store", false},
		{"hub/run", "kernel", true},
		{"cmd/palyra", "kernel", true},
		{"cmd/palyra", "conformance/arch", false},
		{"cmd/palyra-cell", "kernel", false},
		{"cmd/palyra-cell", "isolate/native", true},
		{"kernel", "cmd/palyra", false},
		{"kernelx", "internal", false},
	} {
		if got := allows(c.from, c.to, false); got != c.want {
			t.Errorf("allows(%q, %q, false) = %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

// TestOneHome holds each third-party module to its folder.
func TestOneHome(t *testing.T) {
	used := make(map[string]bool)
	for _, f := range tree(t) {
		for _, p := range imports(t, f) {
			first, _, _ := strings.Cut(p, "/")
			if !strings.Contains(first, ".") {
				continue // standard library or ours
			}
			h := homeOf(p)
			switch {
			case h == nil:
				t.Errorf("%s imports %s, which has no home in conformance/arch", f.path, p)
				continue
			case h.TestOnly && !f.test:
				t.Errorf("%s imports %s, which is for tests only", f.path, p)
			case !h.TestOnly && !inAny(f.dir, h.Dirs) && !(f.test && inAny(f.dir, h.Tests)):
				t.Errorf("%s imports %s, whose home is %s", f.path, p, strings.Join(h.Dirs, ", "))
			}
			used[h.Module] = true
		}
	}
	for _, h := range homes {
		if !used[h.Module] {
			t.Errorf("module %s has a home and no user; drop it from the table", h.Module)
		}
		if h.Why == "" {
			t.Errorf("module %s: no reason", h.Module)
		}
	}
}

func homeOf(p string) *home {
	for i := range homes {
		if below(p, homes[i].Module) {
			return &homes[i]
		}
	}
	return nil
}

// TestGoMod compares go.mod with the homes: everything required directly has
// one, and nothing points away from its published version.
func TestGoMod(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(b), "\n") {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) > 0 && fields[0] == "replace" {
			t.Errorf("go.mod:%d: replace directive", i+1)
		}
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") || strings.Contains(line, "// indirect") {
			continue
		}
		if !slices.ContainsFunc(homes, func(h home) bool { return below(h.Module, fields[0]) }) {
			t.Errorf("go.mod:%d: %s has no home in conformance/arch", i+1, fields[0])
		}
	}
}

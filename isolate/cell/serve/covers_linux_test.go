package serve

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/native"
)

func folder(t *testing.T, path string) *os.File {
	t.Helper()
	d, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// workspaceOf makes a folder with the files of paths.
func workspaceOf(t *testing.T, paths ...string) *os.File {
	t.Helper()
	dir := t.TempDir()
	for _, p := range paths {
		p = filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder(t, dir)
}

// Operands that cannot be watched are refused, and by name.
func TestUnwatched(t *testing.T) {
	one := func() *budget.Pool { return budget.New(budget.Limits{Name: "operand_watches", Total: 1}) }
	plain := workspaceOf(t, "a/b/in", "in")
	none := one()
	if _, err := none.Take(budget.Owner{Name: "calls"}, 1); err != nil {
		t.Fatal(err)
	}
	link := workspaceOf(t, "sub/in")
	if err := os.Symlink("sub", filepath.Join(link.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		pool   *budget.Pool
		root   *os.File
		path   string
		reason string
	}{
		{"plain", one(), plain, "a/b/in", ""},
		{"at the top", one(), plain, "in", ""},
		{"too many calls", none, plain, "a/b/in", "budget"},
		{"file system without word of renames", one(), folder(t, "/proc"), "sys/kernel/ostype", "operand_unpinnable"},
		{"mount in the workspace", one(), folder(t, "/"), "proc/version", "operand_unpinnable"},
		{"link", one(), link, "link/in", "changed"},
		{"gone", one(), plain, "a/c/in", "changed"},
	} {
		var w covers
		err := w.arm(c.pool, int(c.root.Fd()), int(c.root.Fd()), []string{c.path})
		if fault.ReasonOf(err) != c.reason || (err == nil) != (c.reason == "") {
			t.Errorf("%s: %v, want reason %q", c.name, err, c.reason)
		}
		w.close()
		if c.pool != none {
			if h, err := c.pool.Take(budget.Owner{Name: "calls"}, 1); err != nil {
				t.Errorf("%s: its instance is held when it has ended: %v", c.name, err)
			} else {
				h.Release()
			}
		}
	}
}

// Each rename of a component is told, and one before all are watched is found.
func TestWatched(t *testing.T) {
	move := func(dir *os.File, from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir.Name(), from), filepath.Join(dir.Name(), to)); err != nil {
			t.Fatal(err)
		}
	}
	paths := []string{"a/b/in", "a/b/other", "a/x"}
	for _, c := range []struct{ from, aside string }{{"a", "z"}, {"a/b", "a/z"}, {"a/b/in", "z"}, {"a/x", "a/b/z"}, {"a/b/other", "a/b/o"}} {
		for _, early := range []bool{true, false} {
			dir := workspaceOf(t, append(paths, "evil/b/in", "evil/b/other", "evil/x")...)
			var w covers
			if err := w.arm(budget.New(budget.Limits{Name: "operand_watches", Total: 1}), int(dir.Fd()), int(dir.Fd()), paths); err != nil {
				t.Fatal(err)
			}
			if err := w.told(); err != nil {
				t.Errorf("nothing was moved: %v", err)
			}
			if early {
				places, err := w.look(int(dir.Fd()), paths)
				if err != nil {
					t.Fatal(err)
				}
				move(dir, c.from, c.aside)
				if err := inPlace(int(dir.Fd()), paths, places); err == nil {
					t.Errorf("%s moved before all was watched: not noticed", c.from)
				}
				move(dir, c.aside, c.from)
			} else {
				move(dir, c.from, c.aside)
				move(dir, c.aside, c.from)
			}
			if err := w.told(); fault.ReasonOf(err) != "operand_moved" {
				t.Errorf("%s moved and back: %v, want operand_moved", c.from, err)
			}
			w.close()
		}
	}
}

// The folders on the way to operands are found in names that a program can open, and what
// an argument says takes little memory.
func TestLeadingTo(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("a/", n) + strings.Repeat("../", n) + "in" }
	for _, c := range []struct {
		name, cwd string
		args      []string
		want      []string
	}{
		{"plain", "", []string{"in", "./in", "/workspace/in"}, nil},
		{"up", "", []string{"a/../in", "if=b/c/../../in", "a/../other"}, []string{"a", "b", "b/c", "if=b", "if=b/c"}},
		{"in a folder", "/sub", []string{"../in", "x/../../in"}, []string{"sub", "sub/x"}},
		{"too long for a path", "", []string{deep(20000)}, nil},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := leadingTo(&isolate.Spec{Cwd: native.WorkspaceDir + c.cwd, Argv: append([]string{"cat"}, c.args...)}, []string{"in"})
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 16<<20 {
			t.Errorf("%s: %d bytes for %d of arguments", c.name, after.TotalAlloc-before.TotalAlloc, len(strings.Join(c.args, "")))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %.99q, want %q", c.name, got[:min(len(got), 9)], c.want)
		}
	}
	var many []string
	for i := range 8 {
		many = append(many, string(rune('b'+i))+"/"+strings.TrimSuffix(deep(800), "in")+"../in")
	}
	if got := len(leadingTo(&isolate.Spec{Cwd: native.WorkspaceDir, Argv: many}, []string{"in"})); got != maxWatches+1 {
		t.Errorf("%d folders of many names, want %d, which are refused", got, maxWatches+1)
	}
}

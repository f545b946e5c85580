package stage

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/patch"
	"palyra/internal/toolproto"
)

// pair is an upper folder and a workspace, made by hand as overlayfs makes them.
type pair struct{ up, low string }

func newPair(t testing.TB) pair {
	t.Helper()
	p := pair{filepath.Join(t.TempDir(), "upper"), filepath.Join(t.TempDir(), "workspace")}
	for _, d := range []string{p.up, p.low} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	at := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must(t, os.WriteFile(at, []byte(text), 0o644))
}

func whiteout(t testing.TB, dir, name string) {
	t.Helper()
	at := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must(t, syscall.Mknod(at, syscall.S_IFCHR, 0))
}

func hide(t testing.TB, dir, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	must(t, syscall.Setxattr(filepath.Join(dir, name), opaque, []byte("y"), 0))
}

func (p pair) open(t testing.TB) (up, low *os.File) {
	t.Helper()
	up, err := os.Open(p.up)
	must(t, err)
	low, err = os.Open(p.low)
	must(t, err)
	t.Cleanup(func() { up.Close(); low.Close() })
	return up, low
}

func (p pair) read(t testing.TB, l Limits) (*List, error) {
	t.Helper()
	up, low := p.open(t)
	return Read(t.Context(), up, low, time.Now().Add(time.Hour), l)
}

func brief(l *List) []string {
	out := []string{}
	for _, c := range l.Changes {
		line := c.Kind + " " + c.Path
		for _, m := range c.Marks {
			line += " !" + m.Kind
		}
		out = append(out, line)
	}
	return out
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, p pair)
		want []string
	}{
		"nothing": {func(*testing.T, pair) {}, []string{}},
		"copied and as it was": {func(t *testing.T, p pair) {
			put(t, p.low, "d/a", "one")
			put(t, p.up, "d/a", "one")
		}, []string{}},
		"files": {func(t *testing.T, p pair) {
			put(t, p.low, "a", "one")
			put(t, p.low, "gone", "one")
			put(t, p.low, "x.sh", "one")
			put(t, p.up, "a", "two")
			put(t, p.up, "b", "new")
			put(t, p.up, "x.sh", "one")
			must(t, os.Chmod(filepath.Join(p.up, "x.sh"), 0o755))
			whiteout(t, p.up, "gone")
		}, []string{"modify a", "create b", "delete gone", "mode x.sh"}},
		"a deleted folder is listed in full": {func(t *testing.T, p pair) {
			put(t, p.low, "d/a", "one")
			put(t, p.low, "d/e/b", "one")
			whiteout(t, p.up, "d")
		}, []string{"delete d", "delete d/a", "delete d/e", "delete d/e/b"}},
		"deleted on both sides": {func(t *testing.T, p pair) { whiteout(t, p.up, "d") }, []string{}},
		"a replaced folder": {func(t *testing.T, p pair) {
			put(t, p.low, "d/a", "one")
			put(t, p.low, "d/b", "one")
			hide(t, p.up, "d")
			put(t, p.up, "d/b", "two")
			put(t, p.up, "d/c", "new")
		}, []string{"delete d/a", "modify d/b", "create d/c"}},
		"a folder for a file, and the reverse": {func(t *testing.T, p pair) {
			put(t, p.low, "d/a", "one")
			put(t, p.low, "f", "one")
			put(t, p.up, "d", "file")
			put(t, p.up, "f/a", "new")
		}, []string{"replace d", "delete d/a", "replace f", "create f/a"}},
		"links": {func(t *testing.T, p pair) {
			put(t, p.low, "a", "one")
			must(t, os.Symlink("a", filepath.Join(p.low, "same")))
			must(t, os.Symlink("a", filepath.Join(p.up, "same")))
			must(t, os.Symlink("/etc/passwd", filepath.Join(p.up, "abs")))
			must(t, os.Symlink("../../x", filepath.Join(p.up, "out")))
			must(t, os.Symlink("a/../../x", filepath.Join(p.up, "through")))
			must(t, os.Symlink("a", filepath.Join(p.up, "in")))
		}, []string{"create abs !leads_out", "create in", "create out !leads_out", "create through !leads_out"}},
		"a link of the workspace is not followed": {func(t *testing.T, p pair) {
			must(t, os.Symlink("/etc", filepath.Join(p.low, "d")))
			put(t, p.up, "d/passwd", "mine")
		}, []string{"replace d", "create d/passwd"}},
		"hostile": {func(t *testing.T, p pair) {
			put(t, p.up, "new\nline \x1b[31m\xff", "x")
			must(t, syscall.Mkfifo(filepath.Join(p.up, "fifo"), 0o644))
			put(t, p.up, "set", "x")
			must(t, os.Chmod(filepath.Join(p.up, "set"), 0o755|fs.ModeSetuid))
			must(t, os.Link(filepath.Join(p.up, "set"), filepath.Join(p.up, "set2")))
			put(t, p.up, ".git/hooks/pre-commit", "x")
			put(t, p.up, ".git/objects/aa/bb", "x")
			put(t, p.up, ".github/workflows/ci.yml", "x")
			put(t, p.up, "Readme", "x")
			put(t, p.low, "README", "x")
		}, []string{"create .git !git", "create .git/hooks !git", "create .git/hooks/pre-commit !hook", "create .git/objects !git",
			"create .git/objects/aa !git", "create .git/objects/aa/bb !git", "create .github", "create .github/workflows",
			"create .github/workflows/ci.yml !ci", "create Readme !case", "create fifo !special", `create new\x0aline \x1b[31m\xff`,
			"create set !set_id", "create set2 !set_id"}},
		"rights of others": {func(t *testing.T, p pair) {
			for _, f := range []string{"opened", "open", "closed"} {
				put(t, p.low, f, "x")
				put(t, p.up, f, "x")
			}
			put(t, p.low, "d/a", "x")
			put(t, p.up, "d/new", "x")
			for name, mode := range map[string]fs.FileMode{p.up + "/opened": 0o646, p.low + "/open": 0o666, p.up + "/open": 0o667,
				p.low + "/closed": 0o666, p.up + "/d": 0o777, p.up + "/d/new": 0o602} {
				must(t, os.Chmod(name, mode))
			}
			must(t, os.Symlink("a", filepath.Join(p.up, "link")))
		}, []string{"mode closed", "mode d !others_write", "create d/new !others_write", "create link", "mode open", "mode opened !others_write"}},
		"links in the place of folders": {func(t *testing.T, p pair) {
			for _, name := range []string{".github", ".husky", ".vscode"} {
				must(t, os.Symlink("d", filepath.Join(p.up, name)))
			}
			put(t, p.up, "d/tasks.json", "x")
		}, []string{"create .github !ci", "create .husky !hook", "create .vscode !editor", "create d", "create d/tasks.json"}},
		"a folder that git takes for a repository": {func(t *testing.T, p pair) {
			put(t, p.low, "lib/refs/x", "x")
			put(t, p.up, "lib/objects/x", "x")
			put(t, p.up, "lib/HEAD", "x")
			put(t, p.up, "lib/config", "x")
			put(t, p.up, "lib/hooks/post-checkout", "x")
			put(t, p.up, "other/config", "x")
		}, []string{"create lib/HEAD !git", "create lib/config !git", "create lib/hooks", "create lib/hooks/post-checkout !hook",
			"create lib/objects !git", "create lib/objects/x", "create other", "create other/config"}},
		"a repository whose configuration came before": {func(t *testing.T, p pair) {
			put(t, p.low, "lib/config", "x")
			put(t, p.up, "lib/HEAD", "x")
			put(t, p.up, "lib/objects/x", "x")
			put(t, p.up, "lib/refs/x", "x")
			put(t, p.low, "old/refs/x", "x")
			put(t, p.low, "old/objects/x", "x")
			put(t, p.low, "old/head", "x")
			put(t, p.up, "old/refs/y", "x")
		}, []string{"create lib/HEAD !git", "create lib/objects !git", "create lib/objects/x", "create lib/refs !git", "create lib/refs/x", "create old/refs/y"}},
		"a file renamed in case alone": {func(t *testing.T, p pair) {
			put(t, p.low, "README", "x")
			whiteout(t, p.up, "README")
			put(t, p.up, "Readme", "x")
		}, []string{"delete README", "create Readme"}},
		"files that the host's repository names": {func(t *testing.T, p pair) {
			put(t, p.low, ".git/config", "[core]\n\thooksPath = Tools/Hooks\n[filter \"x\"]\n\tclean = ./bin/clean.sh --all\n[remote \"o\"]\n\turl = origin\n[include]\n\tpath = ../etc/gitconfig\n[submodule \"s\"]\n\tupdate = !bin/update\n")
			must(t, os.MkdirAll(filepath.Join(p.low, ".git/hooks"), 0o755))
			must(t, os.Symlink("../../scripts/check", filepath.Join(p.low, ".git/hooks/pre-commit")))
			must(t, os.Symlink(filepath.Join(p.low, "scripts/push"), filepath.Join(p.low, ".git/hooks/pre-push")))
			must(t, os.Symlink("/usr/bin/true", filepath.Join(p.low, ".git/hooks/post-merge")))
			put(t, p.low, "scripts/push", "one")
			put(t, p.up, "Tools/Hooks/commit-msg", "x")
			put(t, p.up, "bin/clean.sh", "x")
			put(t, p.up, "bin/other", "x")
			put(t, p.up, "bin/update", "x")
			put(t, p.up, "etc/gitconfig", "x")
			put(t, p.up, "scripts/check", "x")
			put(t, p.up, "origin", "x")
			whiteout(t, p.up, "scripts/push")
		}, []string{"create Tools", "create Tools/Hooks !hook", "create Tools/Hooks/commit-msg !hook", "create bin", "create bin/clean.sh !git",
			"create bin/other", "create bin/update !git", "create etc", "create etc/gitconfig !git", "create origin", "create scripts/check !hook", "delete scripts/push !hook"}},
		"files that the host has links to where programs look": {func(t *testing.T, p pair) {
			must(t, os.Symlink("docs/agents.md", filepath.Join(p.low, "CLAUDE.md")))
			must(t, os.Symlink("etc/code", filepath.Join(p.low, ".vscode")))
			put(t, p.low, ".claude/x", "x")
			must(t, os.Symlink("../etc/claude.json", filepath.Join(p.low, ".claude/settings.json")))
			put(t, p.low, "etc/code/settings.json", "x")
			must(t, os.Symlink("/etc/passwd", filepath.Join(p.low, ".envrc")))
			put(t, p.up, "docs/agents.md", "x")
			put(t, p.up, "etc/code/tasks.json", "x")
			put(t, p.up, "etc/claude.json", "x")
			put(t, p.up, "etc/passwd", "x")
		}, []string{"create docs", "create docs/agents.md !agent", "create etc/claude.json !agent", "create etc/code/tasks.json !editor", "create etc/passwd"}},
		"a link in the place of a folder that the host's hooks lie in": {func(t *testing.T, p pair) {
			put(t, p.low, ".git/config", "[core]\n\thooksPath = a/b/hooks\n")
			put(t, p.low, "a/b/hooks/pre-commit", "x")
			whiteout(t, p.up, "a/b")
			must(t, os.Remove(filepath.Join(p.up, "a/b")))
			must(t, os.Symlink("c", filepath.Join(p.up, "a/b")))
		}, []string{"replace a/b !hook", "delete a/b/hooks !hook", "delete a/b/hooks/pre-commit !hook"}},
		"a whiteout in the workspace is its own": {func(t *testing.T, p pair) {
			whiteout(t, p.low, "w")
			put(t, p.up, "w", "x")
		}, []string{"create w"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			c.make(t, p)
			l, err := p.read(t, Limits{})
			must(t, err)
			if got := brief(l); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs an unprivileged user")
	}
	p := newPair(t)
	put(t, p.up, "a", "x")
	must(t, os.Chmod(filepath.Join(p.up, "a"), 0))
	l, err := p.read(t, Limits{})
	must(t, err)
	if got := brief(l); !slices.Equal(got, []string{"create a !unreadable"}) {
		t.Errorf("got %q", got)
	}
	must(t, os.Mkdir(filepath.Join(p.up, "d"), 0))
	if _, err := p.read(t, Limits{}); fault.ReasonOf(err) != "io_error" || !strings.Contains(fault.HintOf(err), "chmod -R u+rwX .") {
		t.Errorf("a folder: %v, hint %q", err, fault.HintOf(err))
	}
}

func TestLimits(t *testing.T) {
	p := newPair(t)
	for i := range 20 {
		put(t, p.up, fmt.Sprint("d/", i), strings.Repeat("x", 100))
	}
	put(t, p.up, "a/b/c/d", "x")
	for name, c := range map[string]struct {
		l  Limits
		ok bool
	}{"default": {Limits{}, true}, "entries": {Limits{Entries: 20}, false}, "bytes": {Limits{Bytes: 1999}, false}, "depth": {Limits{Depth: 3}, false},
		"names": {Limits{Names: 86}, false}, "exact": {Limits{Entries: 26, Bytes: 2001, Depth: 4, Names: 87}, true}} {
		_, err := p.read(t, c.l)
		if c.ok && err != nil || !c.ok && fault.ReasonOf(err) != "too_large" {
			t.Errorf("%s: %v", name, err)
		}
	}
	sparse := filepath.Join(p.up, "sparse")
	put(t, p.up, "sparse", "")
	must(t, os.Truncate(sparse, 1<<40))
	if _, err := p.read(t, Limits{Bytes: 1 << 20}); fault.ReasonOf(err) != "too_large" {
		t.Errorf("a file of holes: %v", err)
	}
	// What is long is escaped as well: a byte can take four.
	p = newPair(t)
	put(t, p.low, "was/x", "x")
	must(t, os.Symlink(strings.Repeat("\x01", 1000), filepath.Join(p.low, "was/link")))
	whiteout(t, p.up, "was")
	for limit, ok := range map[int64]bool{4000 + 3 + 5 + 8 - 1: false, 4000 + 3 + 5 + 8: true} {
		if _, err := p.read(t, Limits{Names: limit}); ok != (err == nil) || !ok && fault.ReasonOf(err) != "too_large" {
			t.Errorf("%d bytes of names: %v", limit, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	up, low := p.open(t)
	if _, err := Read(ctx, up, low, time.Now(), Limits{}); fault.ReasonOf(err) != "canceled" {
		t.Errorf("canceled: %v", err)
	}
}

// TestStale: a change is stale if the host's file has changed since the layer was made, also
// after the program wrote its name anew.
func TestStale(t *testing.T) {
	p := newPair(t)
	put(t, p.low, "a", "one")
	put(t, p.low, "gone", "one")
	put(t, p.low, "new", "one") // by another, after the layer was made
	put(t, p.up, "a", "two")
	whiteout(t, p.up, "gone")
	for at, want := range map[time.Time][]bool{time.Now().Add(time.Hour): {false, false}, time.Unix(1, 0): {true, true}} {
		up, low := p.open(t)
		l, err := Read(t.Context(), up, low, at, Limits{})
		must(t, err)
		if got := []bool{l.Changes[0].Stale, l.Changes[1].Stale}; !slices.Equal(got, want) {
			t.Errorf("made %v: %v, want %v", at, got, want)
		}
	}
}

// TestDigest: the digest changes with each thing that would be written, and with nothing else.
func TestDigest(t *testing.T) {
	sum := func(l *List) string {
		d, err := l.Digest()
		must(t, err)
		return d.String()
	}
	file := func(mode, text string) *Node {
		return &Node{Type: File, Mode: mode, Size: int64(len(text)), Digest: canon.Sum([]byte(text))}
	}
	base := func() *List {
		return &List{Version: Version, Changes: []Change{{Path: "a", Kind: Modify, Old: file("0644", "x"), New: file("0644", "y"), raw: "a"}}}
	}
	want := sum(base())
	l := base()
	l.Changes[0].Stale, l.Changes[0].Marks = true, []Mark{{"ci", "x"}}
	if got := sum(l); got != want {
		t.Error("marks are part of the digest")
	}
	seen := map[string]bool{want: true}
	for i, change := range []func(c *Change){
		func(c *Change) { c.Path = "b" }, func(c *Change) { c.New.Mode = "0755" }, func(c *Change) { c.New.Digest = canon.Sum(nil) },
		func(c *Change) { c.Old.Digest = canon.Sum(nil) }, func(c *Change) { c.Old = nil }, func(c *Change) { c.Kind = Create }, func(c *Change) { c.New.Size = 9 },
	} {
		l := base()
		change(&l.Changes[0])
		got := sum(l)
		if seen[got] {
			t.Errorf("%d does not change the digest", i)
		}
		seen[got] = true
	}
}

// tree returns the files and links below a folder, as git sees them.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	must(t, filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, at)
		fi, err := d.Info()
		switch {
		case err != nil:
		case fi.Mode()&fs.ModeSymlink != 0:
			out[rel], err = os.Readlink(at)
			out[rel] = "link " + out[rel]
		default:
			var b []byte
			b, err = os.ReadFile(at)
			out[rel] = fmt.Sprintf("%v %q", fi.Mode()&0o100 != 0, b)
		}
		return err
	}))
	return out
}

// TestPatchApplies: git apply makes of the workspace what the program saw.
func TestPatchApplies(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	p := newPair(t)
	want := t.TempDir()
	both := func(name, text string) { put(t, p.low, name, text); put(t, want, name, text) }
	now := func(name, text string) { put(t, p.up, name, text); put(t, want, name, text) }
	lines := func(n int, word string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintln(&b, word, i)
		}
		return b.String()
	}
	both("same", "x")
	both("a", lines(100, "line"))
	now("a", strings.Replace(strings.Replace(lines(100, "line"), "line 3\n", "", 1), "line 90\n", "line 90\nmore\n", 1))
	both("no end", "one\ntwo")
	now("no end", "one\ntwo\n")
	both("empty", "")
	now("empty", "filled\n")
	both("full", "filled")
	now("full", "")
	now("new empty", "")
	now("d/e/new\tname \"q\" \\ é \x01", "x\n")
	both("run", "#!/bin/sh\n")
	now("run", "#!/bin/sh\n")
	both("all", lines(3000, "old"))
	now("all", lines(3000, "new"))
	both("bin", "a\x00b")
	now("bin", strings.Repeat("a\x00c", 300))
	now("newbin", "\x00")
	both("gone/bin", "\x00\x01")
	both("gone/text", "text")
	both("turned", "file")
	for _, dir := range []string{p.up, want} {
		must(t, os.Chmod(filepath.Join(dir, "run"), 0o755))
		must(t, os.Symlink("a", filepath.Join(dir, "link")))
	}
	must(t, os.Symlink("no end", filepath.Join(p.low, "moved")))
	must(t, os.Symlink("empty", filepath.Join(p.up, "moved")))
	must(t, os.Symlink("empty", filepath.Join(want, "moved")))
	must(t, os.Symlink("a", filepath.Join(p.up, "turned")))
	must(t, os.Remove(filepath.Join(want, "turned")))
	must(t, os.Symlink("a", filepath.Join(want, "turned")))
	whiteout(t, p.up, "gone")
	must(t, os.RemoveAll(filepath.Join(want, "gone")))
	both("flat/a/b", "x")
	must(t, os.RemoveAll(filepath.Join(want, "flat")))
	now("flat", "a file where a folder was")
	both("deep", "x")
	must(t, os.Remove(filepath.Join(want, "deep")))
	now("deep/a/b", "a folder where a file was")
	put(t, p.up, ".git/config", "evil")
	must(t, syscall.Mkfifo(filepath.Join(p.up, "fifo"), 0o644))
	must(t, os.Mkdir(filepath.Join(p.up, "hollow"), 0o755))

	l, err := p.read(t, Limits{})
	must(t, err)
	up, low := p.open(t)
	var out bytes.Buffer
	skipped, err := l.Patch(t.Context(), &out, up, low, "", true)
	must(t, err)
	var names []string
	for _, s := range skipped {
		names = append(names, s.Path)
	}
	if want := []string{".git", ".git/config", "fifo", "hollow"}; !slices.Equal(names, want) {
		t.Errorf("left out %q, want %q", names, want)
	}
	cmd := exec.Command(git, "apply", "-")
	cmd.Dir, cmd.Stdin = p.low, &out
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(p.low))
	text := out.String()
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%.3000s", err, msg, text)
	}
	got, wanted := tree(t, p.low), tree(t, want)
	for name := range wanted {
		if got[name] != wanted[name] {
			t.Errorf("%q: got %.200s\nwant %.200s", name, got[name], wanted[name])
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("%d files, want %d", len(got), len(wanted))
	}
}

// TestPatchChanged: a patch is of what was listed, or none.
func TestPatchChanged(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, p pair){
		"layer":     func(t *testing.T, p pair) { put(t, p.up, "d/a", "three") },
		"workspace": func(t *testing.T, p pair) { put(t, p.low, "d/a", "three") },
		"a link": func(t *testing.T, p pair) {
			must(t, os.RemoveAll(filepath.Join(p.up, "d")))
			must(t, os.Symlink(p.low, filepath.Join(p.up, "d")))
		},
	} {
		p := newPair(t)
		put(t, p.low, "d/a", "one")
		put(t, p.up, "d/a", "two")
		l, err := p.read(t, Limits{})
		must(t, err)
		change(t, p)
		up, low := p.open(t)
		if _, err := l.Patch(t.Context(), new(bytes.Buffer), up, low, "", false); fault.ReasonOf(err) != "changed" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// applied runs our own reader of patches over a diff.
func applied(t testing.TB, old, now []byte) {
	t.Helper()
	var out bytes.Buffer
	p := &patcher{w: &out}
	if why, err := p.file("f", &side{"100644", old}, &side{"100644", now}); err != nil || why != "" {
		if bytes.Equal(old, now) || why == SkipBinary {
			return
		}
		t.Fatalf("%q → %q: %s, %v", old, now, why, err)
	}
	files, err := patch.Parse(out.Bytes())
	if err != nil || len(files) != 1 {
		t.Fatalf("%q → %q: %v\n%s", old, now, err, out.String())
	}
	got, _, err := files[0].Apply(old, 0)
	if err != nil || !bytes.Equal(got, now) {
		t.Fatalf("%q → %q: got %q, %v\n%s", old, now, got, err, out.String())
	}
}

func TestDiffs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		text := func() []byte {
			var b []byte
			for range r.IntN(12) {
				b = append(b, byte('a'+r.IntN(4)))
				if r.IntN(3) > 0 {
					b = append(b, '\n')
				}
			}
			return b
		}
		applied(t, text(), text())
	}
}

func FuzzDiff(f *testing.F) {
	f.Add([]byte("a\nb\n"), []byte("a\nc"))
	f.Add([]byte(""), []byte("\n\n"))
	f.Add([]byte("a\r\n-- \n"), []byte("--- a\n+++ b\n@@ -1 +1 @@\n"))
	f.Fuzz(func(t *testing.T, old, now []byte) {
		if len(old)+len(now) < 1<<16 {
			applied(t, old, now)
		}
	})
}

// FuzzNames: whatever names and types a layer has, reading it ends in a list whose names lead
// back to them, or in an error of its own.
func FuzzNames(f *testing.F) {
	f.Add("a\nb", uint8(0), "x")
	f.Add("..x", uint8(3), "../../etc")
	f.Add("\xff\\x41", uint8(2), "/")
	f.Fuzz(func(t *testing.T, name string, kind uint8, target string) {
		if name == "" || name == "." || name == ".." || len(name) > 200 || strings.ContainsAny(name, "/\x00") {
			return
		}
		p := newPair(t)
		at := filepath.Join(p.up, name)
		var err error
		switch kind % 5 {
		case 0:
			err = os.WriteFile(at, []byte(target), fs.FileMode(kind)|0o400)
		case 1:
			err = os.Mkdir(at, 0o700)
		case 2:
			err = syscall.Mkfifo(at, 0o600)
		case 3:
			if target == "" || strings.Contains(target, "\x00") {
				return
			}
			err = os.Symlink(target, at)
		case 4:
			put(t, p.low, name, target)
			err = syscall.Mknod(at, syscall.S_IFCHR, 0)
		}
		if err != nil {
			return
		}
		l, err := p.read(t, Limits{})
		if err != nil || len(l.Changes) != 1 || l.Changes[0].raw != name || l.Changes[0].Path != toolproto.Escape(name) {
			t.Fatalf("%q: %+v, %v", name, l, err)
		}
		if _, err := l.Digest(); err != nil {
			t.Fatal(err)
		}
		up, low := p.open(t)
		if _, err := l.Patch(t.Context(), new(bytes.Buffer), up, low, "", true); err != nil {
			t.Fatal(err)
		}
	})
}

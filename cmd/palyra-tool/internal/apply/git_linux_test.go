package apply

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/git"
	"palyra/internal/sample"
	"palyra/internal/toolproto"
)

// sh runs a script in a folder, with git as nobody configured it.
func sh(t testing.TB, in, script string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = in
	cmd.Env = append(os.Environ(), "HOME="+in, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=u", "GIT_AUTHOR_EMAIL=u@example.org",
		"GIT_COMMITTER_NAME=u", "GIT_COMMITTER_EMAIL=u@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// opened is a workspace as palyra-tool reads its repository.
func opened(t testing.TB, dir string) (repository, func()) {
	t.Helper()
	r, err := enter(dir)
	if err != nil {
		t.Fatal(err)
	}
	return repository{r}, r.close
}

// state is what counts of a workspace with a repository: refs, HEAD, index and files; and what an
// apply may not leave.
func state(t testing.TB, dir string) map[string]string {
	t.Helper()
	f, done := opened(t, dir)
	defer done()
	out := make(map[string]string)
	refs, err := git.ReadRefs(f, toolproto.MaxApplied)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range refs.Names {
		out[name] = r.ID.String() + r.Odd
	}
	h, err := git.ReadHead(f)
	if err != nil {
		t.Fatal(err)
	}
	out["HEAD"] = h.String()
	b, err := git.ReadFile(f, "index", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	x, err := git.ParseIndex(b)
	if err != nil {
		t.Fatal(err)
	}
	out["index"] = fmt.Sprintf("%x", x.Digest())
	for name, s := range snapshot(t, dir) {
		base := filepath.Base(name)
		if strings.HasPrefix(name, ".git/objects/pack/pack-") {
			continue
		}
		if !strings.HasPrefix(name, ".git/") || strings.Contains(base, "palyra") || strings.HasSuffix(base, ".lock") || strings.HasPrefix(name, ".git/refs/heads/topic") && s[0] == 'd' {
			out["file "+name] = s
		}
	}
	return out
}

// repositories makes a workspace, and what a program made of it: a commit, a new branch in a
// folder, one that goes and is packed, another HEAD, and a staged file.
func repositories(t testing.TB) (host, layer string) {
	top := tempDir(t)
	sh(t, top, `git init -q -b main host && cd host
echo one >a && git add a && git commit -qm first && git branch old && git branch loose && git tag was && git pack-refs --all
git branch -f loose main && echo x >.git/info/exclude
cp -a . ../layer && cd ../layer
echo two >a && git commit -qam second && git branch -qD old && git checkout -q -b topic/deep/x && echo s >staged && git add staged && git commit -qm third && echo t >staged && git add staged
git branch -f loose main && git tag -f was main >/dev/null`)
	return filepath.Join(top, "host"), filepath.Join(top, "layer")
}

// bringing makes the job that makes of one what the other is.
func bringing(t testing.TB, host, layer string) *job {
	t.Helper()
	was, done := opened(t, host)
	defer done()
	is, done := opened(t, layer)
	defer done()
	left := &git.Budget{Left: 1 << 30}
	from, to := git.NewObjects(is, left), git.NewObjects(was, left)
	defer from.Close()
	defer to.Close()
	w := git.NewWalk(context.Background(), from, to, git.Bounds{})
	refs := func(f git.Folder) *git.Refs {
		r, err := git.ReadRefs(f, toolproto.MaxApplied)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := refs(was), refs(is)
	g := &toolproto.GitChanges{Refs: []toolproto.RefChange{}}
	all := maps.Clone(a.Names)
	maps.Copy(all, b.Names)
	gone := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		x := toolproto.RefChange{Name: name, Old: a.Names[name].ID.String(), New: b.Names[name].ID.String()}
		if x.Old == x.New {
			continue
		}
		if a.Names[name].Loose {
			x.Mode = "0644"
		}
		if x.New == "" && a.Names[name].Packed {
			gone[name] = true
		}
		if x.New != "" {
			if _, err := w.Take(b.Names[name].ID, 0); err != nil {
				t.Fatal(err)
			}
		}
		g.Refs = append(g.Refs, x)
	}
	var payload []byte
	if len(gone) > 0 {
		p := a.PackedWithout(gone)
		g.Packed = &toolproto.PackedChange{Old: canon.Sum(a.Packed), OldSize: int64(len(a.Packed)), New: canon.Sum(p), Size: int64(len(p)), Mode: "0644"}
		payload = append(payload, p...)
	}
	heads := [2]string{}
	var index [2]*git.Index
	for i, f := range []git.Folder{was, is} {
		h, err := git.ReadHead(f)
		if err != nil {
			t.Fatal(err)
		}
		heads[i] = h.String()
		text, err := git.ReadFile(f, "index", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if index[i], err = git.ParseIndex(text); err != nil {
			t.Fatal(err)
		}
	}
	if heads[0] != heads[1] {
		g.Head = &toolproto.HeadChange{Old: heads[0], New: heads[1], Mode: "0644"}
	}
	if index[0].Digest() != index[1].Digest() {
		p := index[1].Plain().Bytes()
		for _, e := range index[1].Entries {
			if _, err := w.Take(e.ID, git.Blob); err != nil {
				t.Fatal(err)
			}
		}
		g.Index = &toolproto.IndexChange{Old: index[0].Digest(), New: index[1].Digest(), Size: int64(len(p)), Mode: "0644"}
		payload = append(payload, p...)
	}
	if p := w.Pack(); p != nil {
		g.Pack = &toolproto.ObjectsChange{Digest: canon.Sum(p), Size: int64(len(p)), Objects: w.Objects()}
		payload = append(payload, p...)
	}
	old, now := snapshot(t, host), snapshot(t, layer)
	for _, s := range []map[string]string{old, now} {
		maps.DeleteFunc(s, func(name, _ string) bool { return name == ".git" || strings.HasPrefix(name, ".git/") })
	}
	j := between(t, old, now)
	line, content, _ := bytes.Cut(j.Payload, []byte("\n"))
	var list toolproto.ChangeList
	if err := canon.Decode(line, &list, canon.Limits{Bytes: 1 << 20, Depth: 8}); err != nil {
		t.Fatal(err)
	}
	list.Version, list.Git = 2, g
	line, err := canon.Marshal(&list)
	if err != nil {
		t.Fatal(err)
	}
	j.In.Digest = canon.Sum(line).String()
	j.Payload = slices.Concat(line, []byte("\n"), content, payload)
	return j
}

func same(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	for name := range maps.Keys(got) {
		if got[name] != want[name] {
			t.Errorf("%s: %s is %q, want %q", what, name, got[name], want[name])
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s: %s is missing, want %q", what, name, want[name])
		}
	}
}

// TestGit: refs, HEAD, index and objects come as one, git finds nothing wrong with them, and all
// goes back.
func TestGit(t *testing.T) {
	host, layer := repositories(t)
	former, latter := state(t, host), state(t, layer)
	was := clone(t, host)
	there := bringing(t, host, layer)
	r, err := there.run(host, false, nil)
	if err != nil || !r.Applied || r.Refs != 5 {
		t.Fatalf("%+v, %v", r, err)
	}
	same(t, "applied", state(t, host), latter)
	sh(t, host, "git fsck --strict && git reflog >/dev/null && git log --all --oneline >/dev/null")
	if got := sh(t, host, "git status --porcelain"); got != "M  staged" {
		t.Errorf("status: %s", got)
	}
	same(t, "looked at", state(t, host), latter)
	if r, err := bringing(t, host, was).run(host, false, nil); err != nil || !r.Applied {
		t.Fatalf("%+v, %v", r, err)
	}
	same(t, "taken back", state(t, host), former)
	sh(t, host, "git fsck --strict")
	if got := sh(t, host, "git status --porcelain"); got != "" {
		t.Errorf("status: %s", got)
	}
}

// TestGitKilled: killed with SIGKILL at each step, the next process makes it whole or takes it
// back, and so it does if it's killed itself. Objects may stay, no ref needs them.
func TestGitKilled(t *testing.T) {
	host, layer := repositories(t)
	former, latter := state(t, host), state(t, layer)
	j := bringing(t, host, layer)
	all := steps(t, j, clone(t, host), false)
	if len(all) < 25 {
		t.Fatalf("only %d steps: %v", len(all), all)
	}
	whole := false
	for i, at := range all {
		whole = whole || strings.HasPrefix(at, StepSynced)
		want := former
		if whole {
			want = latter
		}
		dir := clone(t, host)
		kill(t, deed{Dir: dir, Step: at, Job: *j})
		var thens []string
		if i%sample.Of(4, 1) == 0 {
			thens = steps(t, j, clone(t, dir), true)
		}
		if n := len(thens); n > 0 {
			thens = slices.Repeat(thens, 2)[i%n:][:sample.Of(1, n)]
		}
		for _, then := range append(thens, "") {
			dir := clone(t, dir)
			if then != "" {
				kill(t, deed{Dir: dir, Step: then, Recover: true, Job: *j})
			}
			r, err := j.run(dir, true, nil)
			if err == nil && r.Applied && !whole { // all is in place, and not yet marked
				want = latter
			}
			if err != nil || r.Left != nil {
				t.Errorf("killed at %s, then at %q: %+v, %v", at, then, r, err)
			}
			same(t, "killed at "+at+", then at "+then, state(t, dir), want)
			if then == "" {
				sh(t, dir, "git fsck --strict --connectivity-only && git status >/dev/null")
			}
		}
	}
}

// TestGitFails: an error at each step before the mark takes all back but objects.
func TestGitFails(t *testing.T) {
	host, layer := repositories(t)
	former := state(t, host)
	j := bringing(t, host, layer)
	for _, at := range steps(t, j, clone(t, host), false) {
		if strings.HasPrefix(at, StepDropped) {
			continue
		}
		dir := clone(t, host)
		if _, err := j.run(dir, false, func(name string) error {
			if name == at {
				return fault.New(fault.Unavailable, "disk_full", "test", nil)
			}
			return nil
		}); fault.ReasonOf(err) != "disk_full" {
			t.Errorf("at %s: %v", at, err)
		}
		same(t, "failed at "+at, state(t, dir), former)
	}
}

// TestGitMoved: whatever the host does to a ref, to HEAD or to the index before or during the job,
// by git or past it, it's refused by name, stays, and all else is as it was.
func TestGitMoved(t *testing.T) {
	host, layer := repositories(t)
	j := bringing(t, host, layer)
	git := func(script string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { sh(t, dir, script) }
	}
	write := func(name, text string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, ".git", name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := sh(t, host, "git commit-tree -p main -m other main^{tree}")
	for name, c := range map[string]struct {
		do      func(t *testing.T, dir string)
		reason  string
		keptOut bool // git's locks keep it out while the job is at work
	}{
		"a commit":            {git("git update-ref refs/heads/main " + other), "changed", true},
		"a branch that comes": {git("git update-ref refs/heads/topic/deep/x main"), "changed", true},
		"one above it":        {git("git update-ref refs/heads/topic/deep main"), "changed", true},
		"one that goes moved": {git("git update-ref refs/heads/old " + other), "changed", true},
		"HEAD":                {git("git symbolic-ref HEAD refs/heads/loose"), "changed", true},
		"the index":           {git("echo y >y; git add y; rm y"), "changed", true},
		"a lock":              {write("refs/heads/main.lock", ""), "locked", false},
		"HEAD's lock":         {write("HEAD.lock", ""), "locked", false},
		"the index's lock":    {write("index.lock", ""), "locked", false},
		"a link for a ref": {func(t *testing.T, dir string) {
			os.Remove(dir + "/.git/refs/heads/loose")
			os.Symlink("/etc/passwd", dir+"/.git/refs/heads/loose")
		}, "changed", false},
		"another format": {git("git config core.repositoryformatversion 1 && git config extensions.refStorage reftable"), "cannot_apply", false},
	} {
		dir := clone(t, host)
		c.do(t, dir)
		want := state(t, dir)
		if _, err := j.run(dir, false, nil); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", name, err)
		}
		same(t, name, state(t, dir), want)
		if !c.keptOut {
			continue
		}
		// git itself is kept out while the job is at work.
		dir = clone(t, host)
		kept := false
		if _, err := j.run(dir, false, func(step string) error {
			if !kept && strings.HasPrefix(step, StepCommitted) {
				kept = true
				before := sh(t, dir, "cat .git/refs/heads/main .git/HEAD 2>/dev/null || true")
				cmd := exec.Command("sh", "-ec", "git commit --allow-empty -qm x; exit 1")
				cmd.Dir = dir
				out, _ := cmd.CombinedOutput()
				if after := sh(t, dir, "cat .git/refs/heads/main .git/HEAD 2>/dev/null || true"); after != before || !strings.Contains(string(out), "lock") {
					t.Errorf("%s: git came in between: %s", name, out)
				}
			}
			return nil
		}); err != nil || !kept {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A writer that knows no locks: its value stays, and all else goes back.
	for _, name := range []string{"refs/heads/loose", "HEAD"} {
		dir := clone(t, host)
		want := state(t, dir)
		text := other + "\n"
		want[name] = other
		done := false
		_, err := j.run(dir, false, func(step string) error {
			if !done && strings.HasPrefix(step, StepStaged) {
				done = true
				write(name, text)(t, dir)
			}
			return nil
		})
		if r := fault.ReasonOf(err); r != "changed" && r != "exists" {
			t.Errorf("%s past git's locks: %v", name, err)
		}
		same(t, name+" past git's locks", state(t, dir), want)
	}
}

// TestGitRefused: a list or pack that isn't what it says is refused before anything is touched.
func TestGitRefused(t *testing.T) {
	host, layer := repositories(t)
	want := state(t, host)
	for what, c := range map[string]struct {
		spoil  func(g *toolproto.GitChanges, payload []byte) []byte
		reason string
	}{
		"another pack": {func(g *toolproto.GitChanges, p []byte) []byte { p[len(p)-30] ^= 1; return p }, "invalid_input"},
		"a pack with its digest": {func(g *toolproto.GitChanges, p []byte) []byte {
			at := len(p) - int(g.Pack.Size)
			p[at+40] ^= 1
			g.Pack.Digest = canon.Sum(p[at:])
			return p
		}, "invalid_input"},
		"no pack": {func(g *toolproto.GitChanges, p []byte) []byte {
			n := g.Pack.Size
			g.Pack = nil
			return p[:len(p)-int(n)]
		}, "cannot_apply"},
		"an object that's nowhere": {func(g *toolproto.GitChanges, p []byte) []byte {
			g.Refs[1].New = "0123456789012345678901234567890123456789"
			return p
		}, "cannot_apply"},
		"a tree for a branch": {func(g *toolproto.GitChanges, p []byte) []byte {
			g.Refs[1].New = sh(t, host, "git rev-parse main^{tree}")
			return p
		}, "cannot_apply"},
		"a ref outside":    {func(g *toolproto.GitChanges, p []byte) []byte { g.Refs[0].Name = "refs/../hooks/x"; return p }, "invalid_input"},
		"another's ref":    {func(g *toolproto.GitChanges, p []byte) []byte { g.Refs[4].Name = "refs/zzz"; return p }, "invalid_input"},
		"a lock for a ref": {func(g *toolproto.GitChanges, p []byte) []byte { g.Refs[0].Name = "refs/heads/a.lock"; return p }, "invalid_input"},
		"a HEAD outside":   {func(g *toolproto.GitChanges, p []byte) []byte { g.Head.New = "ref: refs/heads/../../x"; return p }, "invalid_input"},
		"a HEAD of lines":  {func(g *toolproto.GitChanges, p []byte) []byte { g.Head.New = "ref: refs/heads/a\\x0ab"; return p }, "invalid_input"},
		"another index":    {func(g *toolproto.GitChanges, p []byte) []byte { g.Index.New[0] ^= 1; return p }, "invalid_input"},
		"a ref twice":      {func(g *toolproto.GitChanges, p []byte) []byte { g.Refs[1].Name = g.Refs[0].Name; return p }, "invalid_input"},
		"more":             {func(g *toolproto.GitChanges, p []byte) []byte { return append(p, 'x') }, "invalid_input"},
	} {
		dir := clone(t, host)
		j := bringing(t, host, layer)
		line, rest, _ := bytes.Cut(j.Payload, []byte("\n"))
		var list toolproto.ChangeList
		if err := canon.Decode(line, &list, canon.Limits{Bytes: 1 << 20, Depth: 8}); err != nil {
			t.Fatal(err)
		}
		rest = c.spoil(list.Git, bytes.Clone(rest))
		line, err := canon.Marshal(&list)
		if err != nil {
			t.Fatal(err)
		}
		j.In.Digest, j.Payload = canon.Sum(line).String(), slices.Concat(line, []byte("\n"), rest)
		if _, err := j.run(dir, false, nil); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", what, err)
		}
		same(t, what, state(t, dir), want)
	}
}

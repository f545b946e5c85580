package git

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dir is a repository's folder in the plainest way.
type dir string

func (d dir) Open(name string) (*os.File, error) { return os.Open(filepath.Join(string(d), name)) }

func (d dir) Names(name string) ([]Name, error) {
	all, err := os.ReadDir(filepath.Join(string(d), name))
	var out []Name
	for _, e := range all {
		out = append(out, Name{e.Name(), e.IsDir()})
	}
	return out, err
}

// run is a shell script in a folder, with git as nobody configured it.
func run(t testing.TB, in, script string) string {
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

// project makes a repository with deltas, a merge, a tag and a module, and a clone of its first
// half.
func project(t testing.TB) (all, half string) {
	top := t.TempDir()
	run(t, top, `git init -q -b main all && cd all
for i in $(seq 400); do echo line $i of a file; done >big
mkdir -p d/e && echo x >d/e/f && ln -s big link && echo run >run && chmod +x run
git add . && git commit -qm first
git update-index --add --cacheinfo 160000,0123456789012345678901234567890123456789,module && git commit -qm module
git clone -q --bare . ../half 2>/dev/null
for i in $(seq 8); do sed -i "$((i * 20))s/.*/changed/" big; git commit -qam "change $i"; done
git checkout -q -b side HEAD~4 && echo s >side && git add side && git commit -qm "side: é" && git checkout -q main
git merge -q -m merged side && git tag -a v1 -m one && git tag -a v2 -m two v1`)
	return filepath.Join(top, "all"), filepath.Join(top, "half")
}

func id(t testing.TB, s string) ID {
	t.Helper()
	v, err := ParseID(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestWalk: the objects that one repository lacks, found loose and in packs with deltas, are those
// that git names, and git takes the pack with our index.
func TestWalk(t *testing.T) {
	all, half := project(t)
	want := strings.Fields(run(t, all, `git rev-list --objects --no-object-names main v2 side ^$(git -C ../half rev-parse main) -- | sort`))
	var first []byte
	for i, how := range []string{"true", "git gc -q", "git repack -qadf --depth=200 --window=50 && git pack-refs --all", "git -c pack.indexVersion=2 repack -qad --no-write-bitmap-index"} {
		run(t, all, how)
		left := &Budget{Left: 64 << 20}
		from, host := NewObjects(dir(all+"/.git"), left), NewObjects(dir(half), left)
		w := NewWalk(context.Background(), from, host, Bounds{})
		refs, err := ReadRefs(dir(all+"/.git"), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"refs/heads/main", "refs/heads/side", "refs/tags/v1", "refs/tags/v2"} {
			if got := run(t, all, "git rev-parse "+name); got != refs.Names[name].ID.String() {
				t.Errorf("%s: %s is %s", how, name, refs.Names[name].ID)
			}
			if _, err := w.Take(refs.Names[name].ID, 0); err != nil {
				t.Fatal(err)
			}
		}
		tip := refs.Names["refs/heads/main"].ID
		if n := len(w.New(tip)); n != 10 {
			t.Errorf("%s: %d commits", how, n)
		}
		if c := w.New(refs.Names["refs/tags/v2"].ID); len(c) != 10 || c[0].Subject != "merged" {
			t.Errorf("%s: %v", how, c)
		}
		for _, back := range []string{"main~10", "main~3", "side", "main"} {
			if is, err := w.Behind(tip, id(t, run(t, all, "git rev-parse "+back))); err != nil || !is && back != "main~10" {
				t.Errorf("%s: %s: %v, %v", how, back, is, err)
			}
		}
		if is, err := w.Behind(refs.Names["refs/heads/side"].ID, tip); is || err != nil {
			t.Errorf("%s: side has main behind it: %v", how, err)
		}
		var paths []string
		if err := w.Differ(id(t, run(t, half, "git rev-parse main")), tip, func(p string) error { paths = append(paths, p); return nil }); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(paths, "\n"); got != run(t, all, "git diff --name-only --no-renames $(git -C ../half rev-parse main) main") {
			t.Errorf("%s: %s", how, got)
		}
		pack := w.Pack()
		objects, err := ParsePack(pack, &Budget{Left: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range objects {
			got = append(got, o.ID.String())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %d objects, git has %d", how, len(got), len(want))
		}
		if i == 0 {
			first = pack
		} else if !bytes.Equal(first, pack) {
			t.Errorf("%s: another pack of the same objects", how)
		}
		name := filepath.Join(half, "objects/pack", PackName(pack))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name+".pack", pack, 0o644), os.WriteFile(name+".idx", PackIndex(pack, objects), 0o644)); err != nil {
			t.Fatal(err)
		}
		run(t, half, "git verify-pack objects/pack/*.idx && git fsck --strict "+tip.String()+" && git update-ref refs/heads/new "+tip.String()+" && git log --oneline new -- && git update-ref -d refs/heads/new")
		os.Remove(name + ".idx")
		os.Remove(name + ".pack")
		from.Close()
		host.Close()
	}
}

// TestDiffer: the paths that two commits have otherwise are those that git names, with those that go.
func TestDiffer(t *testing.T) {
	top := t.TempDir()
	run(t, top, `git init -q -b main . && mkdir -p d/e gone/deep turns && echo 1 >d/e/f && echo 1 >keep && echo 1 >gone/deep/a && echo 1 >gone/b && echo 1 >turns/x && echo 1 >file && echo 1 >run
git add . && git commit -qm one && git tag one
git rm -qr gone turns file && echo 2 >turns && mkdir file && echo 2 >file/y && chmod +x run && echo 2 >new && ln -s keep link && git rm -q d/e/f && git add . && git commit -qm two`)
	o := NewObjects(dir(top+"/.git"), &Budget{Left: 1 << 20})
	defer o.Close()
	w := NewWalk(context.Background(), o, o, Bounds{})
	for _, way := range [][2]string{{"one", "main"}, {"main", "one"}, {"one", "one"}} {
		var paths []string
		if err := w.Differ(id(t, run(t, top, "git rev-parse "+way[0])), id(t, run(t, top, "git rev-parse "+way[1])), func(p string) error { paths = append(paths, p); return nil }); err != nil {
			t.Fatal(err)
		}
		slices.Sort(paths)
		if got, want := strings.Join(paths, "\n"), run(t, top, "git diff --name-only --no-renames "+way[0]+" "+way[1]+" | LC_ALL=C sort"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", way, got, want)
		}
	}
}

// TestPrograms: what the settings name is found as git reads it, and addresses and branches aren't.
func TestPrograms(t *testing.T) {
	top := t.TempDir()
	run(t, top, `git init -q . && git config core.hooksPath Tools/Hooks && git config filter.x.clean './tools/clean.sh --all' && git config alias.y '!f() { "tools/alias" "$@"; }; f' &&
git config remote.o.url tools/url && git config branch.b.merge refs/heads/b && git config extensions.worktreeConfig true && git config --worktree diff.z.textconv 'tools\text' &&
git config include.path ../tools/gitconfig && git config includeIf.onbranch:main.path more && git config submodule.s.update '!tools/update' && git config submodule.s.url tools/sub &&
git config remote.o.uploadpack tools/up && git config remote.o.receivepack tools/receive`)
	words, hooks, err := Programs(dir(top + "/.git"))
	if err != nil || hooks != "Tools/Hooks" {
		t.Errorf("hooks are in %q, %v", hooks, err)
	}
	for _, want := range []string{"./tools/clean.sh", "tools/alias", `tools\text`, "tools/gitconfig", ".git/more", "tools/update", "tools/up", "tools/receive"} {
		if !slices.Contains(words, want) {
			t.Errorf("%q isn't in %q", want, words)
		}
	}
	for _, not := range []string{"tools/url", "refs/heads/b", "tools/sub"} {
		if slices.Contains(words, not) {
			t.Errorf("%q is in %q", not, words)
		}
	}
	if _, _, err := Programs(dir(t.TempDir())); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
}

// TestIndex: an index of each version says what git says of it, and git takes ours.
func TestIndex(t *testing.T) {
	all, _ := project(t)
	for _, how := range []string{"git update-index --index-version 2", "git update-index --index-version 4", "git add -N big2; git update-index --skip-worktree run",
		"git update-index --assume-unchanged big", "git update-index --untracked-cache --test-untracked-cache 2>/dev/null || true"} {
		run(t, all, "echo more >big2; "+how)
		b, err := os.ReadFile(all + "/.git/index")
		if err != nil {
			t.Fatal(err)
		}
		x, err := ParseIndex(b)
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		want := run(t, all, "git ls-files --stage -z | sha256sum")
		if got := fmt.Sprintf("%x  -", x.Digest()); got != want {
			t.Errorf("%s: %s, want %s", how, got, want)
		}
		listed, flags := run(t, all, "git ls-files --stage"), run(t, all, "git ls-files -v")
		plain := x.Plain()
		if plain.Digest() != x.Digest() {
			t.Errorf("%s: the plain index has other entries", how)
		}
		plain.Recall(x)
		if err := os.WriteFile(all+"/.git/index", plain.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := run(t, all, "git ls-files --stage"); got != listed {
			t.Errorf("%s: git reads ours as %s", how, got)
		}
		if got := run(t, all, "git ls-files -v"); got != flags {
			t.Errorf("%s: git reads ours as %s, not %s", how, got, flags)
		}
	}
	run(t, all, "git checkout -q -f main")
	b, _ := os.ReadFile(all + "/.git/index")
	x, err := ParseIndex(b)
	if err != nil {
		t.Fatal(err)
	}
	o := NewObjects(dir(all+"/.git"), &Budget{Left: 1 << 20})
	defer o.Close()
	w := NewWalk(context.Background(), o, o, Bounds{})
	for commit, want := range map[string]bool{"main~1": false} {
		if is, err := w.Holds(x, id(t, run(t, all, "git rev-parse "+commit))); err != nil || is != want {
			t.Errorf("it holds %s: %v, %v", commit, is, err)
		}
	}
	run(t, all, "git reset -q --hard main && git read-tree main")
	if b, err = os.ReadFile(all + "/.git/index"); err != nil {
		t.Fatal(err)
	}
	if x, err = ParseIndex(b); err != nil {
		t.Fatal(err)
	}
	if is, err := w.Holds(x, id(t, run(t, all, "git rev-parse main"))); err != nil || !is {
		t.Errorf("it doesn't hold main: %v", err)
	}
	for what, script := range map[string]string{
		"a merge": "git checkout -q -f -b c1 main && echo 1 >big && git commit -qam c1 && git checkout -q -b c2 main && echo 2 >big && git commit -qam c2 && ! git merge c1 >/dev/null",
		"split":   "git checkout -q -f main && git update-index --split-index",
	} {
		run(t, all, script)
		b, _ := os.ReadFile(all + "/.git/index")
		if _, err := ParseIndex(b); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
		if what == "a merge" {
			if name, err := Under(dir(all + "/.git")); name != "MERGE_HEAD" || err != nil {
				t.Errorf("%s: under way is %q, %v", what, name, err)
			}
			run(t, all, "git merge --abort")
		}
	}
}

// TestNames: what git refuses in trees and refs is refused here, and what git takes is taken.
func TestNames(t *testing.T) {
	for _, name := range []string{".git", ".GIT", ".Git.", ".git ", ".git::$INDEX_ALLOCATION", "git~1", "GIT~1", ".g\u200cit", "\ufeff.git", "", ".", "..", "a/b", ".git\\x", strings.Repeat("x", 256)} {
		if CheckName(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{"a", ".gitignore", ".gitmodules", "git", ".gi", "...", "é", "-x", "a b", "git~2"} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	top := t.TempDir()
	for _, name := range []string{"refs/heads/a", "refs/heads/a/b", "refs/tags/v1.0", "refs/heads/é", "refs/heads/a@b", "refs/heads/.a", "refs/heads/a.lock", "refs/heads/a..b",
		"refs/heads/a b", "refs/heads/a~1", "refs/heads/a^", "refs/heads/a:b", "refs/heads/a?", "refs/heads/a*", "refs/heads/a[", "refs/heads/a\\b", "refs/heads/a@{1}",
		"refs/heads//a", "refs/heads/a/", "refs/heads/a.", "refs/heads/a\x01", "refs/heads/a\x7f", "refs/heads/a/.b", "refs/heads/a.lock/b"} {
		git := run(t, top, "git check-ref-format '"+name+"' && echo yes || echo no")
		if ours := CheckRef(name) == nil; ours != (git == "yes") {
			t.Errorf("%q: ours %v, git %s", name, ours, git)
		}
	}
	for _, name := range []string{"refs/heads/-x", "refs/heads/HEAD", "refs/replace/x", "refs/stash", "HEAD", "refs/heads/", "refs/remotes/o/x", "../x"} {
		if CheckRef(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

// TestCheck: a repository that is read in another way is refused by name.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"plain":       {"git init -q .", ""},
		"bare":        {"git init -q --bare .git", "core.bare"},
		"worktree":    {"git init -q . && git config core.worktree /tmp", "core.worktree"},
		"sha256":      {"git init -q --object-format=sha256 .", "extensions.objectformat"},
		"reftable":    {"git init -q . && git config core.repositoryformatversion 1 && git config extensions.refStorage reftable", "extensions.refstorage"},
		"partial":     {"git init -q . && git config extensions.partialClone origin", "extensions.partialclone"},
		"quoted":      {"git init -q . && printf '[extensions \"a]b\"] x = 1\\n[Extensions] ObjectFormat=\"sha256\"' >>.git/config", "extensions"},
		"continued":   {"git init -q . && printf '[core]\\n  work\\\\\\ntree = x\\n' >>.git/config", "core.worktree"},
		"format":      {"git init -q . && git config core.repositoryformatversion 2", "core.repositoryformatversion"},
		"alternates":  {"git init -q . && echo /x >.git/objects/info/alternates", "objects/info/alternates"},
		"grafts":      {"git init -q . && echo x >.git/info/grafts", "info/grafts"},
		"included":    {"git init -q . && git config include.path x", "include.path"},
		"harmless":    {"git init -q . && git config alias.x '!false' && git config remote.o.url x && git config core.bare false", ""},
		"no settings": {"git init -q . && rm .git/config", "config"},
	} {
		top := t.TempDir()
		run(t, top, c.script)
		err := Check(dir(top + "/.git"))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestHostile: objects that lie are errors of a kind, and bombs cost no more than the budget.
func TestHostile(t *testing.T) {
	top := t.TempDir()
	run(t, top, "git init -q . && echo x >x && git add x && git commit -qm x")
	f := dir(top + "/.git")
	take := func(left int64, hex string) error {
		o := NewObjects(f, &Budget{Left: left})
		defer o.Close()
		w := NewWalk(context.Background(), o, NewObjects(dir(t.TempDir()), &Budget{Left: 1}), Bounds{})
		_, err := w.Take(id(t, hex), 0)
		return err
	}
	head := run(t, top, "git rev-parse HEAD")
	if err := take(1<<20, head); err != nil {
		t.Fatal(err)
	}
	if err := take(100, head); !errors.Is(err, ErrTooLarge) {
		t.Errorf("budget: %v", err)
	}
	bomb := run(t, top, "head -c 40000000 /dev/zero | git hash-object -w --stdin")
	if err := take(1<<30, bomb); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a bomb: %v", err)
	}
	at := func(hex string) string { return filepath.Join(string(f), "objects", hex[:2], hex[2:]) }
	other := run(t, top, "echo y | git hash-object -w --stdin")
	b, _ := os.ReadFile(at(other))
	tree := run(t, top, "git rev-parse HEAD^{tree}")
	os.Chmod(at(tree), 0o644)
	for what, content := range map[string][]byte{"another's content": b, "no stream": []byte("x"), "half": b[:len(b)/2], "nothing": nil} {
		if err := os.WriteFile(at(tree), content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := take(1<<20, head); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	os.Remove(at(tree))
	if err := take(1<<20, head); !errors.Is(err, ErrMissing) {
		t.Errorf("missing: %v", err)
	}
	for what, text := range map[string]string{
		"a folder that is git's": "40000 .git\x00" + strings.Repeat("a", 20), "twice": "100644 a\x00" + strings.Repeat("a", 20) + "40000 a\x00" + strings.Repeat("a", 20),
		"out of order": "100644 b\x00" + strings.Repeat("a", 20) + "100644 a\x00" + strings.Repeat("a", 20), "a slash": "100644 a/b\x00" + strings.Repeat("a", 20),
		"set-id": "104755 a\x00" + strings.Repeat("a", 20), "short": "100644 a\x00aaa", "a leading zero": "040000 a\x00" + strings.Repeat("a", 20),
	} {
		if _, err := ParseTree([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("a tree with %s: %v", what, err)
		}
	}
	for what, text := range map[string]string{
		"no tree": "author a\n\nx", "no author": "tree " + tree + "\n\nx", "zero": "tree " + strings.Repeat("0", 40) + "\nauthor x\n\n", "two trees": "tree " + tree + "\ntree " + tree + "\nauthor x\n\n",
	} {
		if _, err := ParseCommit([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("a commit with %s: %v", what, err)
		}
	}
}

// FuzzObjects: no file of a repository brings the reader down, or keeps it longer than its budget.
// TestPadded: a stream may have any number of blocks that hold nothing, and reading them costs what
// reading content does.
func TestPadded(t *testing.T) {
	text := []byte("a blob")
	object := fmt.Appendf(nil, "blob %d\x00%s", len(text), text)
	want := (&Object{Blob, text}).ID()
	for _, c := range []struct {
		blocks int
		ok     bool
	}{{0, true}, {1000, true}, {1 << 16, false}, {1 << 20, false}} {
		b := append([]byte{0x78, 0x01}, bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, c.blocks)...)
		b = append(b, 1, byte(len(object)), 0, ^byte(len(object)), 0xff)
		b = append(b, object...)
		b = binary.BigEndian.AppendUint32(b, adler32.Checksum(object))
		at := dir(t.TempDir())
		name := filepath.Join(string(at), loose(want))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		o := NewObjects(at, &Budget{Left: 1 << 20, Each: 1 << 20})
		if _, err := o.Read(want); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%d empty blocks: %v", c.blocks, err)
		}
		o.Close()
	}
	endless := &padded{r: zeros{}, most: 1 << 10}
	if n, err := io.Copy(io.Discard, endless); err == nil || n > 1<<20 {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// TestIndexNames: a small index of version 4 can have paths that fill a hundred times its size.
func TestIndexNames(t *testing.T) {
	index := func(long, n int) []byte {
		b := []byte("DIRC\x00\x00\x00\x04")
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		for i := range n {
			e := make([]byte, 62)
			binary.BigEndian.PutUint32(e[24:], ModeFile)
			e[40] = 1
			name := fmt.Sprintf("%08d", i)
			if i == 0 {
				name = strings.Repeat("a/", long/2) + name
				e = append(e, 0)
			} else {
				e = append(e, 8)
			}
			b = append(append(append(b, e...), name...), 0)
		}
		return append(b, make([]byte, 20)...)
	}
	if x, err := ParseIndex(index(100, 1000)); err != nil || len(x.Entries) != 1000 {
		t.Errorf("paths of 108 bytes: %v", err)
	}
	if _, err := ParseIndex(index(4000, 1000)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("paths of 4008 bytes: %v", err)
	}
}

func FuzzObjects(f *testing.F) {
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00aaaaaaaaaaaaaaaaaaaa"), uint8(0))
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), uint8(1))
	f.Add([]byte("# pack-refs\n0123456789012345678901234567890123456789 refs/heads/x\n^"), uint8(2))
	f.Add([]byte("[core] bare = \"x\n[a \"]\"] y"), uint8(3))
	f.Add([]byte("\x05\x04\x91\x01\x03abc"), uint8(4))
	f.Fuzz(func(t *testing.T, b []byte, what uint8) {
		switch what % 6 {
		case 0:
			if x, err := ParseIndex(b); err == nil {
				if y, err := ParseIndex(x.Bytes()); err != nil || y.Digest() != x.Digest() {
					t.Errorf("written and read again: %v", err)
				}
			}
		case 1:
			ParsePack(b, &Budget{Left: 1 << 20})
		case 2:
			top := t.TempDir()
			os.WriteFile(top+"/packed-refs", b, 0o600)
			if r, err := ReadRefs(dir(top), 1<<20); err == nil {
				r.PackedWithout(map[string]bool{"refs/heads/x": true})
			} else if errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		case 3:
			for range settings(string(b)) {
			}
		case 4:
			(&Objects{left: &Budget{Left: 1 << 20}}).patch([]byte("base"), b)
		case 5:
			ParseTree(b)
			ParseCommit(b)
			ParseTag(b)
		}
	})
}

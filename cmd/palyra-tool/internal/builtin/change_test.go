package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"palyra/cmd/palyra-tool/internal/tree"
	"palyra/internal/sample"
	"palyra/internal/toolproto"
)

// big is a patch that does everything: it changes, creates in new folders,
// deletes and renames.
const big = "diff --git a/m1 b/m1\n--- a/m1\n+++ b/m1\n@@ -1 +1 @@\n-old 1\n+new 1\n" +
	"diff --git a/sub/m2 b/sub/m2\n--- a/sub/m2\n+++ b/sub/m2\n@@ -1 +1 @@\n-old 2\n+new 2\n" +
	"diff --git a/made/here/c b/made/here/c\nnew file mode 100755\n--- /dev/null\n+++ b/made/here/c\n@@ -0,0 +1 @@\n+created\n" +
	"diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-going\n" +
	"diff --git a/from b/sub/to\nsimilarity index 50%\nrename from from\nrename to sub/to\n--- a/from\n+++ b/sub/to\n@@ -1 +1 @@\n-moved\n+moved on\n"

func prepare(t testing.TB, dir string) (before, after map[string]string) {
	t.Helper()
	for name, content := range map[string]string{"m1": "old 1\n", "sub/m2": "old 2\n", "gone": "going\n", "from": "moved\n", "other": "untouched\n"} {
		put(t, filepath.Join(dir, name), content)
	}
	before = snapshot(t, dir)
	return before, map[string]string{"./": "", "sub/": "", "made/": "", "made/here/": "", "m1": "new 1\n", "sub/m2": "new 2\n",
		"made/here/c": "created\n", "sub/to": "moved on\n", "other": "untouched\n"}
}

// steps are the names of the steps that the patch takes.
func steps(t testing.TB) []string {
	t.Helper()
	dir := t.TempDir()
	_, after := prepare(t, dir)
	var names []string
	e := &Env{Dir: dir, TestOnlyStep: func(name string) error { names = append(names, name); return nil }}
	if s, f := call(t, e, toolproto.ApplyPatch, obj{"patch": big}, nil); s != toolproto.Done {
		t.Fatalf("%d, %+v", s, f)
	}
	if got := snapshot(t, dir); !maps.Equal(got, after) {
		t.Fatalf("got %v\nwant %v", got, after)
	}
	if len(names) != 4+4+4+2+1+1 || !slices.Contains(names, "committed:-4") {
		t.Fatalf("steps %v", names)
	}
	return names
}

// TestPatchFails: a patch that fails at any step leaves everything as it was.
func TestPatchFails(t *testing.T) {
	for _, at := range steps(t) {
		if at == stepDropped {
			continue // it has come off
		}
		dir := t.TempDir()
		before, _ := prepare(t, dir)
		e := &Env{Dir: dir, TestOnlyStep: func(name string) error {
			if name == at {
				return errors.New("no space left")
			}
			return nil
		}}
		if s, f := call(t, e, toolproto.ApplyPatch, obj{"patch": big}, nil); s == toolproto.Done || s == toolproto.Partial {
			t.Errorf("%s: %d, %+v", at, s, f)
		}
		if got := snapshot(t, dir); !maps.Equal(got, before) {
			t.Errorf("%s: got %v\nwant %v", at, got, before)
		}
	}
}

// TestPatchMeddled: another process changes a patched file, and then the patch fails. Its
// change stays, the former content is kept, and the tool reports both.
func TestPatchMeddled(t *testing.T) {
	dir := t.TempDir()
	prepare(t, dir)
	e := &Env{Dir: dir, TestOnlyStep: func(name string) error {
		if name != "committed:-3" {
			return nil
		}
		for _, f := range []string{"m1", "gone", "made/here/c"} {
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, f)), os.WriteFile(filepath.Join(dir, f), []byte("mine"), 0o644)); err != nil {
				t.Error(err)
			}
		}
		return errors.New("no space left")
	}}
	s, f := call(t, e, toolproto.ApplyPatch, obj{"patch": big}, nil)
	if s != toolproto.Partial || len(f.Left) != 3 {
		t.Fatalf("%d, %+v", s, f)
	}
	for _, l := range f.Left {
		if l.State != "unknown" {
			t.Errorf("%+v", l)
		}
		b, err := os.ReadFile(filepath.Join(dir, l.Path))
		if err != nil || string(b) != "mine" {
			t.Errorf("%s holds %q, %v", l.Path, b, err)
		}
		want := map[string]string{"m1": "old 1\n", "gone": "going\n"}[l.Path]
		if (l.Kept == "") != (want == "") {
			t.Errorf("%+v", l)
		}
		if l.Kept != "" {
			if b, err := os.ReadFile(filepath.Join(dir, l.Kept)); err != nil || string(b) != want {
				t.Errorf("%s holds %q, %v", l.Kept, b, err)
			}
		}
	}
	got := snapshot(t, dir)
	if got["sub/m2"] != "old 2\n" || got["from"] != "moved\n" {
		t.Errorf("what could be undone was not: %v", got)
	}
}

// TestChangedMeanwhile: what changed between the first look and the commit is
// not lost.
func TestChangedMeanwhile(t *testing.T) {
	for _, at := range []string{"staged:0", "kept:3", "committed:0"} {
		dir := t.TempDir()
		before, _ := prepare(t, dir)
		e := &Env{Dir: dir, TestOnlyStep: func(name string) error {
			if name == at {
				put(t, dir+"/sub/m2", "theirs")
			}
			return nil
		}}
		s, f := call(t, e, toolproto.ApplyPatch, obj{"patch": big}, nil)
		if s != toolproto.Conflict || f.Error.Reason != "changed" {
			t.Errorf("%s: %d, %+v", at, s, f)
		}
		before["sub/m2"] = "theirs"
		if got := snapshot(t, dir); !maps.Equal(got, before) {
			t.Errorf("%s: got %v\nwant %v", at, got, before)
		}
	}
	dir := t.TempDir()
	put(t, dir+"/f", "old")
	e := &Env{Dir: dir, TestOnlyStep: func(string) error { put(t, dir+"/f", "theirs"); return nil }}
	for _, mode := range []string{"overwrite", "append"} {
		if s, f := call(t, e, toolproto.WriteFile, obj{"path": "f", "mode": mode, "content": "x"}, nil); s != toolproto.Conflict || f.Error.Reason != "changed" {
			t.Errorf("%s: %d, %+v", mode, s, f)
		}
	}
	e.TestOnlyStep = func(string) error { put(t, dir+"/g", "theirs"); return nil }
	if s, f := call(t, e, toolproto.WriteFile, obj{"path": "g", "mode": "create", "content": "x"}, nil); s != toolproto.Conflict || f.Error.Reason != "exists" {
		t.Errorf("create: %d, %+v", s, f)
	}
	if got := snapshot(t, dir); got["f"] != "theirs" || got["g"] != "theirs" || len(got) != 3 {
		t.Errorf("%v", got)
	}
}

// victim is the environment variable that makes this test binary a tool that
// kills itself: the folder, the step, the tool and the input.
const victim = "PALYRA_TEST_VICTIM"

type deed struct {
	Dir, Step, Tool string
	Input           obj
}

func TestMain(m *testing.M) {
	text := os.Getenv(victim)
	if text == "" {
		os.Exit(m.Run())
	}
	var d deed
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		panic(err)
	}
	e := &Env{Dir: d.Dir, TestOnlyStep: func(name string) error {
		if name == d.Step {
			p, err := os.FindProcess(os.Getpid())
			if err != nil {
				panic(err)
			}
			p.Kill()
			select {} // until it takes effect
		}
		return nil
	}}
	var t testing.T
	call(&t, e, d.Tool, d.Input, nil)
	os.Exit(0)
}

// kill runs a tool in another process that is killed at a step.
func kill(t *testing.T, d deed) {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victim+"="+string(text))
	if err := cmd.Run(); err == nil {
		t.Fatalf("it was not killed at %s", d.Step)
	}
}

// TestKilled: killed at any step, every file is its former or its new self, what
// has no part in the change is as it was, and what is left can be told by name.
func TestKilled(t *testing.T) {
	committed := false
	for _, at := range steps(t) {
		dir := t.TempDir()
		before, after := prepare(t, dir)
		kill(t, deed{dir, at, toolproto.ApplyPatch, obj{"patch": big}})
		committed = committed || strings.HasPrefix(at, stepCommitted)
		got := snapshot(t, dir)
		for name, content := range got {
			if tree.IsLeftover(filepath.Base(name)) {
				delete(got, name)
				continue
			}
			old, was := before[name]
			neu, will := after[name]
			if !(was && content == old || will && content == neu) {
				t.Errorf("killed at %s: %s holds %q", at, name, content)
			}
			if !committed && !was && !strings.HasSuffix(name, "/") {
				t.Errorf("killed at %s: %s is there already", at, name)
			}
		}
		for name := range before {
			if _, ok := got[name]; !ok && (!committed || after[name] != "") {
				t.Errorf("killed at %s: %s is gone", at, name)
			}
		}
		if got["from"] == "" && got["sub/to"] == "" {
			t.Errorf("killed at %s: the renamed file is gone", at)
		}
	}
	for _, at := range []string{"staged:0", "committed:0", "synced"} {
		dir := t.TempDir()
		put(t, dir+"/f", "old")
		kill(t, deed{dir, at, toolproto.WriteFile, obj{"path": "f", "mode": "append", "content": "+new"}})
		want := "old+new"
		if at == "staged:0" {
			want = "old"
		}
		if b, err := os.ReadFile(dir + "/f"); err != nil || string(b) != want {
			t.Errorf("killed at %s: %q, %v", at, b, err)
		}
	}
}

// TestSwapped: while tools run, an attacker swaps a folder for a link to one outside or to
// an unnamed one inside, and a file for a link to one outside. Nothing outside is read,
// nothing unnamed is written.
func TestSwapped(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	put(t, outside+"/f", "SECRET\n")
	put(t, dir+"/d/f", "inside\n")
	put(t, dir+"/e", "inside\n")
	put(t, dir+"/unnamed/f", "inside\n")
	for from, to := range map[string]string{"dlink": outside, "elink": outside + "/f", "ilink": "unnamed"} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var swaps int
	var wg sync.WaitGroup
	wg.Go(func() {
		swap := func(a, b string) {
			// These are three renames, and tools can meet any state in between.
			for _, r := range [][2]string{{a, "tmp"}, {b, a}, {"tmp", b}} {
				if err := os.Rename(filepath.Join(dir, r[0]), filepath.Join(dir, r[1])); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			swap("d", "dlink")
			swap("d", "ilink")
			swap("e", "elink")
			swaps++
		}
	})
	ends := make(map[string]int)
	for i := range sample.Of(150, 400) {
		e := &Env{Dir: dir}
		var r toolproto.ReadFileResult
		for _, path := range []string{"d/f", "e"} {
			r = toolproto.ReadFileResult{}
			s, f := call(t, e, toolproto.ReadFile, obj{"path": path}, &r)
			ends[fmt.Sprint("read ", s, f.Error.Reason)]++
			if strings.Contains(r.Content.Text, "SECRET") {
				t.Fatal("read outside")
			}
		}
		var found toolproto.SearchResult
		if s, _ := call(t, e, toolproto.Search, obj{"pattern": "SECRET"}, &found); s == toolproto.Done && len(found.Matches) > 0 {
			t.Fatalf("found outside: %+v", found.Matches)
		}
		var list toolproto.ListDirResult
		call(t, e, toolproto.ListDir, obj{"path": "d"}, &list)
		for _, x := range list.Entries {
			if x.Path == "d/only-outside" {
				t.Fatal("listed outside")
			}
		}
		for _, path := range []string{"d/f", "e", fmt.Sprintf("d/new%d", i)} {
			s, f := call(t, e, toolproto.WriteFile, obj{"path": path, "mode": "overwrite", "content": "inside\n"}, nil)
			ends[fmt.Sprint("write ", s, f.Error.Reason)]++
		}
		s, f := call(t, e, toolproto.ApplyPatch, obj{"patch": "--- a/d/f\n+++ b/d/f\n@@ -1 +1 @@\n-inside\n+inside\n--- /dev/null\n+++ b/d/p\n@@ -0,0 +1 @@\n+x\n"}, nil)
		ends[fmt.Sprint("patch ", s, f.Error.Reason)]++
	}
	close(stop)
	wg.Wait()
	if got := snapshot(t, outside); len(got) != 2 || got["f"] != "SECRET\n" {
		t.Errorf("outside there is %v", got)
	}
	if got := snapshot(t, dir+"/unnamed"); len(got) != 2 {
		t.Errorf("in a folder that nobody named there is %v", got)
	}
	if ends["read 0"] == 0 || len(ends) < 4 || swaps < 100 {
		t.Errorf("the race did not happen: %d swaps, %v", swaps, ends)
	}
	t.Logf("%d swaps, %v", swaps, ends)
}

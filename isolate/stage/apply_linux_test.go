package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// bring does what palyra-tool does with a small list, well enough for the layer's own part.
func bring(t *testing.T, workspace, upper string, names ...string) {
	t.Helper()
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(upper, n))
		if err != nil {
			t.Fatal(err)
		}
		os.MkdirAll(filepath.Dir(filepath.Join(workspace, n)), 0o755)
		if err := os.WriteFile(filepath.Join(workspace, n), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func layered(t *testing.T) (state, workspace, upper string, source Source) {
	t.Helper()
	state, workspace = t.TempDir(), t.TempDir()
	os.Chmod(workspace, 0o755)
	source = Source{workspace, uint32(os.Geteuid()), uint32(os.Getegid())}
	upper = filepath.Join(state, Folder, "fix", upperName)
	put(t, workspace, "a", "old") // first, or they'd be stale
	put(t, workspace, ".git/HEAD", "ref")
	l, err := Take(state, "fix", source, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, f := range [][3]string{
		{upper, "a", "new"}, {upper, "sub/b", "b"}, {upper, ".git/HEAD", "changed"}, {upper, "sub/.git/config", "c"},
	} {
		at := filepath.Join(f[0], f[1])
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(f[2]), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return state, workspace, upper, source
}

type crash struct{ at string }

// TestApplyCrashes: a process that ends at any step of the record leaves a layer that the next
// one goes on with: nothing of the layer is lost before the workspace has it, and afterwards it
// holds git's own alone.
func TestApplyCrashes(t *testing.T) {
	for _, at := range []string{"kept", "done", "filled", "moved", "replaced", "emptied", ""} {
		state, workspace, upper, source := layered(t)
		l, err := Open(state, "fix")
		if err != nil {
			t.Fatal(err)
		}
		e, err := l.Prepare(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		l.testOnlyStep = func(name string) {
			if name == at {
				panic(crash{at})
			}
		}
		func() {
			defer func() {
				if r := recover(); r != nil && r != (crash{at}) {
					panic(r)
				}
			}()
			if err := l.Begin(context.Background(), e); err != nil {
				t.Errorf("%q: %v", at, err)
			}
			bring(t, workspace, upper, "a", "sub/b")
			if err := l.End(true); err != nil {
				t.Errorf("%q: %v", at, err)
			}
		}()
		l.Close()
		if l, err = Open(state, "fix"); err != nil {
			t.Errorf("%q: %v", at, err)
			continue
		}
		list, err := l.Read(context.Background(), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range list.Changes {
			names = append(names, c.Path)
		}
		want := ".git/HEAD sub/.git sub/.git/config"
		if at == "kept" {
			want = ".git/HEAD a sub sub/.git sub/.git/config sub/b"
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: %s, want %s", at, got, want)
		}
		undo, err := l.PrepareUndo(context.Background())
		if at == "kept" {
			if fault.ReasonOf(err) != "not_found" {
				t.Errorf("%q: undo: %v", at, err)
			}
		} else if err != nil || len(undo.List.Changes) != 3 || !strings.HasSuffix(string(undo.Payload), "\nold") {
			t.Errorf("%q: undo: %+v, %v", at, undo, err)
		}
		if _, err := os.Lstat(filepath.Join(state, Folder, "fix", doneName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", at, err)
		}
		l.Close()
		if l, err = Take(state, "fix", source, 0o755); err != nil {
			t.Errorf("%q: %v", at, err)
		} else {
			l.Close()
		}
	}
}

// TestUnfinished: while it's unknown what became of a list, nothing else uses the layer.
func TestUnfinished(t *testing.T) {
	state, _, _, source := layered(t)
	l, err := Open(state, "fix")
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.Prepare(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(context.Background(), e); err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, open := Open(state, "fix")
	_, take := Take(state, "fix", source, 0o755)
	for _, err := range []error{open, take, Discard(state, "fix", false)} {
		if fault.ReasonOf(err) != "apply_unfinished" {
			t.Error(err)
		}
	}
	l, again, err := OpenUnfinished(state, "fix")
	if err != nil || again.Record.ID != e.Record.ID || again.Record.Digest != e.Record.Digest {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := l.End(false); err != nil {
		t.Error(err)
	}
	l.Close()
	if l, err = Open(state, "fix"); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Discard(state, "fix", false); err != nil {
		t.Error(err)
	}
}

// TestBeginRefuses: what changed since the list was made is named, and nothing is recorded.
func TestBeginRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(workspace, upper string)
		reason string
	}{
		"host":     {func(workspace, _ string) { os.WriteFile(workspace+"/a", []byte("theirs"), 0o644) }, "changed"},
		"gone":     {func(workspace, _ string) { os.Remove(workspace + "/a") }, "changed"},
		"layer":    {func(_, upper string) { os.WriteFile(upper+"/a", []byte("newer"), 0o644) }, "changed"},
		"new name": {func(_, upper string) { os.WriteFile(upper+"/z", nil, 0o644) }, "changed"},
	} {
		state, workspace, upper, _ := layered(t)
		l, err := Open(state, "fix")
		if err != nil {
			t.Fatal(err)
		}
		e, err := l.Prepare(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		c.spoil(workspace, upper)
		if err := l.Begin(context.Background(), e); fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), `"a"`) && !strings.Contains(err.Error(), `"z"`) {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
		if _, again, err := OpenUnfinished(state, "fix"); err != nil || again != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAppliable names the first change that can't be applied.
func TestAppliable(t *testing.T) {
	file, fifo, dir := &Node{Type: File, Mode: "0644", Digest: [32]byte{1}}, &Node{Type: FIFO, Mode: "0644"}, &Node{Type: Directory, Mode: "0755"}
	change := func(name string, old, now *Node) Change { return Change{Path: name, raw: name, Old: old, New: now} }
	stale := change("x", file, nil)
	stale.Stale = true
	big := &Node{Type: File, Mode: "0644", Digest: [32]byte{1}, Size: toolproto.MaxApplied + 1}
	for name, c := range map[string]struct {
		changes []Change
		reason  string
	}{
		"fine":       {[]Change{change("x", nil, file)}, ""},
		"none":       {nil, "not_found"},
		"git alone":  {[]Change{change(".git/x", nil, file)}, "not_found"},
		"a FIFO":     {[]Change{change("x", nil, fifo)}, "cannot_apply"},
		"over one":   {[]Change{change("x", fifo, file)}, "cannot_apply"},
		"unreadable": {[]Change{change("x", nil, &Node{Type: File, Mode: "0000"})}, "cannot_apply"},
		"stale":      {[]Change{stale}, "changed"},
		"git goes":   {[]Change{change("x", dir, nil), change("x/.git", dir, nil)}, "cannot_apply"},
		"too much":   {[]Change{change("x", nil, big)}, "too_large"},
		"too many":   {make([]Change, toolproto.MaxChanges+1), "too_large"},
		"named":      {many(change, file, 2000, 40), ""},
		"unnamed":    {many(change, file, 2000, 90), "too_large"},
	} {
		if err := (&List{Version: Version, Changes: c.changes}).Appliable(); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// many returns changes with names of so many bytes, the last of which stands behind the others.
func many(change func(string, *Node, *Node) Change, file *Node, n, length int) (out []Change) {
	for i := range n {
		out = append(out, change(fmt.Sprintf("%0*d", length, i), nil, file))
	}
	return append(out, change("prod.yaml", &Node{Type: File, Mode: "0644", Digest: [32]byte{2}}, file))
}

// TestGistNamesAll: no change hides from policy and person behind many others.
func TestGistNamesAll(t *testing.T) {
	file := &Node{Type: File, Mode: "0644", Digest: [32]byte{1}}
	change := func(name string, old, now *Node) Change {
		return Change{Path: name, raw: name, Kind: kindOf(old, now), Old: old, New: now}
	}
	l := &List{Version: Version, Changes: many(change, file, 2000, 40)}
	gist := l.Gist(-1, 0)
	for _, c := range l.Changes {
		if !slices.Contains(gist, c.Kind+"="+c.Path) {
			t.Fatalf("nothing says %s of %s", c.Kind, c.Path)
		}
	}
}

// TestSmall: a few lines are small only if they're short, however the patch is written.
func TestSmall(t *testing.T) {
	l := &List{Version: Version, Changes: []Change{{Path: "x", raw: "x", Kind: Modify}}}
	for name, c := range map[string]struct {
		patch        string
		lines, bytes int64
		small        bool
	}{
		"short":     {"diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+bc\n d\n", 2, 5, true},
		"many":      {"diff --git a/x b/x\n@@ -0,0 +1,201 @@\n" + strings.Repeat("+\n", 201), 201, 201, false},
		"long":      {"diff --git a/x b/x\n@@ -0,0 +1 @@\n+" + strings.Repeat("x", 64<<10) + "\n", 1, 64<<10 + 1, false},
		"just":      {"diff --git a/x b/x\n@@ -0,0 +1 @@\n+" + strings.Repeat("x", 64<<10-1) + "\n", 1, 64 << 10, true},
		"no change": {"diff --git a/x b/x\n--- a/x\n+++ b/x\n", 0, 0, true},
	} {
		for _, piece := range []int{1, 7, len(c.patch)} {
			var count lineCounter
			for part := range slices.Chunk([]byte(c.patch), piece) {
				count.Write(part)
			}
			if count.lines != c.lines || count.bytes != c.bytes {
				t.Errorf("%s, by %d bytes: %d lines of %d, want %d of %d", name, piece, count.lines, count.bytes, c.lines, c.bytes)
			}
			if small := slices.Contains(l.Gist(count.lines, count.bytes), "size=small"); small != c.small {
				t.Errorf("%s: small is %t", name, small)
			}
		}
	}
}

// TestFolderBecomesLong: a file that comes in the place of a folder and is too long for a patch is
// neither missed nor small.
func TestFolderBecomesLong(t *testing.T) {
	state, workspace, upper, source := layered(t)
	if err := os.RemoveAll(filepath.Join(upper, "sub")); err != nil {
		t.Fatal(err)
	}
	put(t, workspace, "sub/x", "x")
	if err := os.WriteFile(filepath.Join(upper, "sub"), make([]byte, MaxText+1), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := Take(state, "fix", source, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Made = time.Now().Add(time.Hour) // nothing is stale
	e, err := l.Prepare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if gist := e.List.Gist(e.Lines, e.Bytes); e.Lines != -1 || slices.Contains(gist, "size=small") {
		t.Errorf("%d lines, %q", e.Lines, gist)
	}
	var out strings.Builder
	skipped, err := l.Patch(t.Context(), &out, e.List, false)
	if err != nil || !slices.Contains(skipped, Skipped{"sub", SkipLong}) {
		t.Errorf("%q, %v", skipped, err)
	}
}

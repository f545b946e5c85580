package stage

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

func take(t *testing.T, state, name, workspace string) (*Layer, error) {
	t.Helper()
	l, err := Take(state, name, Source{Path: workspace, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, 0o750)
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

// TestTake: a layer has one user at a time and one workspace, and only its owner gets in.
func TestTake(t *testing.T) {
	state, ws := t.TempDir(), t.TempDir()
	l, err := take(t, state, "w", ws)
	must(t, err)
	for at, want := range map[string]os.FileMode{"": 0o700, "w": 0o700, "w/upper": 0o750, "w/layer.json": 0o600} {
		if fi, err := os.Stat(filepath.Join(state, Folder, at)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", at, fi.Mode(), err)
		}
	}
	if !l.Empty() || l.Name != "w" || l.Source.Path != ws {
		t.Errorf("a new layer: %+v", l.Info)
	}
	if _, err := take(t, state, "w", ws); fault.ReasonOf(err) != "locked" {
		t.Errorf("twice: %v", err)
	}
	if err := Discard(state, "w", false); fault.ReasonOf(err) != "locked" {
		t.Errorf("discarded while in use: %v", err)
	}
	if info, err := Describe(state, "w"); err != nil || info.Source.Path != ws {
		t.Errorf("%+v, %v", info, err)
	}
	must(t, l.Close())
	if _, err := take(t, state, "w", t.TempDir()); fault.ReasonOf(err) != "workspace_unusable" {
		t.Errorf("another workspace: %v", err)
	}
	l, err = take(t, state, "w", ws)
	must(t, err)
	must(t, l.Close())
	for _, name := range []string{"", ".", "..", "a/b", "A", "-a", "a b", ".new-1"} {
		if _, err := take(t, state, name, ws); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := Open(state, "other"); fault.ReasonOf(err) != "not_found" {
		t.Errorf("no layer: %v", err)
	}
	if got, err := Names(state); err != nil || !slices.Equal(got, []string{"w"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestDiscard: a layer goes as a whole, a damaged one too, and what a crash left goes later.
func TestDiscard(t *testing.T) {
	state, ws := t.TempDir(), t.TempDir()
	l, err := take(t, state, "w", ws)
	must(t, err)
	put(t, filepath.Join(state, Folder, "w", "upper"), "a/b/c", "x")
	must(t, os.Chmod(filepath.Join(state, Folder, "w", "upper", "a"), 0))
	if l.Empty() {
		t.Error("it is not empty")
	}
	must(t, l.Close())
	must(t, os.WriteFile(filepath.Join(state, Folder, "w", infoFile), []byte("{}"), 0o600))
	if _, err := Open(state, "w"); fault.ReasonOf(err) != "store_corrupt" {
		t.Errorf("damaged: %v", err)
	}
	must(t, Discard(state, "w", false))
	old := filepath.Join(state, Folder, unfinished+"1")
	for _, name := range []string{"1", "2"} {
		must(t, os.Mkdir(filepath.Join(state, Folder, unfinished+name), 0o700))
	}
	// A program took our rights to what it left there.
	must(t, os.MkdirAll(filepath.Join(old, "w/upper/locked/sub"), 0o700))
	must(t, os.Chmod(filepath.Join(old, "w/upper/locked"), 0))
	must(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*unfinishedFor)))
	l, err = take(t, state, "v", ws)
	must(t, err)
	must(t, l.Close())
	entries, err := os.ReadDir(filepath.Join(state, Folder))
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if want := []string{unfinished + "2", "v"}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

// TestTouches: a path leads elsewhere if the layer has anything but a shared folder on the way.
func TestTouches(t *testing.T) {
	state, ws := t.TempDir(), t.TempDir()
	l, err := take(t, state, "w", ws)
	must(t, err)
	up := filepath.Join(state, Folder, "w", "upper")
	put(t, up, "d/file", "x")
	whiteout(t, up, "d/gone")
	hide(t, up, "hidden")
	must(t, os.Symlink("d", filepath.Join(up, "link")))
	for name, want := range map[string]bool{"x": false, "d": false, "d/other": false, "d/file": true, "d/gone": true, "d/gone/x": true,
		"hidden": true, "hidden/x": true, "link": true, "link/other": true, "d/../d/file": true} {
		if got, err := l.Touches(name); err != nil || got != want {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
}

func TestMountedIn(t *testing.T) {
	for at, want := range map[string]bool{"/": true, t.TempDir(): false} {
		if got, err := mountedIn(at); err != nil || (got != "") != want {
			t.Errorf("%s: %q, %v", at, got, err)
		}
	}
}

// TestPatchBelowTop: git apply in a workspace below the top of a repository makes what the list
// says, also where a folder's name is the workspace's.
func TestPatchBelowTop(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	top := t.TempDir()
	ws := filepath.Join(top, "pkg")
	put(t, ws, "x", "one\n")
	if out, err := exec.Command(git, "-C", top, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := take(t, t.TempDir(), "w", ws)
	must(t, err)
	upper := filepath.Join(l.Dir().Name(), upperName)
	put(t, upper, "x", "two\n")
	put(t, upper, "pkg/y", "new\n")
	list, err := l.Read(t.Context(), Limits{})
	must(t, err)
	var patch bytes.Buffer
	if _, err := l.Patch(t.Context(), &patch, list, false); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(git, "apply", "-")
	cmd.Dir, cmd.Stdin = ws, &patch
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]string{"x": "two\n", "pkg/y": "new\n"} {
		if b, err := os.ReadFile(filepath.Join(ws, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestSize: a layer's size is what its files take, and a folder that keeps us out is told of.
func TestSize(t *testing.T) {
	state := t.TempDir()
	ws := t.TempDir()
	l, err := Take(state, "a", Source{Path: ws, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, 0o755)
	must(t, err)
	defer l.Close()
	if n, whole := l.Size(); n != 0 || !whole {
		t.Errorf("empty: %d, %v", n, whole)
	}
	put(t, filepath.Join(l.path, upperName), "d/a", strings.Repeat("x", 100_000))
	if n, whole := l.Size(); n < 100_000 || n > 200_000 || !whole {
		t.Errorf("a file of 100,000: %d, %v", n, whole)
	}
	must(t, os.Chmod(filepath.Join(l.path, upperName, "d"), 0))
	if _, whole := l.Size(); whole != (os.Geteuid() == 0) {
		t.Errorf("a folder that keeps us out: %v", whole)
	}
	must(t, os.Chmod(filepath.Join(l.path, upperName, "d"), 0o755))
}

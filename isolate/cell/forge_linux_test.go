package cell_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"palyra/isolate"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
)

// TestLayerForged: a program can't put into its layer what only overlayfs may. Outside, most of
// what testdata/forge tries succeeds, or the test proves nothing. Inside, whatever an attempt
// reports, the layer has no name gone that the program didn't remove, no folder hidden, no
// set-id bit and no device, and the host's folder stays as it was.
func TestLayerForged(t *testing.T) {
	forge := filepath.Join(t.TempDir(), "forge")
	cmd := exec.Command("go", "build", "-o", forge, "./testdata/forge")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build forge: %v\n%s", err, out)
	}
	folder := func() string {
		dir := t.TempDir()
		for name, text := range map[string]string{"was": "one", "folder/a": "a"} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	outside := exec.Command(forge)
	outside.Dir = folder()
	out, err := outside.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, attempt := range []string{"whiteout", "setxattr user.overlay.opaque", "setid", "setgid", "fifo", "rename-whiteout"} {
		if !strings.Contains("\n"+string(out), "\n"+attempt+" 0\n") {
			t.Errorf("outside, %s fails, too: this proves nothing\n%s", attempt, out)
		}
	}

	dir, state := folder(), t.TempDir()
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	l, err := stage.Take(state, "w", stage.Source{Path: dir, UID: uid, GID: gid}, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := start(t, tier.C)
	s := benchSpec(forge, "")
	s.Cwd, s.Argv = "/workspace", []string{"forge"}
	s.Workspace = &isolate.Mount{Source: dir, UID: uid, GID: gid, Staged: true}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, text := runIn(t, c, s, d, l.Dir())
	if !strings.Contains(text, "open 0\n") {
		t.Fatalf("it could not write at all:\n%s", text)
	}
	for _, attempt := range []string{"whiteout", "device", "fifo", "rename-whiteout", "fallocate", "setid", "setgid", "up", "upper"} {
		if strings.Contains("\n"+text, "\n"+attempt+" 0\n") {
			t.Errorf("%s succeeds", attempt)
		}
	}
	if strings.Contains(text, filepath.Base(state)) || strings.Contains(text, filepath.Base(dir)) || !strings.Contains(text, "userxattr") {
		t.Errorf("its mounts show the host's paths, or not the overlay:\n%s", text)
	}
	list, err := l.Read(t.Context(), stage.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Changes {
		if c.Kind == stage.Delete || c.Kind == stage.Replace || strings.HasPrefix(c.Path, "folder") {
			t.Errorf("%s %s", c.Kind, c.Path)
		}
		for _, m := range c.Marks {
			if m.Kind == stage.MarkSetID || m.Kind == stage.MarkSpecial {
				t.Errorf("%s is marked %s", c.Path, m.Kind)
			}
		}
	}
	for name, want := range map[string]string{"was": "one", "folder/a": "a"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the host's folder has %v, %v", entries, err)
	}
}

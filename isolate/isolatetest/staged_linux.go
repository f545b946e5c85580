package isolatetest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
)

// staged gives the call a workspace through a layer.
func (c *call) staged(dir string, uid, gid int, l *stage.Layer) {
	c.t.Helper()
	f := c.workspace(dir, uid, gid)
	c.t.Cleanup(func() { f.Close() })
	c.spec.Workspace.Staged, c.files.Layer = true, l.Dir()
}

// content describes all below a folder: names, modes, links and what is in files.
func content(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprint(strings.TrimPrefix(at, dir), " ", fi.Mode())
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// olderKernel reports whether this host's kernel is older than a version.
func olderKernel(t *testing.T, major, minor int) bool {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var a, b int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &a, &b); err != nil {
		t.Fatalf("release %q: %v", release, err)
	}
	return a < major || a == major && b < minor
}

// testStaged: whatever a program writes to a staged workspace is in the layer, the next call
// with that layer sees it, and the folder stays as it was.
func testStaged(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C {
		return // it takes a mount namespace
	}
	dir, uid, gid := workspaceFolder(t, h)
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"was": "one\n", "gone": "x", "folder/a": "a\n", "folder/sub/b": "b", "linked": "l"} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := content(t, dir)
	state := t.TempDir()
	l, err := stage.Take(state, "w", stage.Source{Path: dir, UID: uint32(uid), GID: uint32(gid)}, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	run := func(script string) (outcome, *call) {
		t.Helper()
		c := h.shell(t, script)
		c.staged(dir, uid, gid, l)
		o := c.run()
		if now := content(t, dir); !slices.Equal(now, before) {
			t.Fatalf("the workspace changed:\n%q\nwas\n%q", now, before)
		}
		return o, c
	}
	if o, _ := run("true"); o.err != nil && olderKernel(t, 6, 15) {
		// Without such an overlay the call is refused by name, and nothing ran.
		if fault.ReasonOf(o.err) != "overlay_unavailable" || o.res != nil {
			t.Errorf("without overlays: %s, %v", o, o.err)
		}
		return
	}
	o, _ := run(`set -e; echo two >>was; rm gone; ln linked other; chmod 600 linked; mv folder moved; echo c >moved/c; ln -s /etc/passwd out
		mkdir folder; echo new >folder/new; ! mknod white c 0 0; ! mkfifo pipe; test -w .; cat was`)
	o.exited(t, 0)
	if o.stdout != "one\ntwo\n" {
		t.Errorf("it read %q", o.stdout)
	}
	shown := false
	for _, line := range o.res.Evidence.Mounts.Table {
		shown = shown || strings.HasPrefix(line, "/workspace rw,nosuid,nodev,") && strings.Contains(line, " overlay private userxattr")
	}
	if !shown {
		t.Errorf("mounts %q", o.res.Evidence.Mounts.Table)
	}
	if !slices.Contains(o.res.Evidence.Degraded, "disk: the size of the layer is sampled") {
		t.Errorf("degraded %q", o.res.Evidence.Degraded)
	}
	o, _ = run(`ls; cat folder/* moved/c; ls gone 2>/dev/null`)
	o.exited(t, 2)
	if want := "folder\nlinked\nmoved\nother\nout\nwas\nnew\nc\n"; o.stdout != want {
		t.Errorf("the second call saw %q, want %q", o.stdout, want)
	}
	list, err := l.Read(t.Context(), stage.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list.Changes {
		got = append(got, c.Kind+" "+c.Path)
	}
	want := []string{"delete folder/a", "create folder/new", "delete folder/sub", "delete folder/sub/b", "delete gone", "mode linked", "create moved",
		"create moved/a", "create moved/c", "create moved/sub", "create moved/sub/b", "create other", "create out", "modify was"}
	if !slices.Equal(got, want) {
		t.Errorf("changes\n%q\nwant\n%q", got, want)
	}
	for _, c := range list.Changes {
		if c.Stale {
			t.Errorf("%s is stale", c.Path)
		}
	}

	// The folder that a call starts in is the sealed one of the workspace, seen through the layer.
	c := h.shell(t, "pwd; ls")
	c.staged(dir, uid, gid, l)
	f := c.in("folder")
	defer f.Close()
	if o = c.run(); o.err != nil || o.stdout != "/workspace/folder\nnew\n" {
		t.Errorf("in a folder: %q, %v", o.stdout, o.err)
	}
	c.spec.CwdInode = "1:1"
	if o = c.run(); fault.ReasonOf(o.err) != "workspace_changed" {
		t.Errorf("in another folder: %v", o.err)
	}

	// A layer that isn't one, and none.
	c = h.shell(t, "true")
	c.staged(dir, uid, gid, l)
	c.files.Layer = openFolder(t, state)
	defer c.files.Layer.Close()
	if o = c.run(); fault.ReasonOf(o.err) != "workspace_changed" || o.res != nil {
		t.Errorf("another folder for a layer: %s, %v", o, o.err)
	}
	c.files.Layer = nil
	if o = c.run(); o.err == nil || o.res != nil {
		t.Errorf("no layer: %s", o)
	}

	// The limit of disk holds for the layer, and for removed files that are still open.
	for _, script := range []string{"head -c 12582912 /dev/zero >big; while :; do :; done", "exec 3>big; rm big; head -c 12582912 /dev/zero >&3; while :; do :; done"} {
		c = h.shell(t, script)
		c.staged(dir, uid, gid, l)
		c.spec.Limits.Disk = 8 << 20
		if o = c.run(); o.res == nil || o.res.Outcome != isolate.Killed || o.res.Evidence.Exit.LimitHit != "disk" {
			t.Errorf("%s: %s, %v", script, o, o.err)
		}
	}
	if now := content(t, dir); !slices.Equal(now, before) {
		t.Errorf("the workspace changed: %q", now)
	}
}

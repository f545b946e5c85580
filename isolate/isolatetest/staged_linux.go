package isolatetest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
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

// discarded removes a layer when the test ends: overlayfs leaves a folder without rights in it.
func discarded(t *testing.T, l *stage.Layer) {
	t.Cleanup(func() {
		if err := l.Remove(); err != nil {
			t.Error(err)
		}
		l.Close()
	})
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
	discarded(t, l)
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
	if o = c.run(); fault.ReasonOf(o.err) != "changed" {
		t.Errorf("in another folder: %v", o.err)
	}

	// A layer that isn't one, and none.
	c = h.shell(t, "true")
	c.staged(dir, uid, gid, l)
	c.files.Layer = openFolder(t, state)
	defer c.files.Layer.Close()
	if o = c.run(); fault.ReasonOf(o.err) != "changed" || o.res != nil {
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

	// The kernel charges no cgroup for the names that it keeps of an open folder: they count.
	if err := os.Mkdir(at("wide"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if err := os.WriteFile(at(fmt.Sprintf("wide/%0200d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c = h.shell(t, "exec 3<wide 4<wide 5<wide 6<wide 7<wide 8<wide 9<wide; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (while :; do :; done) & done; while :; do :; done")
	c.staged(dir, uid, gid, l)
	c.spec.Limits.Memory = 64 << 20
	if o = c.run(); o.res == nil || o.res.Outcome != isolate.Killed || o.res.Evidence.Exit.LimitHit != "memory" {
		t.Errorf("open folders: %s, %v", o, o.err)
	}
}

// testStagedTogether: calls that overlap see one layer. What one writes the others see at once, and
// what has changed on the host each sees as of its beginning.
func testStagedTogether(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C || olderKernel(t, 6, 15) {
		return
	}
	dir, uid, gid := workspaceFolder(t, h)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name+".new"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("was", "one\n")
	l, err := stage.Take(t.TempDir(), "w", stage.Source{Path: dir, UID: uint32(uid), GID: uint32(gid)}, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	discarded(t, l)
	of := func(r isolate.Runner, script string) *call {
		c := (&harness{h.sub, r}).shell(t, script)
		c.staged(dir, uid, gid, l)
		return c
	}
	begin := func(ctx context.Context, c *call) <-chan outcome {
		done := make(chan outcome, 1)
		g := c.grant()
		go func() { done <- c.runWith(ctx, g) }()
		return done
	}
	run := func(script, stdout string, calls int) evidence.Evidence {
		t.Helper()
		o := of(h.runner, script).run()
		o.exited(t, 0)
		if o.stdout != stdout || o.res.Evidence.Mounts.LayerCalls != calls {
			t.Errorf("%s: %q, %d calls; want %q, %d", script, o.stdout, o.res.Evidence.Mounts.LayerCalls, stdout, calls)
		}
		return *o.res.Evidence
	}
	const until = "until test -e %s; do sleep .01; done; "
	first := begin(t.Context(), of(h.runner, fmt.Sprintf("cat was none 2>&1; echo a >new; mv new of-first; "+until+"cat of-second; "+until, "of-second", "stop")))
	second := run(fmt.Sprintf(until+"cat of-first was; echo b >new; mv new of-second", "of-first"), "a\none\n", 2)
	write("was", "two\n")
	write("none", "now\n")
	run("cat was none of-second", "two\nnow\nb\n", 2)
	ctx, cancel := context.WithCancel(t.Context())
	third := begin(ctx, of(h.runner, "echo c >of-third; exec sleep 1000"))
	run(fmt.Sprintf(until+"echo c", "of-third"), "c\n", 3)
	cancel()
	if o := <-third; o.res == nil || o.res.Outcome != isolate.Killed {
		t.Errorf("cancelled: %s, %v", o, o.err)
	}

	run("cat of-first; touch stop", "a\n", 2)
	o := <-first
	o.exited(t, 0)
	if o.stdout != "one\ncat: none: No such file or directory\nb\n" || o.res.Evidence.Mounts.LayerCalls != 3 {
		t.Errorf("the first call read %q, %d calls", o.stdout, o.res.Evidence.Mounts.LayerCalls)
	}
	if a, b := o.res.Evidence.Process, second.Process; a.HostUID != b.HostUID {
		t.Errorf("users %d and %d", a.HostUID, b.HostUID)
	}
	// Processes are counted by call.
	ctx, cancel = context.WithCancel(t.Context())
	const forks = "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; "
	c := of(h.runner, forks+"touch forked; wait")
	c.spec.Limits.PIDs = 12
	many := begin(ctx, c)
	c = of(h.runner, fmt.Sprintf(until, "forked")+forks+"echo forked")
	c.spec.Limits.PIDs = 12
	if o := c.run(); o.stdout != "forked\n" || o.stderr != "" {
		t.Errorf("beside a call with as many processes as it may have: %s, %q, %q, %v", o, o.stdout, o.stderr, o.err)
	}
	cancel()
	<-many

	// The limit of disk holds for all calls of a layer together. The first that finds it exceeded
	// ends, and with it what its processes alone had open.
	ctx, cancel = context.WithCancel(t.Context())
	full := make(chan outcome, 2)
	for i := range 2 {
		c := of(h.runner, fmt.Sprintf("exec 3>big%d; rm big%d; head -c 5242880 /dev/zero >&3; exec sleep 1000", i, i))
		c.spec.Limits.Disk = 8 << 20
		done := begin(ctx, c)
		go func() { full <- <-done }()
	}
	if o := <-full; o.res == nil || o.res.Outcome != isolate.Killed || o.res.Evidence.Exit.LimitHit != "disk" {
		t.Errorf("two that fill the layer: %s, %v", o, o.err)
	}
	cancel()
	<-full

	// Another palyra-cell mounts no second overlay over the layer. New ends the other runner's grants.
	ctx, cancel = context.WithCancel(t.Context())
	last := begin(ctx, of(h.runner, "touch last; exec sleep 1000"))
	run(fmt.Sprintf(until+"echo begun", "last"), "begun\n", 2)
	other := h.sub.New(t)
	if other != h.runner { // else the subject has but one
		c = of(other, "true")
		c.spec.Limits.Wall = 300 * time.Millisecond
		if o := c.run(); fault.ReasonOf(o.err) != "locked" || o.res != nil {
			t.Errorf("in another palyra-cell: %s, %v", o, o.err)
		}
	}
	cancel()
	if o := <-last; o.res == nil || o.res.Outcome != isolate.Killed {
		t.Errorf("cancelled: %s, %v", o, o.err)
	}
	o = of(other, "cat of-second").run()
	o.exited(t, 0)
	if o.stdout != "b\n" || o.res.Evidence.Mounts.LayerCalls != 1 {
		t.Errorf("in another palyra-cell later: %q, %d calls", o.stdout, o.res.Evidence.Mounts.LayerCalls)
	}
}

// testStagedApart: calls that share a layer, and as root a user of the host, share nothing else.
// The control does the same within one call.
func testStagedApart(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C || olderKernel(t, 6, 15) {
		return
	}
	dir, uid, gid := workspaceFolder(t, h)
	l, err := stage.Take(t.TempDir(), "w", stage.Source{Path: dir, UID: uint32(uid), GID: uint32(gid)}, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	discarded(t, l)
	of := func(script string) *call {
		c := h.shell(t, script)
		c.staged(dir, uid, gid, l)
		return c
	}
	victim := "n=313; sleep ${n}37 & until grep -q '^sleep' /proc/$!/cmdline; do sleep .01; done; echo x >/tmp/mine; echo x >/dev/shm/mine; "
	attack := "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep [3]1337'; cat /tmp/mine /dev/shm/mine 2>/dev/null | wc -l; "
	all, nothing := "1\n2\n", "0\n0\n"
	if _, err := exec.LookPath("ipcmk"); err == nil { // of util-linux
		victim += "ipcmk -M 4096 -p 0666 >/dev/null && ipcmk -Q -p 0666 >/dev/null || exit 3; "
		attack += "ipcs -m | grep -c 666; ipcs -q | grep -c 666; "
		all, nothing = all+"1\n1\n", nothing+"0\n0\n"
	}
	attack += "kill -9 -1; "
	const after = "grep -q '^State:.[RS]' /proc/$!/status 2>/dev/null && echo alive || echo dead; "
	o := of(victim + attack + "wait; " + after).run()
	o.exited(t, 0)
	if o.stdout != all+"dead\n" {
		t.Fatalf("within one call: %q, %q: the attempt would prove nothing", o.stdout, o.stderr)
	}
	done := make(chan outcome, 1)
	c := of(victim + "touch ready; until test -e attacked; do sleep .01; done; " + after)
	g := c.grant()
	go func() { done <- c.runWith(t.Context(), g) }()
	o = of("until test -e ready; do sleep .01; done; " + attack + "touch attacked").run()
	o.exited(t, 0)
	if o.stdout != nothing || o.res.Evidence.Mounts.LayerCalls != 2 {
		t.Errorf("beside another call: %q, %q, want %q", o.stdout, o.stderr, nothing)
	}
	user := o.res.Evidence.Process.HostUID
	o = <-done
	o.exited(t, 0)
	if o.stdout != "alive\n" || o.res.Evidence.Process.HostUID != user {
		t.Errorf("the other call: %q, %q, user %d, not %d", o.stdout, o.stderr, o.res.Evidence.Process.HostUID, user)
	}
}

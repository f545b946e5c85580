package isolatetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	vocabulary "palyra/call"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cache"
	"palyra/isolate/tier"
)

// awayFolder makes a folder whose path a cell can show: t.TempDir is mostly below /tmp.
func awayFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "palyra-away-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testOwnPath: a workspace at its own path is there and not at /workspace, its operands and
// working directory are found there, and the folders above it are empty and can't be written.
func testOwnPath(t *testing.T, h *harness) {
	dir := filepath.Join(awayFolder(t), "a b\n\\040ü", "proj")
	for name, text := range map[string]string{"in": "changed since", "sub/deep": "deep", "../beside": "secret"} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	use := func(script, sub string, operand bool) outcome {
		c := h.shell(t, script)
		defer c.workspace(dir, os.Geteuid(), os.Getegid()).Close()
		c.spec.Workspace.OwnPath, c.spec.Cwd = true, filepath.Join(dir, sub)
		if sub != "" {
			var st syscall.Stat_t
			if err := syscall.Stat(c.spec.Cwd, &st); err != nil {
				t.Fatal(err)
			}
			c.spec.CwdInode = isolate.Inode(uint64(st.Dev), st.Ino)
		}
		if operand {
			approved := []byte("approved")
			f, err := sealed(approved)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			c.spec.Operands = []isolate.File{{Path: dir + "/in", Digest: canon.Sum(approved), Size: int64(len(approved)), Pinned: "sealed"}}
			c.files.Operands = []*os.File{f}
		}
		return c.run()
	}
	if h.sub.Tier == tier.B {
		if o := use("true", "", false); fault.ReasonOf(o.err) != "invalid_input" || o.res != nil {
			t.Errorf("at tier b: %s, %v", o, o.err)
		}
		return
	}
	o := use(`cat "$PWD/in" sub/deep; echo; pwd; echo out >new; cd ..; ls -A; ls -A /workspace; cd /var; ls -A; ! mkdir /var/x /var/tmp/x /workspace/x 2>/dev/null`, "", true)
	o.exited(t, 0)
	if want := "approveddeep\n" + dir + "\nproj\ntmp\n"; o.stdout != want {
		t.Errorf("it saw %q, want %q", o.stdout, want)
	}
	if b, err := os.ReadFile(dir + "/new"); err != nil || string(b) != "out\n" {
		t.Errorf("it wrote %q, %v", b, err)
	}
	if table := strings.Join(o.res.Evidence.Mounts.Table, "\n"); !strings.Contains(table, "\n/var ro,nosuid,nodev,noexec") {
		t.Errorf("mounts %s", table)
	}
	o = use("pwd; cat deep ../in", "sub", false)
	o.exited(t, 0)
	if want := dir + "/sub\ndeepchanged since"; o.stdout != want {
		t.Errorf("in a folder of it: %q, want %q", o.stdout, want)
	}
	// The next call of the same palyra-cell finds nothing of it.
	o = h.shell(t, "pwd; ls -A /workspace /var 2>/dev/null").run()
	if strings.Contains(o.stdout, "tmp\n") || !strings.HasPrefix(o.stdout, "/workspace\n") {
		t.Errorf("the next call saw %q", o.stdout)
	}
	// A place of the cell's own is refused.
	dir = t.TempDir()
	if isolate.CheckPlace(dir) == nil {
		return
	}
	if o := use("true", "", false); fault.ReasonOf(o.err) != "invalid_input" || o.res != nil {
		t.Errorf("at %s: %s, %v", dir, o, o.err)
	}
}

// mount adds a mount of the folder dir.
func (c *call) mount(dir string) {
	c.t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { f.Close() })
	c.spec.Mounts = append(c.spec.Mounts, vocabulary.Mount{Source: dir, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())})
	c.files.Mounts = append(c.files.Mounts, f)
}

// testMounts: the program reads a mount, runs what is there, and changes nothing of it; sockets
// and FIFOs there lead to no one; a folder in its place is refused.
func testMounts(t *testing.T, h *harness) {
	top := awayFolder(t)
	one, two := filepath.Join(top, "one"), filepath.Join(top, "two")
	for name, text := range map[string]string{"one/bin/tool": "#!/bin/sh\necho ran\n", "one/in": "one\n", "two/in": "two\n", "beside": "secret"} {
		at := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../beside", one+"/out"), syscall.Mkfifo(one+"/fifo", 0o666)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", one+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	script := fmt.Sprintf(`cd %s || exit 9; cat one/in two/in; one/bin/tool; ls -A; cat one/out
		for f in one/in one/new one/fifo; do echo x 2>/dev/null >$f && echo wrote $f; done
		rm -f one/in; mkdir two/d; touch -c one/in; chmod 777 one/in; ln one/in one/other; mknod one/null c 1 3
		perl -MIO::Socket::UNIX -e 'print "connected\n" if IO::Socket::UNIX->new(Peer => "one/socket")'; true`, top)
	c := h.shell(t, script+" 2>/dev/null")
	c.mount(one)
	c.mount(two)
	o := c.run()
	if h.sub.Tier == tier.B {
		if fault.ReasonOf(o.err) != "invalid_input" || o.res != nil {
			t.Errorf("at tier b: %s, %v", o, o.err)
		}
		return
	}
	o.exited(t, 0)
	if want := "one\ntwo\nran\none\ntwo\n"; o.stdout != want {
		t.Errorf("it saw %q, want %q", o.stdout, want)
	}
	for _, dir := range []string{one, two} {
		if !slices.ContainsFunc(o.res.Evidence.Mounts.Table, func(l string) bool { return strings.HasPrefix(l, dir+" ro,nosuid,nodev") }) {
			t.Errorf("%s is not in %q", dir, o.res.Evidence.Mounts.Table)
		}
	}
	// The next call has none.
	if o := h.shell(t, "ls -A "+top).run(); o.stdout != "" {
		t.Errorf("the next call saw %q", o.stdout)
	}
	for name, wrong := range map[string]func(*call){
		"another folder there": func(c *call) {
			if err := errors.Join(os.Rename(two, two+".was"), os.Mkdir(two, 0o755)); err != nil {
				t.Fatal(err)
			}
		},
		"a link there": func(c *call) {
			if err := errors.Join(os.Rename(two, two+".was"), os.Symlink(two+".was", two)); err != nil {
				t.Fatal(err)
			}
		},
		"a descriptor less": func(c *call) { c.files.Mounts = nil },
		"one in another":    func(c *call) { c.mount(two + "/in") },
		"not sorted":        func(c *call) { c.mount(one) },
		"the cell's own":    func(c *call) { c.spec.Mounts[0].Source = "/usr/share" },
	} {
		c := h.shell(t, "echo ran")
		c.mount(two)
		wrong(c)
		if o := c.run(); o.err == nil || o.res != nil || o.stdout != "" {
			t.Errorf("%s: %s, %q, %v", name, o, o.stdout, o.err)
		}
		if err := errors.Join(os.RemoveAll(two), os.RemoveAll(two+".was"), os.MkdirAll(two+"/in", 0o755)); err != nil {
			t.Fatal(err)
		}
	}
}

// cache adds one of a state directory.
func (c *call) cache(state string, o cache.Owner, name string) {
	c.t.Helper()
	got, err := cache.Take(state, o, name)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(got.Close)
	c.spec.Caches, c.files.Caches = append(c.spec.Caches, name), append(c.files.Caches, got.Dir)
}

// testCaches: what a call leaves in a cache the next one with the same owner finds, others don't,
// and a link there leads nowhere outside the cell.
func testCaches(t *testing.T, h *harness) {
	dir, uid, gid := workspaceFolder(t, h)
	state := t.TempDir()
	owner := func(who string) cache.Owner {
		return cache.Owner{Principal: who, Workspace: dir, UID: uint32(uid), GID: uint32(gid)}
	}
	use := func(who, script string) outcome {
		t.Helper()
		c := h.shell(t, script)
		defer c.workspace(dir, uid, gid).Close()
		c.spec.Workspace.ReadOnly = true
		c.cache(state, owner(who), "go")
		c.cache(state, owner(who), "npm")
		return c.run()
	}
	if h.sub.Tier == tier.B {
		if o := use("alice", "true"); fault.ReasonOf(o.err) != "invalid_input" || o.res != nil {
			t.Errorf("at tier b: %s, %v", o, o.err)
		}
		return
	}
	o := use("alice", "cd /caches; ls -A . go npm; echo one >go/f; ln -s "+state+" go/state; ln -s /etc/shadow go/shadow; ! touch new 2>/dev/null")
	o.exited(t, 0)
	if o.stdout != ".:\ngo\nnpm\n\ngo:\n\nnpm:\n" {
		t.Errorf("the first call saw %q", o.stdout)
	}
	if !slices.Contains(o.res.Evidence.Degraded, "disk: the size of caches is sampled") ||
		!slices.ContainsFunc(o.res.Evidence.Mounts.Table, func(l string) bool { return strings.HasPrefix(l, "/caches/go rw,nosuid,nodev") }) {
		t.Errorf("degraded %q, mounts %q", o.res.Evidence.Degraded, o.res.Evidence.Mounts.Table)
	}
	o = use("alice", "cd /caches/go; echo two >g; ls -A; cat state/* shadow 2>/dev/null; true")
	o.exited(t, 0)
	if o.stdout != "f\ng\nshadow\nstate\n" {
		t.Errorf("the second call saw %q", o.stdout)
	}
	for _, who := range []string{"bob", "alice\x00"} {
		if o = use(who, "ls -A /caches/go /caches/npm"); o.stdout != "/caches/go:\n\n/caches/npm:\n" {
			t.Errorf("%q saw %q", who, o.stdout)
		}
	}
	if o = h.shell(t, "ls -A /caches").run(); o.stdout != "" {
		t.Errorf("a call without one saw %q", o.stdout)
	}
	for name, wrong := range map[string]func(*call){
		"no workspace":      func(c *call) { c.spec.Workspace, c.files.Workspace = nil, nil },
		"a descriptor less": func(c *call) { c.files.Caches = nil },
		"a name with ..":    func(c *call) { c.spec.Caches[0] = ".." },
		"one twice":         func(c *call) { c.cache(state, owner("alice"), "go") },
	} {
		c := h.shell(t, "echo ran")
		f := c.workspace(dir, uid, gid)
		c.cache(state, owner("alice"), "go")
		wrong(c)
		if o := c.run(); o.err == nil || o.res != nil || o.stdout != "" {
			t.Errorf("%s: %s, %q, %v", name, o, o.stdout, o.err)
		}
		f.Close()
	}
}

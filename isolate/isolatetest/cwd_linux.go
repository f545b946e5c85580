package isolatetest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/internal/sys"
	"palyra/isolate/tier"
)

func openFolder(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := syscall.Open(path, 0x200000|syscall.O_DIRECTORY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), path)
}

// workspace gives the call a folder that it may write, of which it returns the
// descriptor. The program starts there.
func (c *call) workspace(dir string, uid, gid int) *os.File {
	c.t.Helper()
	c.files.Workspace = openFolder(c.t, dir)
	c.spec.Workspace = &isolate.Mount{Source: dir, UID: uint32(uid), GID: uint32(gid)}
	if c.spec.Tier == tier.B {
		c.spec.Cwd = dir
	}
	return c.files.Workspace
}

// in has the program start in a folder of its workspace, which is sealed as it is now
// and as long as what is returned is open.
func (c *call) in(rel string) *os.File {
	c.t.Helper()
	f := openFolder(c.t, filepath.Join(c.spec.Workspace.Source, rel))
	fi, err := f.Stat()
	if err != nil {
		c.t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	c.spec.Cwd = filepath.Join(c.spec.Cwd, rel)
	c.spec.CwdInode = isolate.Inode(uint64(st.Dev), st.Ino)
	return f
}

// testWorkingDirectory has somebody who may write to the workspace put something else
// where the folder was that a call is to start in. The program starts in the folder that
// was sealed, or not at all.
func testWorkingDirectory(t *testing.T, h *harness) {
	const rel = "a/scratch"
	// fresh returns a workspace and a call that is to start in a folder of it, and that
	// prints where it is.
	fresh := func(t *testing.T) (string, *call) {
		dir, uid, gid := workspaceFolder(t, h)
		for _, name := range []string{rel, "a/release", "b/scratch"} {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		c := h.program(t, "/usr/bin/stat", "stat", "-c", "%d:%i", ".")
		ws := c.workspace(dir, uid, gid)
		t.Cleanup(func() { ws.Close() })
		f := c.in(rel)
		t.Cleanup(func() { f.Close() })
		return dir, c
	}
	// ran reports whether the program ran, which it may only in the sealed folder.
	ran := func(t *testing.T, what string, c *call) bool {
		t.Helper()
		switch o := c.run(); {
		case o.err == nil && o.res.Outcome == isolate.Exited && o.stdout == c.spec.CwdInode+"\n":
			return true
		case fault.ReasonOf(o.err) == "changed" && o.res == nil && o.stdout == "":
		default:
			t.Errorf("%s: %s, %v: the program is in %q, sealed was %s; want it there, or refused with changed", what, o, o.err, o.stdout, c.spec.CwdInode)
		}
		return false
	}
	dir, c := fresh(t)
	if !ran(t, "as it was", c) {
		t.Fatal("the folder is there, and the program did not run in it")
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	put := map[string]func() error{
		"nothing":          func() error { return nil },
		"another folder":   func() error { return os.Rename(at("a/release"), at(rel)) },
		"a new folder":     func() error { return os.Mkdir(at(rel), 0o755) },
		"a file":           func() error { return os.WriteFile(at(rel), nil, 0o644) },
		"a link":           func() error { return os.Symlink("release", at(rel)) },
		"a link to itself": func() error { return os.Symlink("aside", at(rel)) },
		"a link to /":      func() error { return os.Symlink("/", at(rel)) },
		"a link above": func() error {
			return errors.Join(os.Rename(at("a"), at("c")), os.Symlink("b", at("a")))
		},
		"a link above to itself": func() error {
			return errors.Join(os.Rename(at("a/aside"), at(rel)), os.Rename(at("a"), at("c")), os.Symlink("c", at("a")))
		},
	}
	for what, f := range put {
		dir, c = fresh(t)
		if err := errors.Join(os.Rename(at(rel), at("a/aside")), f()); err != nil {
			t.Fatal(what, err)
		}
		if ran(t, what, c) {
			t.Errorf("%s in its place: the program ran", what)
		}
	}
	// What the process that follows a path has open, and where it is.
	dir, c = fresh(t)
	if err := os.Rename(at(rel), at("a/aside")); err != nil {
		t.Fatal(err)
	}
	magic := []string{"/proc/self/cwd", "/proc/self/root", "/proc/thread-self/cwd", "/proc/1/root", "/proc/1/cwd"}
	for n := range 128 {
		magic = append(magic, "/proc/self/fd/"+strconv.Itoa(n))
	}
	for _, target := range magic {
		os.Remove(at(rel))
		if err := os.Symlink(target, at(rel)); err != nil {
			t.Fatal(err)
		}
		if ran(t, target, c) {
			t.Errorf("a link to %s in its place: the program ran", target)
		}
	}
	t.Run("exchanged", func(t *testing.T) {
		for _, other := range []string{"link", "magic", "release"} {
			dir, c = fresh(t)
			if err := errors.Join(os.Symlink("release", at("a/link")), os.Symlink("/proc/self/fd/64", at("a/magic"))); err != nil {
				t.Fatal(err)
			}
			exchanging(t, at("a"), other, func() {
				n := [2]int{}
				for i := 0; i < 1000 && (i < 40 || n[0] == 0 || n[1] == 0); i++ {
					if ran(t, other, c) {
						n[0]++
					} else {
						n[1]++
					}
				}
				t.Logf("%s: ran in the sealed folder %d times, refused %d times", other, n[0], n[1])
				if n[0] == 0 || n[1] == 0 {
					t.Errorf("%s: %d runs, %d refusals: the test proves nothing", other, n[0], n[1])
				}
			})
		}
	})
	// A Spec says which folder it is, and only of one in the workspace.
	for what, change := range map[string]func(*isolate.Spec){
		"no inode":      func(s *isolate.Spec) { s.CwdInode = "" },
		"the workspace": func(s *isolate.Spec) { s.Cwd = strings.TrimSuffix(s.Cwd, "/"+rel) },
		"outside":       func(s *isolate.Spec) { s.Cwd = "/usr" },
	} {
		_, c = fresh(t)
		change(c.spec)
		if o := c.run(); fault.ReasonOf(o.err) != "cell_protocol" || o.res != nil || o.stdout != "" {
			t.Errorf("%s: %s, %v, printed %q; want it refused", what, o, o.err, o.stdout)
		}
	}
}

// exchanging calls f while scratch and other change places all the time.
func exchanging(t *testing.T, dir, other string, f func()) {
	t.Helper()
	d := openFolder(t, dir)
	defer d.Close()
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !over.Load() {
			if err := sys.ExchangeBeneath(int(d.Fd()), "scratch", other); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wg.Wait()
	defer over.Store(true)
	f()
}

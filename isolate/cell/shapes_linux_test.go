package cell_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

func shell(t *testing.T, c *cell.Client, s *isolate.Spec, script string) (*evidence.Evidence, string) {
	t.Helper()
	s.Argv = []string{"sh", "-c", script}
	return runIn(t, c, s, nil)
}

// runIn runs s, in dir if it has a workspace.
func runIn(t *testing.T, c *cell.Client, s *isolate.Spec, dir *os.File, layer ...*os.File) (*evidence.Evidence, string) {
	t.Helper()
	exe, err := os.Open(s.Exec.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	files := &isolate.Files{Exec: exe, Stdout: w, Stderr: w, Workspace: dir}
	if len(layer) > 0 {
		files.Layer = layer[0]
	}
	res, err := c.Run(t.Context(), mint(t, testKey, s), s, files)
	w.Close()
	if err != nil || res.Outcome != isolate.Exited {
		t.Fatalf("%+v, %v", res, err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return res.Evidence, string(out)
}

// TestColdCallsAreAlike: a call finds nothing of the one before. Calls alike have like
// evidence, and none has another's user.
func TestColdCallsAreAlike(t *testing.T) {
	for _, network := range []string{isolate.NetworkFresh, isolate.NetworkVoid} {
		c := start(t, tier.C)
		var first *evidence.Evidence
		uids := make(map[uint32]bool)
		for i := range 6 {
			s := benchSpec("/usr/bin/dash", network)
			if i == 3 { // another shape
				s.Limits.Disk, s.Limits.Inodes = 1<<20, 64
			}
			e, out := shell(t, c, s, "ls -A /tmp /dev/shm /workspace; for d in /tmp /dev/shm /workspace; do echo mark > $d/mark || echo $d: no; done; grep Cpus_allowed_list: /proc/self/status")
			out, cpus, _ := strings.Cut(out, "Cpus_allowed_list:")
			if want := "/dev/shm:\n\n/tmp:\n\n/workspace:\n"; out != want {
				t.Errorf("network %q, call %d: printed %q, want %q", network, i, out, want)
			}
			if own := allowed(t); strings.TrimSpace(cpus) != own {
				t.Errorf("network %q, call %d: may run on processors %s, want ours, %s", network, i, cpus, own)
			}
			if os.Getuid() == 0 && uids[e.Process.HostUID] {
				t.Errorf("network %q, call %d: has the user of an earlier one", network, i)
			}
			uids[e.Process.HostUID] = true
			if first == nil {
				first = e
			}
			sized := slices.ContainsFunc(e.Mounts.Table, func(l string) bool { return strings.Contains(l, "size=1024k,nr_inodes=64") })
			switch {
			case i == 3 && (!sized || e.Mounts.Digest == first.Mounts.Digest):
				t.Errorf("network %q: %q; want the size that was asked for", network, e.Mounts.Table)
			case i != 3 && (e.Mounts.Digest != first.Mounts.Digest || e.Tape != first.Tape):
				t.Errorf("network %q, call %d: mounts %q and tape %+v, those of the first %q and %+v", network, i, e.Mounts.Table, e.Tape, first.Mounts.Table, first.Tape)
			}
			if !slices.Equal(e.Landlock.Rules, first.Landlock.Rules) || !slices.Equal(e.Degraded, first.Degraded) || e.Cell.Mode != evidence.CellCold {
				t.Errorf("network %q, call %d: %+v, %q; the first %+v, %q", network, i, e.Landlock, e.Degraded, first.Landlock, first.Degraded)
			}
		}
	}
}

// allowed returns the processors that this process may run on.
func allowed(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(b), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	return strings.TrimSpace(list)
}

// TestColdCallsWithDirectories: the same holds with a directory of the host. A program's files
// in it belong to the directory's owner, whichever owner the call before had.
func TestColdCallsWithDirectories(t *testing.T) {
	c := start(t, tier.C)
	owners := []int{os.Getuid()}
	if os.Getuid() == 0 {
		owners = []int{65534, 1234}
	}
	var rules []string
	for i := range 8 {
		owner := owners[i/2%len(owners)]
		dir := t.TempDir()
		if err := os.Chown(dir, owner, -1); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		s := benchSpec("/usr/bin/dash", isolate.NetworkFresh)
		s.Workspace = &isolate.Mount{Source: dir, ReadOnly: i == 5, UID: uint32(owner), GID: fi.Sys().(*syscall.Stat_t).Gid}
		s.Argv = []string{"sh", "-c", "ls -A /tmp /dev/shm /workspace; for d in /tmp /dev/shm /workspace; do echo mark > $d/mark; done 2>/dev/null"}
		e, out := runIn(t, c, s, d)
		d.Close()
		if want := "/dev/shm:\n\n/tmp:\n\n/workspace:\n"; out != want {
			t.Errorf("call %d: printed %q, want %q", i, out, want)
		}
		mark, err := os.Stat(dir + "/mark")
		if s.Workspace.ReadOnly {
			if err == nil {
				t.Errorf("call %d wrote where it may only read", i)
			}
			continue
		}
		if err != nil || int(mark.Sys().(*syscall.Stat_t).Uid) != owner {
			t.Errorf("call %d: %+v, %v; want a file of user %d", i, mark, err, owner)
		}
		if rules == nil {
			rules = e.Landlock.Rules
		}
		if !slices.Equal(e.Landlock.Rules, rules) || e.Cell.Mode != evidence.CellCold {
			t.Errorf("call %d: rules %q, of the first %q", i, e.Landlock.Rules, rules)
		}
	}
}

// TestNestedMount: a program's files in a file system that is mounted in its workspace belong
// to the workspace's owner too, or the workspace is refused.
func TestNestedMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	dir := t.TempDir()
	for name, kind := range map[string]string{"can": "tmpfs", "cannot": "proc"} {
		at := filepath.Join(dir, name, "sub")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Dir(at), 1234, 1234); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("palyra-test", at, kind, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	at := filepath.Join(dir, "can", "sub")
	if err := os.Chown(at, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	c := start(t, tier.C) // copies the host's mounts
	in := func(name string) (*isolate.Spec, *os.File) {
		s := benchSpec("/usr/bin/dash", isolate.NetworkFresh)
		s.Workspace = &isolate.Mount{Source: filepath.Join(dir, name), UID: 1234, GID: 1234}
		s.Argv = []string{"sh", "-c", "echo mark > /workspace/sub/mark"}
		d, err := os.Open(s.Workspace.Source)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return s, d
	}
	s, d := in("can")
	_, out := runIn(t, c, s, d)
	fi, err := os.Stat(filepath.Join(at, "mark"))
	if err != nil || fi.Sys().(*syscall.Stat_t).Uid != 1234 {
		t.Errorf("in the file system mounted in it: %+v, %v, printed %q; want a file of user 1234", fi, err, out)
	}
	s, d = in("cannot")
	exe, err := os.Open(s.Exec.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, err = c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: null, Stderr: null, Workspace: d})
	if fault.ReasonOf(err) != "idmapped_mount" {
		t.Errorf("with a proc mounted in it: %v, want it refused", err)
	}
}

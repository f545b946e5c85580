package cell_test

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// ofTree are limits that only a cgroup can hold: 128 MiB and 24 processes for the whole tree. An
// emulated machine takes seconds to fill more.
func ofTree() isolate.Limits {
	return isolate.Limits{Wall: 20 * time.Second, CPU: 20 * time.Second, Memory: 128 << 20, PIDs: 24, Output: 1 << 20, FileSize: 1 << 30,
		OpenFiles: 64, Disk: 1 << 30, Inodes: 100}
}

// bounded runs a shell script in c with limits ofTree. It calls up, if not nil, once the script
// has written something.
func bounded(t *testing.T, c *cell.Client, script string, up func()) (*isolate.Result, string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	exe, err := os.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	s := &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(t.Name())), Tier: tier.C, Cwd: "/workspace", Stdin: "none",
		Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Exec: isolate.File{Path: "/bin/sh", Pinned: "system"}, Limits: ofTree()}
	g := mint(t, testKey, s)
	out := make(chan string, 1)
	go func() {
		b := make([]byte, 1)
		n, _ := r.Read(b)
		if up != nil {
			up()
		}
		rest, _ := io.ReadAll(r)
		out <- string(b[:n]) + string(rest)
	}()
	res, err := c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w})
	w.Close()
	if err != nil || res == nil {
		t.Fatalf("run %q: %v", script, err)
	}
	return res, <-out
}

// groups lists the cgroups beneath the mount point, on an otherwise empty host, except the one
// that this process moves to.
func groups(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() != "palyra-main" {
			dirs = append(dirs, path)
		}
		return nil // the group is gone
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// inGroup starts a palyra-cell whose cells have a cgroup each, and returns the first result.
// conformance/lab runs these tests where a cgroup is delegated.
func inGroup(t *testing.T, p cell.Pool) (*cell.Client, *isolate.Result) {
	t.Helper()
	c := startPool(t, tier.C, p)
	res, _ := bounded(t, c, "exit 3", nil)
	if state := res.Evidence.Cgroup.State; state != "enforced" {
		if os.Getenv("PALYRA_TEST_CGROUP") != "" {
			t.Fatalf("cgroup %s, but this host delegates one", state)
		}
		t.Skip("reason: no-cgroup: " + state)
	}
	return c, res
}

func TestCgroup(t *testing.T) {
	before := groups(t)
	// A palyra-cell that could not be started leaves nothing either.
	if _, err := cell.Start(t.Context(), cell.Config{Path: "/etc/passwd", Tier: tier.C, Key: testKey}); err == nil {
		t.Error("/etc/passwd was started")
	}
	if left := groups(t); !slices.Equal(left, before) {
		t.Errorf("groups %v are left after a failed start, want %v", left, before)
	}
	c, res := inGroup(t, cell.Pool{})
	e := res.Evidence
	for name, want := range map[string]string{"memory.max": "134217728", "memory.swap.max": "0", "pids.max": "25"} {
		if got, ok := e.Cgroup.Values[name]; got != want && (ok || name != "memory.swap.max") {
			t.Errorf("%s read back as %q, want %q", name, got, want)
		}
	}
	t.Logf("values %v, degradations %q, landlock ABI %d", e.Cgroup.Values, e.Degraded, e.Landlock.ABI)
	if res.Outcome != isolate.Exited || e.Exit.Code != 3 || e.Usage.PeakMemory <= 0 {
		t.Errorf("exit 3: %s, %+v, peak memory %d", res.Outcome, e.Exit, e.Usage.PeakMemory)
	}
	for range 3 {
		bounded(t, c, "true", nil)
	}
	c.Close()
	if left := groups(t); !slices.Equal(left, before) {
		t.Errorf("groups %v are left, want %v", left, before)
	}
}

// TestCgroupLimits: a cgroup stops a cell that exceeds its limits.
func TestCgroupLimits(t *testing.T) {
	c, _ := inGroup(t, cell.Pool{})
	idle := groups(t)
	for _, b := range []struct{ name, script string }{
		// Each process stays below the limit of one; together they exceed it.
		{"private memory", "for i in 1 2 3 4; do dd if=/dev/zero bs=50M count=1 2>/dev/null | sleep 15 & done; wait; echo survived"},
		{"shared memory", "dd if=/dev/zero of=/dev/shm/x bs=1M count=200 2>/dev/null; echo survived"},
	} {
		res, out := bounded(t, c, b.script, nil)
		e := res.Evidence
		if res.Outcome != isolate.Killed || e.Exit.LimitHit != "memory" || !e.Exit.TreeDead || strings.Contains(out, "survived") {
			t.Errorf("%s: %s, %+v, output %q; want killed by memory", b.name, res.Outcome, e.Exit, out)
		}
		if p := e.Usage.PeakMemory; p < 100<<20 || p > 128<<20 {
			t.Errorf("%s: peak memory %d, want what the limit allows", b.name, p)
		}
	}
	res, out := bounded(t, c, "n=0; while [ $n -lt 60 ]; do sleep 10 & n=$((n+1)); done; echo survived", nil)
	if strings.Contains(out, "survived") || !res.Evidence.Exit.TreeDead {
		t.Errorf("60 processes: %s, %+v, output %q; want fork to fail", res.Outcome, res.Evidence.Exit, out)
	}
	if res, _ = bounded(t, c, "b() { b | b & }; b; sleep 1", nil); !res.Evidence.Exit.TreeDead {
		t.Errorf("fork bomb: %s, %+v", res.Outcome, res.Evidence.Exit)
	}
	// RLIMIT_NPROC stops those too. Lowering pids.max shows its own effect.
	res, out = bounded(t, c, "echo up; while (:); do :; done", func() {
		for _, dir := range groups(t) {
			if b, err := os.ReadFile(dir + "/pids.max"); err == nil && string(b) == "25\n" {
				if err := os.WriteFile(dir+"/pids.max", []byte("1"), 0); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if res.Outcome != isolate.Exited || !strings.Contains(strings.ToLower(out), "fork") {
		t.Errorf("pids.max lowered to 1: %s, %+v, output %q; want fork to fail", res.Outcome, res.Evidence.Exit, out)
	}
	if res, _ = bounded(t, c, "exit 4", nil); res.Evidence.Exit.Code != 4 {
		t.Errorf("after all that: %s, %+v; want exit status 4", res.Outcome, res.Evidence.Exit)
	}
	if left := groups(t); !slices.Equal(left, idle) {
		t.Errorf("groups %v are left, want %v", left, idle)
	}
}

// TestCgroupWarm: a waiting cell has a memory of its own and is in its own group from birth, so
// its call affects neither palyra-cell nor the cell that waits beside it. A call that doesn't
// fit such a cell gets one of its own.
func TestCgroupWarm(t *testing.T) {
	before := groups(t)
	c, res := inGroup(t, cell.Pool{Cells: 2})
	if e := res.Evidence; e.Cell.Mode != evidence.CellCold {
		t.Errorf("the first call: %+v, want cold", e.Cell)
	}
	waiting := func() { until(t, c, "two cells", func(s cell.Stats) bool { return s.Waiting == 2 }) }
	run := func(script, mode string) *isolate.Result {
		t.Helper()
		waiting()
		res, _ := bounded(t, c, script, nil)
		if e := res.Evidence; e.Cell.Mode != mode || e.Cgroup.State != "enforced" || e.Cgroup.Values["memory.max"] != "134217728" || !e.Exit.TreeDead {
			t.Errorf("%.20q: %+v, cgroup %+v, exit %+v; want a %s cell in a group", script, e.Cell, e.Cgroup, e.Exit, mode)
		}
		return res
	}
	if e := run("exit 3", evidence.CellWarm).Evidence; e.Exit.Code != 3 || e.Usage.PeakMemory <= 0 {
		t.Errorf("exit 3: %+v, %+v", e.Exit, e.Usage)
	}
	bomb := run("for i in 1 2 3 4; do dd if=/dev/zero bs=50M count=1 2>/dev/null | sleep 15 & done; wait", evidence.CellWarm)
	if bomb.Outcome != isolate.Killed || bomb.Evidence.Exit.LimitHit != "memory" {
		t.Errorf("memory: %s, %+v; want killed by memory", bomb.Outcome, bomb.Evidence.Exit)
	}
	if res, _ := bounded(t, c, "exit 4", nil); res.Evidence.Exit.Code != 4 || res.Evidence.Cell.Mode != evidence.CellWarm {
		t.Errorf("the one beside it: %s, %+v, %+v; want a warm call that exits with 4", res.Outcome, res.Evidence.Exit, res.Evidence.Cell)
	}
	if e := run("exit 5 #"+strings.Repeat("x", 100<<10), evidence.CellCold).Evidence; e.Exit.Code != 5 {
		t.Errorf("a long argument: %+v", e.Exit)
	}
	waiting()
	c.Close()
	if left := groups(t); !slices.Equal(left, before) {
		t.Errorf("groups %v are left, want %v", left, before)
	}
}

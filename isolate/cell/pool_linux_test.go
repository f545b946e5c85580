package cell_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/authz/grant"
	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

// warmed is a runner whose calls find a cell made ahead, if one can be.
type warmed struct{ c *cell.Client }

func (w warmed) Run(ctx context.Context, g grant.Grant, s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
	if s.Workspace == nil && (s.Network == isolate.NetworkFresh || s.Network == isolate.NetworkVoid) {
		if _, err := w.c.Expect(ctx, s.Network, s.Limits); err != nil {
			return nil, err
		}
	}
	return w.c.Run(ctx, g, s, f)
}

func TestContractWarm(t *testing.T) {
	for network, share := range map[string]struct {
		every int
		skip  []string
	}{isolate.NetworkFresh: {1, nil}, isolate.NetworkVoid: {sample.Of(3, 1), waits}} {
		t.Run("network "+network, func(t *testing.T) {
			c := startPool(t, tier.C, cell.Pool{Cells: 4, Networks: 4})
			isolatetest.Run(t, isolatetest.Subject{
				Tier: tier.C, Network: network, Warm: true, Skip: share.skip, Every: share.every,
				New:   func(testing.TB) isolate.Runner { return warmed{c} },
				Grant: func(t testing.TB, s *isolate.Spec) grant.Grant { return mint(t, testKey, s) },
			})
			st, err := c.Stats(t.Context())
			if err != nil || st.Warm < 30/uint64(share.every) {
				t.Errorf("%+v, %v; want most calls warm", st, err)
			}
			t.Logf("%+v", st)
		})
	}
}

func quick(t *testing.T, c *cell.Client, network string, l isolate.Limits) *evidence.Evidence {
	t.Helper()
	s := benchSpec("/usr/bin/true", network)
	s.Limits = l
	exe, err := os.Open("/usr/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	res, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: null, Stderr: null})
	if err != nil || res.Outcome != isolate.Exited || res.Evidence.Exit.Code != 0 {
		t.Fatalf("run: %+v, %v", res, err)
	}
	return res.Evidence
}

func limits() isolate.Limits { return benchSpec("", "").Limits }

func until(t *testing.T, c *cell.Client, want string, ok func(cell.Stats) bool) cell.Stats {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		st, err := c.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ok(st) {
			return st
		}
		select {
		case <-deadline.C:
			t.Fatalf("%+v after a minute, want %s", st, want)
		case <-tick.C:
		}
	}
}

// TestPoolServes: the pool learns from the first call and is full again after each, and a cell
// serves one call.
func TestPoolServes(t *testing.T) {
	c := startPool(t, tier.C, cell.Pool{Cells: 3, Networks: 2})
	if e := quick(t, c, "", limits()); e.Cell.Mode != evidence.CellCold {
		t.Errorf("the first call: %+v, want cold", e.Cell)
	}
	seen := map[string]bool{}
	for range 10 {
		until(t, c, "three cells and two networks", func(s cell.Stats) bool { return s.Waiting == 3 && s.Networks == 2 })
		e := quick(t, c, "", limits())
		if e.Cell.Mode != evidence.CellWarm || e.Cell.ArmedNS <= 0 || e.Network.Mode != evidence.NetworkPooled {
			t.Errorf("%+v, %+v; want a warm cell", e.Cell, e.Network)
		}
		if uid := "uid" + strconv.FormatUint(uint64(e.Process.HostUID), 10); os.Geteuid() == 0 && seen[uid] {
			t.Errorf("%s was another call's", uid)
		} else {
			seen[uid] = true
		}
	}
	if st := until(t, c, "ten warm calls", func(s cell.Stats) bool { return s.Warm == 10 }); st.Cold != 1 || st.Armed < 10 {
		t.Errorf("%+v, want one cold call", st)
	}
}

// TestPoolKinds: a cell serves no call that it wasn't made for.
func TestPoolKinds(t *testing.T) {
	c := startPool(t, tier.C, cell.Pool{Cells: 2})
	for name, change := range map[string]func(*isolate.Limits){
		"memory": func(l *isolate.Limits) { l.Memory-- }, "pids": func(l *isolate.Limits) { l.PIDs-- },
		"disk": func(l *isolate.Limits) { l.Disk *= 2 }, "inodes": func(l *isolate.Limits) { l.Inodes++ },
		"cpu": func(l *isolate.Limits) { l.CPU += time.Second }, "file size": func(l *isolate.Limits) { l.FileSize++ },
		"open files": func(l *isolate.Limits) { l.OpenFiles-- },
	} {
		if _, err := c.Expect(t.Context(), "", limits()); err != nil {
			t.Fatal(err)
		}
		l := limits()
		change(&l)
		if e := quick(t, c, "", l); e.Cell.Mode != evidence.CellCold || e.Limits.Hard["data"] != l.Memory || e.Limits.Hard["nofile"] != l.OpenFiles {
			t.Errorf("another limit of %s: %+v with %v, want a cold cell with its own limits", name, e.Cell, e.Limits.Hard)
		}
	}
	if _, err := c.Expect(t.Context(), "", limits()); err != nil {
		t.Fatal(err)
	}
	if e := quick(t, c, isolate.NetworkVoid, limits()); e.Cell.Mode != evidence.CellCold || e.Network.Mode != evidence.NetworkVoid {
		t.Errorf("another network: %+v, %+v", e.Cell, e.Network)
	}
	// Limits that only palyra-cell enforces don't matter.
	l := limits()
	l.Wall, l.Output = l.Wall/2, 1
	if _, err := c.Expect(t.Context(), "", limits()); err != nil {
		t.Fatal(err)
	}
	if e := quick(t, c, "", l); e.Cell.Mode != evidence.CellWarm {
		t.Errorf("another deadline: %+v, want a warm cell", e.Cell)
	}
}

// TestPoolDeadline: a warm call has its own deadline.
func TestPoolDeadline(t *testing.T) {
	c := startPool(t, tier.C, cell.Pool{Cells: 2})
	s := benchSpec("/usr/bin/sleep", "")
	s.Argv, s.Limits.Wall = []string{"sleep", "600"}, 300*time.Millisecond
	if _, err := c.Expect(t.Context(), "", s.Limits); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Open("/usr/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	res, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: os.Stderr, Stderr: os.Stderr})
	if err != nil || res.Outcome != isolate.TimedOut || res.Evidence.Cell.Mode != evidence.CellWarm {
		t.Errorf("%+v, %v; want a warm call that timed out", res, err)
	}
}

func TestPoolExpires(t *testing.T) {
	// After ten times this it would not be made again: a machine that stalls needs some of that.
	c := startPool(t, tier.C, cell.Pool{Cells: 1, MaxAge: 1500 * time.Millisecond})
	if _, err := c.Expect(t.Context(), "", limits()); err != nil {
		t.Fatal(err)
	}
	// It's made again, since its kind is still expected, and expires again.
	until(t, c, "two cells to expire", func(s cell.Stats) bool { return s.Expired >= 2 })
}

// TestPoolIsOfOneProcess: waiting cells belong to one palyra-cell, with its template, filters
// and key. Another one, for other policies, say, has its own.
func TestPoolIsOfOneProcess(t *testing.T) {
	one, other := startPool(t, tier.C, cell.Pool{Cells: 1}), startPool(t, tier.C, cell.Pool{Cells: 1})
	if st, err := one.Expect(t.Context(), "", limits()); err != nil || st.Waiting != 1 {
		t.Fatalf("%+v, %v; want a cell that waits", st, err)
	}
	if e := quick(t, other, "", limits()); e.Cell.Mode != evidence.CellCold {
		t.Errorf("a call was served %s by a palyra-cell that had nothing", e.Cell.Mode)
	}
	if e := quick(t, one, "", limits()); e.Cell.Mode != evidence.CellWarm {
		t.Errorf("a call was served %s by the palyra-cell in which a cell waited", e.Cell.Mode)
	}
}

// processes returns the PIDs of all processes that execute palyra-cell: itself, and two for
// each cell that waits or is being made.
func processes(t testing.TB) (pids []int) {
	t.Helper()
	path := os.Getenv("PALYRA_TEST_CELL")
	if path == "" {
		var err error
		if path, err = binary(); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		// A zombie has no executable; nor has a process that is being reaped.
		if got, err := os.Stat(dir + "/exe"); err == nil && os.SameFile(got, want) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestPoolDeath: when palyra-cell is killed, its waiting cells die.
func TestPoolDeath(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: what waits is not dumpable and cannot be looked at")
	}
	before := processes(t) // a palyra-cell of an earlier test may be about to end
	mine := func() []int {
		return slices.DeleteFunc(processes(t), func(pid int) bool { return slices.Contains(before, pid) })
	}
	c := startPool(t, tier.C, cell.Pool{Cells: 4, Networks: 4})
	quick(t, c, "", limits())
	st := until(t, c, "four cells", func(s cell.Stats) bool { return s.Waiting == 4 })
	if n := len(mine()); n < 1+2*st.Waiting {
		t.Fatalf("%d processes, want palyra-cell and two for each of 4 cells: the test would prove nothing", n)
	}
	if err := c.TestOnlyKill(); err != nil {
		t.Fatal(err)
	}
	<-c.Died()
	if left := mine(); len(left) > 0 {
		t.Errorf("processes %v outlived palyra-cell", left)
	}
}

// TestPoolCellDies: a dead waiting cell serves no call; the call gets another, at once.
func TestPoolCellDies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: what waits is not dumpable and cannot be looked at")
	}
	c := startPool(t, tier.C, cell.Pool{Cells: 1})
	old := processes(t) // palyra-cell
	if _, err := c.Expect(t.Context(), "", limits()); err != nil {
		t.Fatal(err)
	}
	var killed []int
	for _, pid := range processes(t) {
		if !slices.Contains(old, pid) {
			killed = append(killed, pid)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
		}
	}
	// One that dies while it's being let go is a call that was killed.
	until(t, c, "the end of what was killed", func(cell.Stats) bool {
		return !slices.ContainsFunc(killed, func(pid int) bool {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			return err == nil && !strings.Contains(string(b), ") Z ")
		})
	})
	if len(killed) != 2 {
		t.Fatalf("killed %d processes, want the reaper and the program's", len(killed))
	}
	if e := quick(t, c, "", limits()); e.Cell.Mode != evidence.CellCold || e.Exit.Code != 0 {
		t.Errorf("%+v, %+v; want a cold call that ended well", e.Cell, e.Exit)
	}
}

// TestPoolSignals: a signal that stops and continues a waiting cell doesn't let it go.
func TestPoolSignals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: what waits is not dumpable and cannot be looked at")
	}
	c := startPool(t, tier.C, cell.Pool{Cells: 1})
	old := processes(t)
	if _, err := c.Expect(t.Context(), "", limits()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range processes(t) {
		if !slices.Contains(old, pid) {
			for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGWINCH} {
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if e := quick(t, c, "", limits()); e.Cell.Mode != evidence.CellWarm || e.Exit.Code != 0 {
		t.Errorf("%+v, %+v; want a warm call that ended well", e.Cell, e.Exit)
	}
}

// TestPoolNetworks: a cold call takes a network namespace made ahead.
func TestPoolNetworks(t *testing.T) {
	c := startPool(t, tier.C, cell.Pool{Networks: 3})
	for range 6 {
		until(t, c, "a network", func(s cell.Stats) bool { return s.Networks > 0 })
		e := quick(t, c, "", limits())
		if e.Network.Mode != evidence.NetworkPooled || e.Cell.Mode != evidence.CellCold || !slices.Contains(e.Namespaces.Fresh, "net") {
			t.Errorf("%+v, %+v, fresh %v", e.Network, e.Cell, e.Namespaces.Fresh)
		}
	}
}

// TestPoolDescriptors: a warm program has the call's descriptors, though its process was made
// with palyra-cell's own, and palyra-cell's stay open.
func TestPoolDescriptors(t *testing.T) {
	c := startPool(t, tier.C, cell.Pool{Cells: 2})
	for range 20 {
		s := benchSpec("/usr/bin/ls", "")
		s.Argv = []string{"ls", "/proc/self/fd"}
		if _, err := c.Expect(t.Context(), "", s.Limits); err != nil {
			t.Fatal(err)
		}
		exe, err := os.Open("/usr/bin/ls")
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w})
		w.Close()
		exe.Close()
		out, rerr := io.ReadAll(r) // ends when no process holds the other end
		r.Close()
		if err != nil || rerr != nil || res.Evidence.Cell.Mode != evidence.CellWarm || string(out) != "0\n1\n2\n3\n" {
			t.Fatalf("%+v, %v, output %q; want a warm ls with 0, 1, 2 and the directory", res, err, out)
		}
	}
}

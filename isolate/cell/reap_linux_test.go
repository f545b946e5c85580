package cell_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// zombies counts the processes' dead children that weren't reaped.
func zombies(t *testing.T, parents []int) (n int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		for _, pid := range parents {
			if strings.HasPrefix(rest, "Z "+strconv.Itoa(pid)+" ") {
				n++
			}
		}
	}
	return n
}

// TestReaps: at tier C the answer comes before the cell's reaper is reaped, and that comes
// soon: no cell stays a zombie, not even one that got no call.
func TestReaps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: who a process is that is not dumpable cannot be looked at")
	}
	c := startPool(t, tier.C, cell.Pool{Cells: 2})
	for range 10 {
		quick(t, c, "", limits())
	}
	until(t, c, "two cells", func(s cell.Stats) bool { return s.Waiting == 2 })
	if e := quick(t, c, "", limits()); e.Cell.Mode != evidence.CellWarm || !e.Exit.TreeDead {
		t.Errorf("%+v, %+v; want a warm call whose tree is dead", e.Cell, e.Exit)
	}
	until(t, c, "no zombie", func(cell.Stats) bool { return zombies(t, processes(t)) == 0 })
}

package tree

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestWalk: a walk that has budget for a tree finds all of it, and is not cut; one that
// has less is cut, and finds no more than that.
func TestWalk(t *testing.T) {
	sh := exec.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 600 & done; echo; wait")
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	w := NewWalk(0)
	all := w.Descendants(sh.Process.Pid)
	for _, budget := range []int{5, 0} {
		w := &Walk{proc: "/proc", left: budget}
		if got := w.Descendants(sh.Process.Pid); len(got) > budget || !w.Cut {
			t.Errorf("with a budget of %d a walk found %v, cut: %t", budget, got, w.Cut)
		}
	}
	sh.Process.Kill()
	for _, pid := range all {
		if p, err := os.FindProcess(pid); err == nil {
			p.Kill()
		}
	}
	sh.Wait()
	if len(all) != 10 || w.Cut {
		t.Errorf("a walk found %v, cut: %t; want 10 processes", all, w.Cut)
	}
}

// TestWalkEnds: a walk of a tree that changes under it can come back to where it was. It
// ends, and says that it was cut.
func TestWalkEnds(t *testing.T) {
	proc := t.TempDir()
	for pid, kids := range map[int]string{2: "3 4 ", 3: "2 ", 4: ""} {
		dir := filepath.Join(proc, strconv.Itoa(pid), "task", strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "children"), []byte(kids), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := NewWalk(8)
	w.proc = proc
	got := w.Descendants(2)
	if !w.Cut || len(got) > 2*8+ownThreads || !slices.Equal(got[:4], []int{3, 4, 2, 3}) {
		t.Errorf("%d processes, of which the first are %v, cut: %t", len(got), got[:4], w.Cut)
	}
}

// TestWalkMisses: a thread that ends before its children are read cuts nothing off but what
// was its own, and the walk says so.
func TestWalkMisses(t *testing.T) {
	proc := t.TempDir()
	for thread, kids := range map[string]string{"2/task/2": "3 4 ", "3/task/3": "", "3/task/5": "gone", "4/task/4": "6 ", "6/task/6": ""} {
		dir := filepath.Join(proc, thread)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if kids == "gone" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "children"), []byte(kids), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := NewWalk(8)
	w.proc = proc
	if got := w.Descendants(2); w.Cut || !w.Missed || !slices.Equal(got, []int{3, 4, 6}) {
		t.Errorf("a walk found %v, cut: %t, missed: %t; want 3, 4, 6, and missed", got, w.Cut, w.Missed)
	}
}

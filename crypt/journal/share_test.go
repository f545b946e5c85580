//go:build unix

package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/internal/fault"
	"palyra/internal/sample"
)

// sharer is one of several processes on one journal: it appends n pairs of an entry
// that opens and one that closes it, and publishes in the middle. It says on stdout
// what it was promised.
func sharer(j *Journal, name, n int) error {
	one := func(i int, e Entry) (uint64, error) {
		e.Leaf, e.Content = leafN(i), contentN(i)
		p, err := j.Append(context.Background(), e)
		if err != nil {
			return 0, err
		}
		proof, err := j.Prove(context.Background(), p.Index)
		if err != nil {
			return 0, err
		}
		fmt.Println("acknowledged", p.Index, i, proof.Size, fmt.Sprintf("%x", proof.Root))
		return p.Index, nil
	}
	for k := range n {
		i := name*1000 + 2*k
		opened, err := one(i, Entry{Opens: true})
		if err != nil {
			return err
		}
		if _, err := one(i+1, Entry{Closes: &opened}); err != nil {
			return err
		}
		if k == n/2 {
			if err := j.Publish(context.Background()); err != nil {
				return err
			}
		}
	}
	return nil
}

// shared is what several processes were promised.
type shared struct {
	mu       sync.Mutex
	promised map[uint64]int    // guarded by mu: index → which entry
	roots    map[uint64]string // guarded by mu: size → root
	twice    []string          // guarded by mu
	died     []string          // guarded by mu: at which steps
}

// run starts a process, kills it at the n-th step of a name (0: never), and reads what it
// was promised.
func (s *shared) run(t *testing.T, state string, name, n, step int, at string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+state, fmt.Sprintf("PALYRA_TEST_SCRIPT=share %d %d", name, n), "PALYRA_TEST_STEP="+strconv.Itoa(step), "PALYRA_TEST_AT="+at)
	out, err := cmd.Output()
	if ee, ok := err.(*exec.ExitError); err != nil && (!ok || step == 0 || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
		t.Errorf("process %d, to die at step %d: %v: %s", name, step, err, out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch f[0] {
		case "dies":
			s.died = append(s.died, f[2])
		case "acknowledged":
			index, _ := strconv.ParseUint(f[1], 10, 64)
			i, _ := strconv.Atoi(f[2])
			size, _ := strconv.ParseUint(f[3], 10, 64)
			if had, ok := s.promised[index]; ok {
				s.twice = append(s.twice, fmt.Sprintf("index %d is both of entry %d and of %d", index, had, i))
			}
			if had, ok := s.roots[size]; ok && had != f[4] {
				s.twice = append(s.twice, fmt.Sprintf("two checkpoints of size %d", size))
			}
			s.promised[index], s.roots[size] = i, f[4]
		}
	}
}

// judge holds the journal to what the processes were promised, and returns its size.
func (s *shared) judge(t *testing.T, h *house) uint64 {
	t.Helper()
	for _, x := range s.twice {
		t.Error(x)
	}
	h.check(t) // an auditor comes before the next writer
	j := h.open(t, Options{})
	defer j.Close()
	for i, want := range s.promised {
		if i >= j.Size() {
			t.Errorf("entry %d was acknowledged and is lost", i)
			continue
		}
		p, err := j.Prove(t.Context(), i)
		if err != nil {
			t.Error(err)
			continue
		}
		verifyProof(t, h.ring.Log().VKey(), p, leafN(want))
		if c, err := j.Content(i); err != nil || string(c) != string(contentN(want)) {
			t.Errorf("content of entry %d is lost: %v", i, err)
		}
	}
	for at, want := range s.roots {
		if root, err := j.tree.rootAt(at); err != nil || fmt.Sprintf("%x", [32]byte(root)) != want {
			t.Errorf("a checkpoint of size %d was given out that the log does not extend: %v", at, err)
		}
	}
	seen := make(map[string]uint64)
	for rec, err := range j.Entries(0, j.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		if had, ok := seen[string(rec.Leaf)]; ok {
			t.Errorf("entries %d and %d are the same", had, rec.Index)
		}
		seen[string(rec.Leaf)] = rec.Index
	}
	return j.Size()
}

func sharedHouse(t *testing.T, size int) (*house, *shared) {
	h := newHouse(t)
	if size > 0 {
		j := h.open(t, Options{})
		fill(t, j, 0, size)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return h, &shared{promised: make(map[uint64]int), roots: make(map[uint64]string)}
}

// TestManyProcesses: eight processes append, prove, publish and complete tiles at
// the same time, from the very first open on.
func TestManyProcesses(t *testing.T) {
	h, s := sharedHouse(t, 0)
	var wg sync.WaitGroup
	for name := range 8 {
		wg.Go(func() { s.run(t, filepath.Dir(h.dir), name+1, 40, 0, "") })
	}
	wg.Wait()
	if n := s.judge(t, h); n != 640 || len(s.promised) != 640 {
		t.Errorf("%d entries, %d acknowledged, want 640", n, len(s.promised))
	}
	if r := h.check(t); r.Sealed != 512 || r.Published != 640 || len(r.Open) != 0 || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
}

// TestManyProcessesCrash kills two processes at each named step while four others do
// their work, over the end of a tile: no acknowledged entry is lost, no index is given
// twice, and those that live are not disturbed.
func TestManyProcessesCrash(t *testing.T) {
	var names []string
	for k, f := range []struct{ what, steps string }{
		{"append", "begin written durable"},
		{"seal:content", "begin created written synced renamed durable"},
		{"seal:tile", "begin created renamed durable"},
		{"seal:checkpoint", "begin synced renamed durable"},
		{"seal:wal", "begin created written synced renamed durable"},
		{"seal", "swept"},
		{"publish:entries", "begin renamed"},
		{"publish:checkpoint", "begin renamed"},
	} {
		if k%sample.Of(2, 1) != 0 {
			continue
		}
		steps := strings.Fields(f.steps)
		for i := range sample.Of(1, len(steps)) {
			names = append(names, f.what+":"+steps[(k+i)%len(steps)])
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			h, s := sharedHouse(t, 254)
			var wg sync.WaitGroup
			for who := range 6 {
				nth := 0
				if who < 2 {
					nth = 1 + who // the first such step of one, the second of the other
				}
				wg.Go(func() { s.run(t, filepath.Dir(h.dir), who+1, 4, nth, name) })
			}
			wg.Wait()
			if len(s.died) == 0 { // the others were there first: it is its turn alone
				j := h.open(t, Options{})
				fill(t, j, int(j.Size()), int(j.Size()/tileWidth*tileWidth+tileWidth))
				j.broken = os.ErrClosed
				_ = j.Close()
				s.run(t, filepath.Dir(h.dir), 9, 4, 1, name)
			}
			if len(s.died) == 0 {
				t.Errorf("no process died at %s", name)
			}
			s.judge(t, h)
		})
	}
}

// TestFollow: what one Journal appends, moves and closes another sees, wherever in
// the write-ahead file that is.
func TestFollow(t *testing.T) {
	h := newHouse(t)
	a, b := h.open(t, Options{}), h.open(t, Options{})
	ctx := context.Background()
	n := 0
	put := func(j *Journal, e Entry) uint64 {
		t.Helper()
		e.Leaf, e.Content = leafN(n), contentN(n)
		p, err := j.Append(ctx, e)
		if err != nil || p.Index != uint64(n) {
			t.Fatalf("entry %d got %d, %v", n, p.Index, err)
		}
		n++
		return p.Index
	}
	opened := put(a, Entry{Opens: true})
	put(b, Entry{})
	for range 130 {
		put(a, Entry{})
		put(b, Entry{})
		put(b, Entry{})
	}
	if err := a.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.tree.base == b.tree.base {
		t.Fatal("nothing was moved")
	}
	put(b, Entry{Closes: &opened}) // the write-ahead file is another by now
	if len(b.retired) != 0 {
		t.Error("the write-ahead file that was replaced is still open")
	}
	if _, err := a.Append(ctx, Entry{Leaf: []byte("x"), Closes: &opened}); !errors.Is(err, ErrNotOpen) {
		t.Errorf("closed by another process: %v", err)
	}
	if a.Size() != b.Size() {
		t.Errorf("sizes %d and %d", a.Size(), b.Size())
	}
	// The other way round: b publishes, while a has an older file.
	for range 200 {
		put(b, Entry{})
	}
	if err := b.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.Size() == b.Size() {
		t.Error("a saw the entries of b without looking")
	}
	if err := a.Refresh(ctx); err != nil || a.Size() != b.Size() {
		t.Errorf("size %d, want %d, %v", a.Size(), b.Size(), err)
	}
	for _, j := range []*Journal{a, b} {
		for _, i := range []uint64{0, 255, 300, uint64(n) - 1} {
			p, err := j.Prove(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			verifyProof(t, j.Key(), p, leafN(int(i)))
			if c, err := j.Content(i); err != nil || string(c) != string(contentN(int(i))) {
				t.Errorf("content %d: %q, %v", i, c, err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if r := h.check(t); r.Size != uint64(n) || r.Published != r.Size || len(r.Open) != 0 || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
}

// TestFollowRefuses: what did not come from a process with the key of this log, or
// takes something back, is found by the others before they write.
func TestFollowRefuses(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		do           func(t *testing.T, h *house, wal string, before []byte)
	}{
		{"rolled back", "journal_rolled_back", func(t *testing.T, h *house, wal string, before []byte) {
			if err := os.Truncate(wal, int64(len(before))); err != nil {
				t.Fatal(err)
			}
		}},
		{"an older file", "journal_rolled_back", func(t *testing.T, h *house, wal string, before []byte) {
			put(t, wal, before)
		}},
		{"bytes that are no record", "journal_wal_corrupt", func(t *testing.T, h *house, wal string, _ []byte) {
			f, err := os.OpenFile(wal, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fmt.Fprintf(f, "%0600d", 1)
		}},
		{"another key", "journal_wal_corrupt", func(t *testing.T, h *house, wal string, _ []byte) {
			o := newHouse(t)
			j, err := Open(h.dir, h.ring.Log(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			j.key = o.ring.Log()
			add(t, j, 2, 3)
			j.broken = os.ErrClosed
			_ = j.Close()
		}},
		{"another log", "journal_wal_corrupt", func(t *testing.T, h *house, wal string, _ []byte) {
			o := newHouse(t)
			j := o.open(t, Options{})
			add(t, j, 0, 5)
			b, err := os.ReadFile(filepath.Join(o.dir, walFile))
			if err != nil {
				t.Fatal(err)
			}
			put(t, wal, b)
			_ = j.Close()
		}},
		{"no file", "journal_wal_missing", func(t *testing.T, h *house, wal string, _ []byte) {
			if err := os.Remove(wal); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t)
			j := h.open(t, Options{})
			defer j.Close()
			add(t, j, 0, 1)
			wal := filepath.Join(h.dir, walFile)
			before, err := os.ReadFile(wal)
			if err != nil {
				t.Fatal(err)
			}
			add(t, j, 1, 2)
			c.do(t, h, wal, before)
			for range 2 {
				if _, err := j.Append(context.Background(), Entry{Leaf: []byte("x")}); fault.KindOf(err) != fault.Integrity || fault.ReasonOf(err) != c.reason {
					t.Errorf("%v (%s), want %s", err, fault.ReasonOf(err), c.reason)
				}
			}
		})
	}
}

func put(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestTornByAnother: a record that another process did not finish is cut off by the
// next one to write.
func TestTornByAnother(t *testing.T) {
	h := newHouse(t)
	var steps []string
	j := h.open(t, Options{TestOnlyStep: func(n string) { steps = append(steps, n) }})
	defer j.Close()
	add(t, j, 0, 3)
	o := h.open(t, Options{})
	add(t, o, 3, 4)
	first := o.wal.end
	add(t, o, 4, 5)
	o.broken = os.ErrClosed
	_ = o.Close()
	if err := os.Truncate(filepath.Join(h.dir, walFile), first+(o.wal.end-first)/2); err != nil {
		t.Fatal(err)
	}
	steps = nil
	add(t, j, 4, 6)
	if got := strings.Join(steps[:2], " "); got != "recover:torn recover:cut" {
		t.Errorf("steps %v", steps)
	}
	if r := h.check(t); r.Size != 6 || r.Torn != 0 {
		t.Errorf("%+v", r)
	}
}

// work is what the processes of these tests do.
func work(j *Journal, script string) error {
	f := strings.Fields(script)
	switch f[0] {
	case "share":
		who, _ := strconv.Atoi(f[1])
		n, _ := strconv.Atoi(f[2])
		return sharer(j, who, n)
	case "stop":
		j.step = func(name string) {
			if name == "append:written" {
				fmt.Println("stops")
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
		}
		_, err := j.Append(context.Background(), Entry{Leaf: []byte("stopped")})
		return err
	case "hog":
		for range 8 {
			go func() {
				for {
					_, _ = j.Append(context.Background(), benchEntry())
				}
			}()
		}
		select {}
	}
	return fmt.Errorf("no script %q", script)
}

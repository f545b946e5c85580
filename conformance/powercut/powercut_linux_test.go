//go:build !race

package powercut

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/sample"
)

// before is how many entries the log has when the recording begins, so that it
// completes a tile soon.
const before = 247

// rounds is how often the process opens, appends 17 times (18 the first) and closes.
const rounds = 2

// TestMain is the recorded process when the environment asks.
func TestMain(m *testing.M) {
	if state := os.Getenv("PALYRA_TEST_WORK"); state != "" {
		if err := work(state, os.Getenv("PALYRA_TEST_SIZE")); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func entry(i int) journal.Entry {
	return journal.Entry{Leaf: fmt.Appendf(nil, "leaf %d", i), Content: bytes.Repeat(fmt.Appendf(nil, "content %d ", i), 1+i*i%97)}
}

func number(leaf []byte) (i int) {
	_, _ = fmt.Sscanf(string(leaf), "leaf %d", &i)
	return i
}

// work appends one by one and in groups, publishes, completes tiles, closes and
// opens again. It says on stdout what it was promised, with one write each.
func work(state, _ string) error {
	ring, err := keyring.Open(state)
	if err != nil {
		return err
	}
	dir := filepath.Join(state, "journal")
	for round := range rounds {
		j, err := journal.Open(dir, ring.Log(), journal.Options{})
		if err != nil {
			return err
		}
		one := func(i int) error {
			e := entry(i)
			pos, err := j.Append(context.Background(), e)
			if err != nil {
				return err
			}
			cp, err := j.Checkpoint(context.Background())
			if err != nil {
				return err
			}
			c, err := journal.OpenCheckpoint(cp, ring.Log().VKey())
			if err != nil {
				return err
			}
			fmt.Printf("acknowledged %d %d %d %x\n", pos.Index, i, c.Size, c.Root)
			return nil
		}
		at := int(j.Size())
		for i := range 5 {
			if err := one(at + i); err != nil {
				return err
			}
		}
		if round == 0 {
			if err := j.Publish(context.Background()); err != nil {
				return err
			}
			if err := one(at + 5); err != nil {
				return err
			}
		}
		at = int(j.Size())
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for w := range errs {
			wg.Go(func() {
				for i := range 3 {
					if err := one(at + w*3 + i); err != nil {
						errs[w] = err
					}
				}
			})
		}
		wg.Wait()
		for _, err := range append(errs, j.Close()) {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// promise is what the process was told.
type promise struct {
	entries map[uint64]int
	roots   map[uint64][32]byte
}

// TestPowerCut cuts the power after each thing that the process did, in each of
// the ways of Losses, and reopens the journal. Everything that was acknowledged
// is there, nothing is invented, and every checkpoint that was given out is
// still one of this log.
//
// Not with the race detector, under which it takes a minute: make oracle runs it.
func TestPowerCut(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace: ", err)
	}
	for _, size := range []int{0, before}[:sample.Of(1, 2)] {
		t.Run(fmt.Sprint("from ", size), func(t *testing.T) {
			// Not in parallel: a process that the other forks holds our lock until it executes.
			cutEverywhere(t, strace, size)
		})
	}
}

func cutEverywhere(t *testing.T, strace string, size int) {
	root := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "palyra-powercut-"); err == nil {
		// fsync waits for no disk there.
		root = shm
		t.Cleanup(func() { os.RemoveAll(shm) })
	}
	state := filepath.Join(root, "state")
	ring, err := keyring.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(state, "journal")
	if size > 0 {
		j, err := journal.Open(dir, ring.Log(), journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range size {
			if _, err := j.Append(t.Context(), entry(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	disk, err := Load(state)
	if err != nil {
		t.Fatal(err)
	}
	ops := record(t, strace, state, filepath.Join(root, "trace"))
	rng := rand.New(rand.NewPCG(6, uint64(size)))
	p := promise{make(map[uint64]int), make(map[uint64][32]byte)}
	kinds := make(map[string]int)
	seen, cuts := make(map[string]bool), 0
	for i := 0; ; i++ {
		// Before a flush everything since the last can be lost; before a rename the
		// names can be those of then.
		boundary := i == len(ops) || ops[i].Kind == "sync" || ops[i].Kind == "rename"
		random := 2
		if boundary {
			for _, loss := range Losses(rng, random) {
				cut := filepath.Join(root, "cut")
				sum, err := disk.Cut(cut, loss)
				if err != nil {
					t.Fatal(err)
				}
				cuts++
				if state := fmt.Sprintf("%x %d", sum, len(p.entries)); seen[state] {
					if err := os.RemoveAll(cut); err != nil {
						t.Fatal(err)
					}
					continue // the same files under the same promise
				} else {
					seen[state] = true
				}
				judge(t, cut, ring, p, size)
				if t.Failed() {
					what := "at the end"
					if i < len(ops) {
						what = fmt.Sprintf("before %s %q", ops[i].Kind, ops[i].Path)
					}
					t.Fatalf("power cut %s (op %d of %d), %s", what, i, len(ops), loss.Name)
				}
				if err := os.RemoveAll(cut); err != nil {
					t.Fatal(err)
				}
			}
		}
		if i == len(ops) {
			break
		}
		kinds[ops[i].Kind]++
		if err := disk.Do(ops[i]); err != nil {
			t.Fatal(err)
		}
		if ops[i].Kind == "say" {
			p.hear(t, string(ops[i].Data))
		}
	}
	if kinds["say"] != rounds*17+1 || kinds["sync"] < 20 || kinds["write"] < 20 || kinds["rename"] < 6 {
		t.Errorf("the recording is not one of this workload: %v", kinds)
	}
	if len(seen) < 100 {
		t.Errorf("only %d different states", len(seen))
	}
	t.Logf("%d operations %v, %d power cuts, %d different states reopened", len(ops), kinds, cuts, len(seen))
}

// record runs the workload under strace on the state directory itself.
func record(t *testing.T, strace, state, out string) []Op {
	t.Helper()
	args := append([]string{"-o", out}, straceArgs...)
	c := exec.Command(strace, append(args, "--", os.Args[0])...)
	c.Env = append(os.Environ(), "PALYRA_TEST_WORK="+state)
	if b, err := c.CombinedOutput(); err != nil {
		t.Fatalf("strace: %v\n%s", err, b)
	}
	ops, err := ParseTrace(out, state)
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

func (p *promise) hear(t *testing.T, line string) {
	t.Helper()
	var index, size uint64
	var i int
	var root []byte
	if n, err := fmt.Sscanf(line, "acknowledged %d %d %d %x\n", &index, &i, &size, &root); n != 4 || err != nil || len(root) != 32 {
		t.Fatalf("the process says %q", line)
	}
	p.entries[index], p.roots[size] = i, [32]byte(root)
}

// judge reopens what is left and holds it to the promise.
func judge(t *testing.T, state string, ring *keyring.Ring, p promise, size int) {
	t.Helper()
	dir, vkey := filepath.Join(state, "journal"), ring.Log().VKey()
	if _, err := os.Lstat(filepath.Join(dir, "wal")); err == nil {
		// An auditor comes before the next writer.
		if _, err := journal.Check(dir, journal.OneKey(vkey)); err != nil {
			t.Error(err)
		}
	}
	j, err := journal.Open(dir, ring.Log(), journal.Options{})
	if err != nil {
		t.Error(err)
		return
	}
	defer j.Close()
	n := j.Size()
	if n < uint64(size) {
		t.Errorf("%d entries, had %d before", n, size)
	}
	for i := range uint64(size) {
		if _, ok := p.entries[i]; !ok && i%16 == 0 {
			held(t, j, i, int(i))
		}
	}
	for i, want := range p.entries {
		if i >= n {
			t.Errorf("entry %d was acknowledged and is lost", i)
			continue
		}
		held(t, j, i, want)
	}
	if n > 0 {
		cp, err := j.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		now, err := journal.OpenCheckpoint(cp, vkey)
		if err != nil {
			t.Fatal(err)
		}
		for at, root := range p.roots {
			c, err := j.ProveConsistency(t.Context(), at)
			if err == nil {
				err = c.Verify(root, now.Root)
			}
			if err != nil {
				t.Errorf("a checkpoint of size %d was given out that the log does not extend: %v", at, err)
			}
		}
	}
	seen := make(map[string]bool)
	for rec, err := range j.Entries(0, n) {
		if err != nil {
			t.Error(err)
			return
		}
		leaf := string(rec.Leaf)
		if seen[leaf] || !strings.HasPrefix(leaf, "leaf ") || number(rec.Leaf) >= size+rounds*17+1 {
			t.Errorf("entry %d is invented or doubled: %q", rec.Index, rec.Leaf)
		}
		seen[leaf] = true
	}
	if _, err := j.Append(context.Background(), journal.Entry{Leaf: []byte("after the power cut")}); err != nil {
		t.Errorf("append after the power cut: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if r, err := journal.Check(dir, journal.OneKey(vkey)); err != nil {
		t.Error(err)
	} else if r.Size != n+1 || r.Published != r.Size || len(r.Notes) != 0 {
		t.Errorf("after recovery: %+v", r)
	}
}

// held checks that entry i is there, provable, with its content.
func held(t *testing.T, j *journal.Journal, i uint64, want int) {
	t.Helper()
	e := entry(want)
	p, err := j.Prove(t.Context(), i)
	if err == nil {
		err = p.Verify(e.Leaf)
	}
	if err != nil {
		t.Errorf("entry %d: %v", i, err)
	}
	if c, err := j.Content(i); err != nil || !bytes.Equal(c, e.Content) {
		t.Errorf("content of entry %d is lost: %v", i, err)
	}
}

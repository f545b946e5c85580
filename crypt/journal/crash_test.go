//go:build unix

package journal

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/crypt/keyring"
	"palyra/internal/durable"
	"palyra/internal/sample"
)

// TestMain runs the process that is to be killed when the environment asks.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PALYRA_TEST_CRASH"); dir != "" {
		kill, err := strconv.Atoi(os.Getenv("PALYRA_TEST_STEP"))
		if err == nil {
			err = victim(dir, os.Getenv("PALYRA_TEST_SCRIPT"), kill)
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// victim works on the journal and dies at its n-th step, or at the n-th of a name; with -1 it
// lives and prints them. It prints each promise that it got before it relies on it.
func victim(state, script string, n int) error {
	ring, err := keyring.Open(state)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	count, at := 0, os.Getenv("PALYRA_TEST_AT")
	step := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if at != "" && name != at {
			return
		}
		if n < 0 {
			fmt.Println("step", name)
		}
		if count++; count == n {
			fmt.Println("dies at", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	j, err := Open(filepath.Join(state, "journal"), ring.Log(), Options{TestOnlyStep: step})
	if err != nil {
		return err
	}
	one := func(i int) error {
		p, err := j.Append(context.Background(), Entry{Leaf: leafN(i), Content: contentN(i)})
		if err != nil {
			return err
		}
		proof, err := j.Prove(context.Background(), p.Index)
		if err != nil {
			return err
		}
		fmt.Println("acknowledged", p.Index, i, proof.Size, fmt.Sprintf("%x", proof.Root))
		return nil
	}
	switch script {
	case "serial":
		at := int(j.Size())
		for i := at; i < at+4; i++ {
			if err := one(i); err != nil {
				return err
			}
		}
		if err := j.Publish(context.Background()); err != nil {
			return err
		}
		if err := one(at + 4); err != nil {
			return err
		}
	case "concurrent":
		var wg sync.WaitGroup
		at := int(j.Size())
		for w := range 4 {
			wg.Go(func() {
				for i := range 3 {
					_ = one(at + w*3 + i)
				}
			})
		}
		wg.Wait()
	default:
		if err := work(j, script); err != nil {
			return err
		}
	}
	return j.Close()
}

// TestCrash kills a process at every step of appending, sealing, publishing and
// closing, and reopens what it left: everything that was acknowledged is there,
// nothing that was not asked for is, and no checkpoint that was given out has
// been left behind.
func TestCrash(t *testing.T) {
	for _, c := range []struct {
		name, script string
		size         int // of the log before
	}{
		{"new log", "serial", 0},
		{"completing the second tile", "serial", 509},
		{"groups", "concurrent", 250},
		// The steps of the second, with no tile before.
		{"completing a tile", "serial", 253},
	}[:sample.Of(3, 4)] {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newHouse(t)
			if c.size > 0 {
				j := s.open(t, Options{})
				fill(t, j, 0, c.size)
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
			template := filepath.Dir(s.dir)
			all, _ := crashOnce(t, template, c.script, c.size, -1)
			if len(all) < 14 {
				t.Errorf("only %d steps", len(all))
			}
			some := sample.Steps(all)
			for _, i := range some {
				_, at := crashOnce(t, template, c.script, c.size, i+1)
				if at == "" && c.script == "serial" { // others differ from run to run
					t.Errorf("there was no step %d", i+1)
				}
				if t.Failed() {
					t.Fatalf("after the kill at step %d, %s", i+1, at)
				}
			}
			t.Logf("killed at %d steps of %d", len(some), len(all))
		})
	}
}

// crashOnce runs the victim on a copy of the template and judges what is left. It returns the
// steps that the victim printed, and where it died.
func crashOnce(t *testing.T, template, script string, size, step int) (all []string, at string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.CopyFS(dir, os.DirFS(template)); err != nil {
		t.Fatal(err)
	}
	private(t, dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_CRASH="+dir, "PALYRA_TEST_SCRIPT="+script, "PALYRA_TEST_STEP="+strconv.Itoa(step))
	out, err := cmd.Output()
	if err != nil {
		ee, ok := err.(*exec.ExitError)
		if !ok || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("victim: %v: %s", err, out)
		}
	}
	promised := make(map[uint64]int)
	roots := make(map[uint64]string)
	sc := bufio.NewScanner(bytes.NewReader(out))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		switch f[0] {
		case "step":
			all = append(all, f[1])
		case "dies":
			at = f[2]
		case "acknowledged":
			index, _ := strconv.ParseUint(f[1], 10, 64)
			i, _ := strconv.Atoi(f[2])
			n, _ := strconv.ParseUint(f[3], 10, 64)
			promised[index], roots[n] = i, f[4]
		default:
			t.Fatalf("victim says %q", sc.Text())
		}
	}
	judge(t, dir, size, promised, roots)
	return all, at
}

// judge reopens a journal after a crash and holds it to what was promised.
func judge(t *testing.T, state string, size int, promised map[uint64]int, roots map[uint64]string) {
	t.Helper()
	ring, err := keyring.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	s := &house{ring: ring, dir: filepath.Join(state, "journal")}
	if _, err := os.Lstat(filepath.Join(s.dir, walFile)); err == nil {
		s.check(t) // an auditor comes before the next writer
	}
	j := s.open(t, Options{})
	n := int(j.Size())
	for i, want := range promised {
		if i >= uint64(n) {
			t.Errorf("entry %d was acknowledged and is lost", i)
			continue
		}
		p, err := j.Prove(t.Context(), i)
		if err != nil {
			t.Error(err)
			continue
		}
		verifyProof(t, ring.Log().VKey(), p, leafN(want))
		if c, err := j.Content(i); err != nil || !bytes.Equal(c, contentN(want)) {
			t.Errorf("content of entry %d is lost: %v", i, err)
		}
	}
	for at, want := range roots {
		if root, err := j.tree.rootAt(at); err != nil || fmt.Sprintf("%x", [32]byte(root)) != want {
			t.Errorf("a checkpoint of size %d was given out that the log does not extend", at)
		}
	}
	asked := make(map[string]bool)
	for i := range size + 12 {
		asked[string(leafN(i))] = true
	}
	for rec, err := range j.Entries(0, uint64(n)) {
		if err != nil {
			t.Fatal(err)
		}
		if !asked[string(rec.Leaf)] {
			t.Errorf("entry %d is invented or doubled: %q", rec.Index, rec.Leaf)
		}
		delete(asked, string(rec.Leaf))
	}
	if _, err := j.Append(context.Background(), Entry{Leaf: []byte("after the crash")}); err != nil {
		t.Errorf("append after the crash: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if r := s.check(t); r.Size != uint64(n)+1 || len(r.Notes) != 0 || r.Published != r.Size {
		t.Errorf("after recovery: %+v", r)
	}
	err = filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && durable.IsTemp(d.Name()) && filepath.Dir(path) == s.dir {
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// private gives a copied state directory its modes back.
func private(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPowerFailure takes back what was never flushed: files that Close replaced
// are empty, zero or gone, and the write-ahead file loses the record that was
// being written.
func TestPowerFailure(t *testing.T) {
	lose := map[string]func(string) error{
		"empty": func(p string) error { return os.Truncate(p, 0) },
		"zeros": func(p string) error {
			fi, err := os.Stat(p)
			if err != nil {
				return err
			}
			return os.WriteFile(p, make([]byte, fi.Size()), 0o600)
		},
		"gone": os.Remove,
	}
	for how, do := range lose {
		for _, size := range []int{5, 300} {
			for _, file := range []string{"checkpoint", "bundle", "tile", "all"} {
				if how == "gone" && size == 300 && file != "bundle" && file != "tile" {
					continue // a checkpoint that was durable once is replaced, never removed
				}
				t.Run(fmt.Sprintf("%s %s %d", how, file, size), func(t *testing.T) {
					s := newHouse(t)
					j := s.open(t, Options{})
					fill(t, j, 0, size)
					if err := j.Close(); err != nil {
						t.Fatal(err)
					}
					n := fmt.Sprintf("%03d.p/%d", size/256, size%256)
					for name, path := range map[string]string{"checkpoint": "checkpoint", "bundle": "tile/entries/" + n, "tile": "tile/0/" + n} {
						if file != name && file != "all" {
							continue
						}
						if err := do(filepath.Join(s.dir, path)); err != nil {
							t.Fatal(err)
						}
					}
					promised := make(map[uint64]int)
					for i := range size {
						promised[uint64(i)] = i
					}
					judge(t, filepath.Dir(s.dir), size, promised, nil)
				})
			}
		}
	}
}

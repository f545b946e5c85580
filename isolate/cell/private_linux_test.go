package cell

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestSweepPrivate: what a dead palyra-cell of ours left goes, and nothing else.
func TestSweepPrivate(t *testing.T) {
	in := t.TempDir()
	make := func() (string, *os.File) {
		path, lock, err := makePrivate(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(path, "a/b"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path, lock
	}
	alive, lock := make()
	defer lock.Close()
	dead, lock := make()
	lock.Close() // as the kernel does for a process that was killed
	kept := filepath.Join(in, "precious")
	for _, err := range []error{
		os.Mkdir(kept, 0o700),
		os.WriteFile(filepath.Join(kept, "file"), nil, 0o600),
		os.Symlink(kept, filepath.Join(dead, "a/link")),
		os.Symlink(kept, filepath.Join(in, privatePrefix+"1")),
		os.WriteFile(filepath.Join(in, privatePrefix+"2"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	stay := []string{alive, filepath.Join(kept, "file"), filepath.Join(in, privatePrefix+"1"), filepath.Join(in, privatePrefix+"2")}
	if os.Geteuid() == 0 {
		others, lock := make()
		lock.Close()
		if err := os.Chown(others, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		stay = append(stay, others)
	}
	sweepPrivate(in)
	if _, err := os.Lstat(dead); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead palyra-cell is still there: %v", err)
	}
	for _, path := range stay {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("swept away: %v", err)
		}
	}
	sweepPrivate(filepath.Join(in, "missing")) // is nothing
}

// TestPrivateRace: a folder that was made stays, however many sweep meanwhile.
func TestPrivateRace(t *testing.T) {
	in := t.TempDir()
	var makers, sweepers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		sweepers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					sweepPrivate(in)
				}
			}
		})
	}
	for range 2 {
		makers.Go(func() {
			for range 200 {
				path, lock, err := makePrivate(in)
				if err != nil {
					t.Errorf("make: %v", err)
					return
				}
				if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
					t.Errorf("what was made is gone: %v", err)
				}
				lock.Close()
			}
		})
	}
	makers.Wait()
	close(done)
	sweepers.Wait()
	sweepPrivate(in)
	if left, err := os.ReadDir(in); err != nil || len(left) != 0 {
		t.Errorf("%d folders are left, %v", len(left), err)
	}
}

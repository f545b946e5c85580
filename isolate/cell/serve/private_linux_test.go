package serve

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"palyra/isolate/internal/sys"
)

// TestSweepPrivate: the sweep removes the leftovers of our dead palyra-cells, and nothing else.
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
	lock.Close() // as the kernel does for a killed process
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
	sweepPrivate(filepath.Join(in, "missing")) // does nothing
}

// TestPrivateRace: a folder that was made stays, however many processes sweep meanwhile.
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

// TestRemoveFolder: a folder goes although its program took all our rights to it, and nested
// more folders than there are descriptors.
func TestRemoveFolder(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs an unprivileged user: modes keep nothing from root")
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 100
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	for _, sweep := range []bool{false, true} {
		in := t.TempDir()
		path, lock, err := makePrivate(in)
		if err != nil {
			t.Fatal(err)
		}
		deep := filepath.Join(path, "deep")
		for range 300 {
			if err := os.MkdirAll(filepath.Join(deep, "palyra-1", "d"), 0o700); err != nil {
				t.Fatal(err)
			}
			deep = filepath.Join(deep, "d")
			if err := os.Mkdir(deep, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range []error{
			os.WriteFile(filepath.Join(deep, "file"), nil, 0),
			os.Mkdir(filepath.Join(path, "x"), 0o700),
			os.WriteFile(filepath.Join(path, "x/file"), nil, 0),
			os.Symlink("/", filepath.Join(path, "x/link")),
			os.Chmod(filepath.Join(path, "x"), 0),
			os.Chmod(path, 0),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if os.RemoveAll(path) == nil {
			t.Error("the standard library removes it, too: this proves nothing")
		}
		if sweep {
			lock.Close()
			sweepPrivate(in)
		} else if err := sys.RemoveTree(path, lock); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(in); err != nil || len(left) != 0 {
			t.Errorf("sweep %t: %v is left, %v", sweep, left, err)
			os.Chmod(path, 0o700)
		}
		lock.Close()
	}
}

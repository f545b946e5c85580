//go:build unix

package config

import (
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"palyra/internal/sample"
)

// TestFileIsOne: the file that is read is the one that was judged, whatever its name leads to a
// moment later.
func TestFileIsOne(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"ours": 0o644, "theirs": 0o666} {
		file := filepath.Join(dir, name, "palyrad.toml")
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		text := "[policy]\ndir = \"/" + name + "\"\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(dir, "at")
	lead := func(to string, n int) error { // as rename(2) does, in one step
		tmp := at + strconv.Itoa(n)
		if err := os.Symlink(to, tmp); err != nil {
			return err
		}
		return os.Rename(tmp, at)
	}
	if err := lead("ours", 0); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	done := make(chan error)
	go func() {
		var err error
		for n := 1; err == nil && !over.Load(); n++ {
			err = lead([]string{"ours", "theirs"}[n%2], n)
		}
		done <- err
	}()
	read := 0
	for range sample.Of(2_000, 20_000) {
		c, err := Load(filepath.Join(at, "palyrad.toml"), base)
		if err != nil {
			continue // it was theirs
		}
		if read++; c.Policy.Dir != "/ours" {
			t.Errorf("a file that others may write to was read: policy.dir is %q", c.Policy.Dir)
			break
		}
	}
	over.Store(true)
	if err := <-done; err != nil || read == 0 {
		t.Errorf("%v, %d reads", err, read)
	}
}

package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"palyra/internal/durable"
)

// TestRestoreCleans: what a restore left that was killed goes with the next one
// to the same place, and nothing else does.
func TestRestoreCleans(t *testing.T) {
	h := newHouse(t)
	b, _ := h.backup(t, h.options())
	base := t.TempDir()
	dir := filepath.Join(base, "state")
	folder := func(name string, files ...string) string {
		t.Helper()
		at := filepath.Join(base, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(at, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return at
	}
	killed := folder(".state.restoring-KILLED", restoreLock, "half")
	old := folder(".state.restoring-OLD", "half")
	long := time.Now().Add(-2 * abandonedAfter)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	busy := folder(".state.restoring-BUSY", restoreLock)
	l, err := durable.Lock(filepath.Join(busy, restoreLock))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	young := folder(".state.restoring-YOUNG")
	other := folder(".other.restoring-X", restoreLock)
	theirs := folder(".state.restoring-PUBLIC", restoreLock)
	if err := os.Chmod(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(context.Background(), bytes.NewReader(b), h.unlock(), dir); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{killed, old, filepath.Join(dir, restoreLock)} {
		if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	for _, kept := range []string{busy, young, other, theirs} {
		if _, err := os.Lstat(kept); err != nil {
			t.Error(err)
		}
	}
}

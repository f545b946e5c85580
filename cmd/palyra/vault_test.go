package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"palyra/internal/fault"
)

// TestGone: an identity goes with the vault that wasn't made, and stays if there is one that it may
// open.
func TestGone(t *testing.T) {
	full := errors.New("no space left on device")
	exists := fault.New(fault.BadState, "exists", "create vault", errors.New("there is one already"))
	for _, c := range []struct {
		name string
		head bool
		err  error
		want bool
	}{
		{"no vault", false, full, true},
		{"the journal wasn't told of the head", true, full, false},
		{"another process made the vault", true, exists, true},
	} {
		dir := t.TempDir()
		if c.head {
			if err := os.WriteFile(filepath.Join(dir, "head"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := gone(dir, c.err); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestFill: a file that couldn't be written whole isn't there, so that the next attempt can be.
func TestFill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("a part"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path) // for reading: a write fails
	if err != nil {
		t.Fatal(err)
	}
	if err := fill(f, []byte("all")); err == nil {
		t.Error("a failed write is no error")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part stays: %v", err)
	}
}

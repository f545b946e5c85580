package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"palyra/internal/fault"
)

// TestDropIdentities: an identity goes with the vault that wasn't made, and stays if there is one
// that it may open.
func TestDropIdentities(t *testing.T) {
	full := errors.New("no space left on device")
	exists := fault.New(fault.BadState, "vault_exists", "create vault", errors.New("there is one already"))
	for _, c := range []struct {
		name string
		head bool
		err  error
		want bool
	}{
		{"no vault", false, full, false},
		{"the journal wasn't told of the head", true, full, true},
		{"another process made the vault", true, exists, false},
	} {
		dir := t.TempDir()
		key := filepath.Join(dir, "key")
		files := []string{key}
		if c.head {
			files = append(files, filepath.Join(dir, "head"))
		}
		for _, path := range files {
			if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		dropIdentities(dir, []string{key}, c.err)
		if _, err := os.Lstat(key); (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
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

package main

import (
	"os"
	"path/filepath"
	"testing"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// TestUnlockOf: the identity is a private file, or a credential of the unit, and is given out
// again and again.
func TestUnlockOf(t *testing.T) {
	own, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "id")
	write := func(mode os.FileMode, b []byte) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.WriteFile(path, b, mode); err != nil {
			t.Fatal(err)
		}
	}
	none := func(string) string { return "" }
	unit := func(name string) string {
		if name == "CREDENTIALS_DIRECTORY" {
			return dir
		}
		return ""
	}
	if u, err := unlockOf("", none); u != nil || err != nil {
		t.Errorf("no path: %v", err)
	}
	for _, c := range []struct {
		what   string
		mode   os.FileMode
		b      []byte
		getenv func(string) string
		reason string
	}{
		{"private", 0o600, own.Encode(), none, ""},
		{"open to the group", 0o640, own.Encode(), none, "unsafe_file"},
		{"a credential", 0o440, own.Encode(), unit, ""},
		{"text", 0o600, []byte("text\n"), none, "key_corrupt"},
		{"text in a credential", 0o600, []byte("text\n"), unit, "key_corrupt"},
	} {
		write(c.mode, c.b)
		u, err := unlockOf(path, c.getenv)
		if fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v", c.what, err)
		}
		if err != nil {
			continue
		}
		for range 2 {
			id, err := u()
			if err != nil {
				t.Fatal(err)
			}
			id.Wipe()
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := unlockOf(path, none); err == nil {
		t.Error("a missing file")
	}
}

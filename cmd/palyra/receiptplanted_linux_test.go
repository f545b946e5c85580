package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReceiptOntoPlanted: what the program of an earlier call left in the workspace
// under the name that the receipt of the next one is to have leads nothing of palyra's
// to another file: a link is refused before anything is decided, and so is what is
// no file; a hard link is replaced, and the file that it was another name of
// stays as it is.
func TestReceiptOntoPlanted(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(precious, at string) error
		taken bool // the receipt is put there
	}{
		"link to a file":       {os.Symlink, false},
		"link through a link":  {func(p, at string) error { return os.Symlink("other", at) }, false},
		"link to nothing":      {func(p, at string) error { return os.Symlink(p+".new", at) }, false},
		"link to a folder":     {func(p, at string) error { return os.Symlink(filepath.Dir(p), at) }, false},
		"FIFO":                 {func(p, at string) error { return syscall.Mkfifo(at, 0o666) }, false},
		"folder":               {func(p, at string) error { return os.Mkdir(at, 0o777) }, false},
		"hard link":            {os.Link, true},
		"hard link, read-only": {func(p, at string) error { return firstOf(os.Chmod(p, 0o444), os.Link(p, at)) }, true},
		"nothing":              {func(p, at string) error { return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			ws, host := t.TempDir(), t.TempDir()
			precious, at := filepath.Join(host, "precious"), filepath.Join(ws, "r.json")
			if err := firstOf(os.WriteFile(precious, []byte("precious"), 0o644), os.Symlink(precious, filepath.Join(ws, "other")), c.plant(precious, at)); err != nil {
				t.Fatal(err)
			}
			status, _, stderr := h.run("", "exec", "--state", h.state, "--workspace", ws, "--receipt", at, "--", "/bin/sh", "-c", "id")
			want := 125
			if c.taken {
				want = 126 // the call is denied, which has a receipt, too
			}
			if status != want || strings.Contains(stderr, "not a regular file") == c.taken {
				t.Errorf("status %d, want %d: %s", status, want, stderr)
			}
			if b, err := os.ReadFile(precious); err != nil || string(b) != "precious" {
				t.Errorf("the host's file holds %q, %v", b, err)
			}
			if left, err := os.ReadDir(host); err != nil || len(left) != 1 {
				t.Errorf("the host's folder holds %v, %v", left, err)
			}
			if !c.taken {
				if _, err := os.Stat(h.state); !os.IsNotExist(err) {
					t.Errorf("something was decided: %v", err)
				}
				return
			}
			b, err := os.ReadFile(at)
			if err != nil || !bytes.Contains(b, []byte("application/vnd.dev.sigstore.bundle")) {
				t.Errorf("the receipt is %.60q, %v", b, err)
			}
			if fi, err := os.Lstat(at); err != nil || !fi.Mode().IsRegular() || fi.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Errorf("the receipt's file: %v, %v", fi, err)
			}
			if left, _ := filepath.Glob(filepath.Join(ws, ".palyra*")); left != nil {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// firstOf returns the first error.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

package built

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInto: programs, all or some, come from where the variable says, and are built without it.
// A program that isn't there is an error that names it.
func TestInto(t *testing.T) {
	made, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(made, "palyra-tool"), []byte("made"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(from, made)
	if err := Into(dir, "palyra-tool"); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "palyra-tool")
	if b, err := os.ReadFile(at); err != nil || string(b) != "made" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if i, err := os.Stat(at); err != nil || i.Mode().Perm()&0o100 == 0 {
		t.Errorf("%v, %v", i, err)
	}
	all := t.TempDir()
	if err := errors.Join(os.Mkdir(made+"/folder", 0o755), os.Symlink("palyra-tool", made+"/link"), Into(all)); err != nil {
		t.Fatal(err)
	}
	if got, err := filepath.Glob(all + "/*"); err != nil || len(got) != 1 || filepath.Base(got[0]) != "palyra-tool" {
		t.Errorf("all: %q, %v", got, err)
	}
	t.Setenv(from, "")
	dir = t.TempDir()
	if err := Into(dir, "palyra-tool"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(dir + "/palyra-tool"); err != nil || len(b) < 1<<20 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for _, folder := range []string{made, ""} {
		t.Setenv(from, folder)
		if err := Into(dir, "palyra-no"); err == nil || !strings.Contains(err.Error(), "palyra-no") {
			t.Errorf("from %q: %v", folder, err)
		}
	}
}

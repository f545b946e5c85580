package receiptfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"palyra/internal/fault"
)

// A thing that a program puts in the place of the receipt's folder or file is neither
// followed nor opened.
func TestIsNotLedAway(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(at("ws/sub"), 0o755))
	must(os.Mkdir(at("host"), 0o755))
	must(os.WriteFile(at("host/r.json"), []byte("precious"), 0o644))

	open := func(name string) *File {
		t.Helper()
		f, err := Open(at(name))
		must(err)
		return f
	}

	kept := open("ws/sub/r.json")
	defer kept.Close()
	must(os.Rename(at("ws/sub"), at("ws/moved")))
	must(os.Symlink(at("host"), at("ws/sub")))
	must(kept.Keep([]byte("receipt"), 7, 0o644))
	if b, err := os.ReadFile(at("host/r.json")); err != nil || string(b) != "precious" {
		t.Errorf("the host's file holds %q, %v", b, err)
	}
	if b, err := os.ReadFile(at("ws/moved/r.json")); err != nil || string(b) != "receipt" {
		t.Errorf("the folder that was named holds %q, %v", b, err)
	}

	for name, plant := range map[string]func(string) error{
		"link": func(p string) error { return os.Symlink(at("host/r.json"), p) },
		"fifo": func(p string) error { return syscall.Mkfifo(p, 0o644) },
	} {
		kept := open(name + ".json")
		must(plant(kept.path))
		must(kept.Keep([]byte("receipt"), 7, 0o644))
		kept.Close()
		if fi, err := os.Lstat(kept.path); err != nil || !fi.Mode().IsRegular() || fi.Size() != 7 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if b, err := os.ReadFile(at("host/r.json")); err != nil || string(b) != "precious" {
		t.Errorf("the host's file holds %q, %v", b, err)
	}

	kept = open("folder.json")
	must(os.MkdirAll(at("folder.json/x"), 0o755))
	if err := kept.Keep([]byte("receipt"), 7, 0o644); fault.ReasonOf(err) != "io_error" {
		t.Errorf("onto a folder: %v", err)
	}
	kept.Close()
	if left, _ := filepath.Glob(at(".*palyra*")); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"palyra/internal/fault"
	"palyra/kernel"
)

// A thing that a program puts in the place of the receipt's folder or file is neither
// followed nor opened.
func TestReceiptFileIsNotLedAway(t *testing.T) {
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

	kept := receiptFile{path: at("ws/sub/r.json")}
	must(kept.open())
	defer kept.close()
	must(os.Rename(at("ws/sub"), at("ws/moved")))
	must(os.Symlink(at("host"), at("ws/sub")))
	must(kept.keep(&kernel.Outcome{Receipt: []byte("receipt")}))
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
		kept := receiptFile{path: at(name + ".json")}
		must(kept.open())
		must(plant(kept.path))
		must(kept.keep(&kernel.Outcome{Receipt: []byte("receipt")}))
		kept.close()
		if fi, err := os.Lstat(kept.path); err != nil || !fi.Mode().IsRegular() || fi.Size() != 7 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if b, err := os.ReadFile(at("host/r.json")); err != nil || string(b) != "precious" {
		t.Errorf("the host's file holds %q, %v", b, err)
	}

	kept = receiptFile{path: at("folder.json")}
	must(kept.open())
	must(os.MkdirAll(at("folder.json/x"), 0o755))
	if err := kept.keep(&kernel.Outcome{Receipt: []byte("receipt")}); fault.ReasonOf(err) != "write_failed" {
		t.Errorf("onto a folder: %v", err)
	}
	kept.close()
	if left, _ := filepath.Glob(at(".*palyra*")); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

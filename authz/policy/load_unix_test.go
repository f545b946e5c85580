//go:build unix

package policy

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
)

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadDirectory(t *testing.T) {
	outside := write(t, map[string]string{"b.cedar": permitAll})
	tests := []struct {
		name   string
		change func(dir string) error
		reason string // "" loads
	}{
		{"as written", func(string) error { return nil }, ""},
		{"private", func(dir string) error { return os.Chmod(filepath.Join(dir, "a.cedar"), 0o600) }, ""},
		{"ignored files", func(dir string) error { return os.WriteFile(filepath.Join(dir, ".a.cedar.swp"), nil, 0o666) }, ""},
		{"link to a file within", func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, ".real"), []byte("// nothing\n"), 0o644); err != nil {
				return err
			}
			return os.Symlink(".real", filepath.Join(dir, "b.cedar"))
		}, ""},
		{"link out", func(dir string) error {
			return os.Symlink(filepath.Join(outside, "b.cedar"), filepath.Join(dir, "b.cedar"))
		}, "unsafe_file"},
		{"relative link out", func(dir string) error {
			return os.Symlink(filepath.Join("..", filepath.Base(outside), "b.cedar"), filepath.Join(dir, "b.cedar"))
		}, "unsafe_file"},
		{"dangling link", func(dir string) error { return os.Symlink("nowhere", filepath.Join(dir, "b.cedar")) }, "unsafe_file"},
		{"others can write", func(dir string) error { return os.Chmod(filepath.Join(dir, "a.cedar"), 0o646) }, "unsafe_file"},
		{"group can write", func(dir string) error { return os.Chmod(filepath.Join(dir, "a.cedar"), 0o664) }, "unsafe_file"},
		{"directory others can write", func(dir string) error { return os.Chmod(dir, 0o777) }, "unsafe_file"},
		{"directory as policy", func(dir string) error { return os.Mkdir(filepath.Join(dir, "b.cedar"), 0o755) }, "unsafe_file"},
		{"FIFO", func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "b.cedar"), 0o644) }, "unsafe_file"},
		{"device", func(dir string) error { return os.Symlink("/dev/zero", filepath.Join(dir, "b.cedar")) }, "unsafe_file"},
		{"10 MB", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "b.cedar"), []byte(strings.Repeat(permitAll, 10<<20/len(permitAll))), 0o644)
		}, "too_large"},
		{"terabyte of holes", func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "b.cedar"), nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(filepath.Join(dir, "b.cedar"), 1<<40)
		}, "too_large"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := write(t, map[string]string{"a.cedar": permitAll})
			if err := test.change(dir); err != nil {
				t.Fatal(err)
			}
			s, err := Load(dir)
			if got := fault.ReasonOf(err); got != test.reason || (err == nil) != (s != nil) {
				t.Fatalf("got %q, want %q: %v", got, test.reason, err)
			}
			if err != nil && fault.HintOf(err) == "" {
				t.Errorf("no hint: %v", err)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); fault.KindOf(err) != fault.NotFound {
		t.Errorf("missing directory: %v", err)
	}
	if _, err := Load(filepath.Join(outside, "b.cedar")); fault.KindOf(err) != fault.BadState {
		t.Errorf("file as directory: %v", err)
	}
}

// TestLoadForeignOwner: root doesn't read a directory that another user can write.
func TestLoadForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away; CI runs this package as root too")
	}
	for _, name := range []string{"", "a.cedar"} {
		dir := write(t, map[string]string{"a.cedar": permitAll})
		if err := os.Chown(filepath.Join(dir, name), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); fault.ReasonOf(err) != "unsafe_file" || !strings.Contains(err.Error(), "uid 65534") {
			t.Errorf("%q owned by nobody: %v", name, err)
		}
	}
}

// TestListedSame: a directory that changes between the two listings isn't half loaded.
func TestListedSame(t *testing.T) {
	dir := write(t, map[string]string{"a.cedar": permitAll})
	snapshot := func() listed {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		l, err := list(root)
		if err != nil || len(l) != 1 {
			t.Fatal(l, err)
		}
		return l[0]
	}
	path := filepath.Join(dir, "a.cedar")
	before := snapshot()
	if !before.same(snapshot()) {
		t.Error("unchanged file differs")
	}
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	touched := snapshot()
	if before.same(touched) {
		t.Error("another modification time is not noticed")
	}
	if err := os.WriteFile(path+".new", []byte(permitAll), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path+".new", time.Time{}, touched.info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if touched.same(snapshot()) {
		t.Error("another file under the name is not noticed")
	}
}

func TestDefaultDirectoryOnDisk(t *testing.T) {
	files, err := readFS(DefaultFS())
	if err != nil {
		t.Fatal(err)
	}
	onDisk := make(map[string]string)
	for _, f := range files {
		onDisk[f.name] = string(f.data)
	}
	s, err := Load(write(t, onDisk))
	if err != nil {
		t.Fatal(err)
	}
	if s.Digest() != Default().Digest() {
		t.Error("the same files have another digest on disk")
	}
}

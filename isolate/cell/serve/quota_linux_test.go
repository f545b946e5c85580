package serve

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func filled(t *testing.T, path string, n int) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", path, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func openDir(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

func TestOverQuota(t *testing.T) {
	const plenty = 1 << 40
	for name, c := range map[string]struct {
		plant         func(dir string) error
		bytes, inodes int64
		over          string
	}{
		"empty":           {func(string) error { return nil }, plenty, 1, ""},
		"no room at all":  {func(string) error { return nil }, plenty, 0, "disk"},
		"files, just":     {func(d string) error { filled(t, d+"/a/b", 7); return nil }, plenty, 10, ""},
		"files, one more": {func(d string) error { filled(t, d+"/a/b", 8); return nil }, plenty, 10, "disk"},
		"many":            {func(d string) error { filled(t, d+"/a", 2000); return nil }, plenty, 2002, ""}, // more than a buffer of names
		"too many":        {func(d string) error { filled(t, d+"/a", 2001); return nil }, plenty, 2002, "disk"},
		"bytes": {func(d string) error {
			return os.WriteFile(d+"/a", []byte(strings.Repeat("x", 1<<20)), 0o644)
		}, 1 << 19, 100, "disk"},
		"a sparse file": {func(d string) error {
			if err := os.WriteFile(d+"/a", nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(d+"/a", 1<<30)
		}, 1 << 20, 100, ""},
		"links out": {func(d string) error {
			if err := os.Symlink("/", d+"/a"); err != nil {
				return err
			}
			return os.Symlink("..", d+"/b")
		}, plenty, 3, ""},
		"a FIFO that nobody writes to": {func(d string) error { return syscall.Mkfifo(d+"/a", 0o666) }, plenty, 2, ""},
		"hidden, just":                 {func(d string) error { return os.Chmod(filepath.Dir(filled(t, d+"/a/b", 7)), 0) }, plenty, 10, ""},
		"hidden":                       {func(d string) error { return os.Chmod(filepath.Dir(filled(t, d+"/a/b", 8)), 0) }, plenty, 10, "disk"},
		"hidden at the top":            {func(d string) error { return os.Chmod(filepath.Dir(filled(t, d+"/a", 9)), 0) }, plenty, 10, "disk"},
		"nested too deep": {func(d string) error {
			return os.MkdirAll(d+strings.Repeat("/d", maxNested), 0o755)
		}, plenty, plenty, "uncounted"},
		"nested": {func(d string) error {
			return os.MkdirAll(d+strings.Repeat("/d", maxNested-1), 0o755)
		}, plenty, plenty, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fd := openDir(t, dir)
			if err := c.plant(dir); err != nil {
				t.Fatal(err)
			}
			got, left := overQuota(fd, c.bytes, c.inodes)
			if got != c.over {
				t.Errorf("over %q, want %q", got, c.over)
			}
			if got == "disk" && min(left[0], left[1]) != 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
	// Half of the files is left, then a quarter of the bytes.
	dir := t.TempDir()
	fd := openDir(t, dir)
	filled(t, dir+"/a", 3)
	if _, left := overQuota(fd, plenty, 10); left[1] != 0.5 || left[0] < 0.99 {
		t.Errorf("with 5 of 10 files %v is left", left)
	}
	if err := os.WriteFile(dir+"/a/b", bytes.Repeat([]byte("x"), 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, left := overQuota(fd, 4<<20, 100); left[0] < 0.2 || left[0] > 0.25 || left[1] != 0.94 {
		t.Errorf("with 3 of 4 MiB %v is left", left)
	}
}

// TestQuotaLedAway: a program replaces a folder by a link to a large tree of the host, after
// the folder was seen and before it's opened. The tree isn't walked, and the call isn't killed
// for its content.
func TestQuotaLedAway(t *testing.T) {
	host := filled(t, t.TempDir(), 100)
	for name, swap := range map[string]func(string) error{
		"link":  func(p string) error { return os.Symlink(host, p) },
		"above": func(p string) error { return os.Symlink("../..", p) },
		"fifo":  func(p string) error { return syscall.Mkfifo(p, 0o666) },
		"gone":  func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			filled(t, dir+"/a", 1)
			q := &quota{bytes: 1 << 40, inodes: 10}
			entered := 0
			q.testOnlyEnter = func(folder string) {
				entered++
				if err := os.Rename(filepath.Join(dir, folder), filepath.Join(t.TempDir(), "a")); err != nil {
					t.Error(err)
				}
				if err := swap(filepath.Join(dir, folder)); err != nil {
					t.Error(err)
				}
			}
			if q.over(openDir(t, dir)) != "" || q.inodes != 8 || entered != 1 {
				t.Errorf("%d files are left of 10 after %d folders, want 8 after one", q.inodes, entered)
			}
		})
	}
}

package receiptfile

import (
	"os"
	"path/filepath"
	"testing"

	"palyra/internal/fault"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "r.json")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{"": true, file: true, filepath.Join(dir, "new"): true, dir: false,
		filepath.Join(dir, "link"): false, filepath.Join(file, "x"): false, filepath.Join(dir, "no/x"): false} {
		if err := Check(path); (err == nil) != ok || (err != nil && fault.KindOf(err) != fault.Usage) {
			t.Errorf("%q: %v, want ok %v", path, err, ok)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".palyra*")); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

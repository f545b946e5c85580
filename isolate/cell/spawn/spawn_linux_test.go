package spawn

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"palyra/internal/fault"
)

// TestStartError: AppArmor refuses a user namespace with EACCES, which is also the error of a
// program that may not be executed.
func TestStartError(t *testing.T) {
	dir := t.TempDir()
	program, plain := filepath.Join(dir, "program"), filepath.Join(dir, "plain")
	for path, mode := range map[string]os.FileMode{program: 0o755, plain: 0o644} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path   string
		err    syscall.Errno
		userns bool
		want   string
	}{
		{program, syscall.EACCES, true, "userns_unavailable"},
		{program, syscall.EACCES, false, "cell_start"},
		{plain, syscall.EACCES, true, "cell_start"},
		{program, syscall.ENOSPC, true, "userns_unavailable"},
		{program, syscall.ENOMEM, true, "cell_start"},
		{filepath.Join(dir, "none"), syscall.ENOENT, true, "helper_unusable"},
	} {
		err := StartError(c.path, &os.PathError{Op: "fork/exec", Path: c.path, Err: c.err}, c.userns)
		if got := fault.ReasonOf(err); got != c.want {
			t.Errorf("%s of %s, user namespace %v: %s, want %s", c.err, filepath.Base(c.path), c.userns, got, c.want)
		}
	}
}

//go:build unix

package installed

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestFind: a helper that another user could have written is not run, wherever the
// hole is.
func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(dir, cell string) error
		root  bool   // the change takes root
		want  string // in the error; "" for none
	}{
		"as installed":          {func(string, string) error { return nil }, false, ""},
		"others can write":      {func(_, cell string) error { return os.Chmod(cell, 0o757) }, false, "mode 0757"},
		"its group can write":   {func(_, cell string) error { return os.Chmod(cell, 0o775) }, false, "mode 0775"},
		"folder of others":      {func(dir, _ string) error { return os.Chmod(dir+"/bin", 0o757) }, false, "mode 0757"},
		"folder of a group":     {func(dir, _ string) error { return os.Chmod(dir+"/bin", 0o775) }, false, "mode 0775"},
		"folder above":          {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, false, "mode 0777"},
		"sticky folder":         {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, false, ""},
		"another user's":        {func(_, cell string) error { return os.Chown(cell, 65534, 65534) }, true, "user 65534"},
		"another user's folder": {func(dir, _ string) error { return os.Chown(dir, 65534, 65534) }, true, "user 65534"},
		"a link to another user's": {func(dir, cell string) error {
			os.Mkdir(dir+"/x", 0o777)
			os.Chmod(dir+"/x", 0o777)
			os.Rename(cell, dir+"/x/cell")
			return os.Symlink("../x/cell", cell)
		}, false, "mode 0777"},
		"another user's link": {func(dir, cell string) error {
			os.Rename(cell, dir+"/cell")
			os.Chmod(dir+"/bin", 0o777|os.ModeSticky)
			return errors.Join(os.Symlink("../cell", cell), os.Lchown(cell, 65534, 65534))
		}, true, "user 65534"},
		"a link to another user's link": {func(dir, cell string) error {
			os.Rename(cell, dir+"/cell")
			os.Mkdir(dir+"/tmp", 0o755)
			os.Chmod(dir+"/tmp", 0o777|os.ModeSticky)
			return errors.Join(os.Symlink(dir+"/tmp/x", cell), os.Symlink("../cell", dir+"/tmp/x"), os.Lchown(dir+"/tmp/x", 65534, 65534))
		}, true, "user 65534"},
		"a link that goes around": {func(dir, cell string) error {
			return errors.Join(os.Remove(cell), os.Symlink("palyra-cell", cell))
		}, false, "too many"},
		"not executable": {func(_, cell string) error { return os.Chmod(cell, 0o644) }, false, "not an executable file"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs root: gives a file away")
			}
			dir := t.TempDir()
			os.Chmod(filepath.Dir(dir), 0o755)
			os.Mkdir(dir+"/bin", 0o755)
			cell := dir + "/bin/palyra-cell"
			if err := os.WriteFile(cell, []byte("x"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(dir, cell); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+"/bin/palyra", []byte("x"), 0o755); err != nil {
				t.Fatal(err)
			}
			got, err := Find(dir+"/bin/palyra", "palyra-cell")
			switch {
			case c.want == "" && (err != nil || got != cell):
				t.Errorf("got %q, %v", got, err)
			case c.want != "" && (fault.ReasonOf(err) != "helper_unusable" || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %q, %v", got, err)
			case strings.HasPrefix(c.want, "mode") && !strings.HasPrefix(fault.HintOf(err), "chmod go-w "+dir):
				t.Errorf("hint %q", fault.HintOf(err))
			}
		})
	}
}

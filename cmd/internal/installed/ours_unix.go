//go:build unix

package installed

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// rootOwner is the owner of "/". That is 0, or the overflow user in a user
// namespace that does not map the host's root.
func rootOwner() uint32 {
	var st syscall.Stat_t
	if syscall.Stat("/", &st) != nil {
		return 0
	}
	return st.Uid
}

// ours refuses a file or folder that another user than root and this one can
// change, with what to do about it.
func ours(path string, fi fs.FileInfo) (hint string, err error) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return "", fmt.Errorf("owner of %q unknown", path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && st.Uid != rootOwner():
		return "chown root " + path, fmt.Errorf("user %d owns %q, want 0 or %d", st.Uid, path, os.Geteuid())
	case fi.Mode().Perm()&0o022 != 0 && (!fi.IsDir() || fi.Mode()&fs.ModeSticky == 0):
		return "chmod go-w " + path, fmt.Errorf("others can write %q (mode %04o)", path, fi.Mode().Perm())
	}
	return "", nil
}

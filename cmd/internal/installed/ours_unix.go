//go:build unix

package installed

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// rootOwner returns the owner of "/". That is 0, or the overflow user in a user
// namespace that does not map the host's root.
func rootOwner() uint32 {
	var st syscall.Stat_t
	if syscall.Stat("/", &st) != nil {
		return 0
	}
	return st.Uid
}

// resolve follows every link of an absolute path, and refuses a file, folder or link
// that another user than root and this one can change, with what to do about it.
func resolve(path string) (real, hint string, err error) {
	real = "/"
	rest := strings.Split(path, "/")
	for links := 0; ; {
		fi, err := os.Lstat(real)
		if err != nil {
			return "", "", err
		}
		if hint, err := ours(real, fi); err != nil {
			return "", hint, err
		}
		if fi.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(real)
			if links++; err == nil && links > maxLinks {
				err = &fs.PathError{Op: "follow", Path: path, Err: syscall.ELOOP}
			}
			if err != nil {
				return "", "", err
			}
			real, rest = filepath.Dir(real), append(strings.Split(target, "/"), rest...)
			if filepath.IsAbs(target) {
				real = "/"
			}
		}
		if len(rest) == 0 {
			return real, "", nil
		}
		real, rest = filepath.Join(real, rest[0]), rest[1:]
	}
}

// maxLinks is how many links the kernel follows in a path: path_resolution(7).
const maxLinks = 40

// ours refuses what another user than root and this one can change. A
// link's mode says nothing (symlink(7)): its owner counts, and the folder that holds it.
func ours(path string, fi fs.FileInfo) (hint string, err error) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return "", fmt.Errorf("owner of %q unknown", path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && st.Uid != rootOwner():
		return "chown -h root " + path, fmt.Errorf("user %d owns %q, want 0 or %d", st.Uid, path, os.Geteuid())
	case fi.Mode()&fs.ModeSymlink != 0:
	case fi.Mode().Perm()&0o022 != 0 && (!fi.IsDir() || fi.Mode()&fs.ModeSticky == 0):
		return "chmod go-w " + path, fmt.Errorf("others can write %q (mode %04o)", path, fi.Mode().Perm())
	}
	return "", nil
}

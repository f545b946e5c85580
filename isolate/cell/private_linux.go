package cell

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// The private workspaces of tier B are folders of the temporary folder, and a
// palyra-cell that is killed cannot remove them. Each is locked (flock(2)) by the
// palyra-cell that made it for as long as that lives. The next one removes those
// that bear our name, belong to our user and are locked by nobody. The lock is on
// the folder itself, which as root lies beneath a tmpfs.

// privatePrefix begins the names of private workspaces.
const privatePrefix = "palyra-b-cell-"

// sweepMost bounds how many names of the temporary folder are looked at.
const sweepMost = 1 << 16

// errMoved says that a name leads to another folder than the one that was opened.
var errMoved = errors.New("removed or replaced meanwhile")

// makePrivate makes and locks a folder in the folder in.
func makePrivate(in string) (path string, lock *os.File, err error) {
	for range 100 {
		if path, err = os.MkdirTemp(in, privatePrefix); err != nil {
			return "", nil, err
		}
		// Before it is locked somebody may take it for an orphan. The lock is then
		// had when it is gone.
		lock, err = lockFolder(path, syscall.LOCK_EX)
		if err == nil {
			return path, lock, nil
		}
		if !errors.Is(err, errMoved) && !errors.Is(err, fs.ErrNotExist) {
			os.Remove(path)
			return "", nil, err
		}
	}
	return "", nil, err
}

// lockFolder opens and locks a folder that is no link and stands where it was
// found.
func lockFolder(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), how)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(f.Fd()), how)
	}
	var at, opened os.FileInfo
	if err == nil {
		opened, err = f.Stat()
	}
	if err == nil {
		at, err = os.Lstat(path)
	}
	if err == nil && !os.SameFile(at, opened) {
		err = errMoved
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sweepPrivate removes the folders in the folder in that a dead palyra-cell of our
// user left. What it cannot remove is left to the next one.
func sweepPrivate(in string) {
	d, err := os.Open(in)
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(sweepMost)
	d.Close()
	for _, name := range names {
		if !strings.HasPrefix(name, privatePrefix) {
			continue
		}
		path := filepath.Join(in, name)
		lock, err := lockFolder(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue // somebody's, or gone
		}
		if fi, err := lock.Stat(); err == nil {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
				os.RemoveAll(path) // follows no links
			}
		}
		lock.Close()
	}
}

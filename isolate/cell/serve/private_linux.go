package serve

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"palyra/isolate/internal/sys"
)

// The private workspaces of tier B are folders of the temporary folder, and a killed
// palyra-cell can't remove them. The palyra-cell that made one locks it (flock(2)) as long as
// it lives. The next palyra-cell removes those with our prefix and our user that are unlocked.
// The lock is on the folder itself, which as root lies beneath a tmpfs.

const privatePrefix = "palyra-b-cell-"

// sweepMost bounds the names of the temporary folder that a sweep looks at.
const sweepMost = 1 << 16

// errMoved says that a name leads to a folder other than the opened one.
var errMoved = errors.New("removed or replaced meanwhile")

func makePrivate(in string) (path string, lock *os.File, err error) {
	for range 100 {
		if path, err = os.MkdirTemp(in, privatePrefix); err != nil {
			return "", nil, err
		}
		// Until it's locked, another palyra-cell may take it for an orphan and remove it; we
		// then lock a folder that is gone.
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

// lockFolder opens and locks a folder, not through a link, and checks that it still has its
// name.
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

// sweepPrivate removes the folders in the folder in that a dead palyra-cell of our user left.
// It leaves those that it can't remove to the next sweep.
func sweepPrivate(in string) {
	d, err := os.Open(in)
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(sweepMost)
	for _, name := range names {
		if !strings.HasPrefix(name, privatePrefix) {
			continue
		}
		path := filepath.Join(in, name)
		lock, err := lockFolder(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, fs.ErrPermission) && sys.Unlock(int(d.Fd()), name) == nil { // it was ours
			lock, err = lockFolder(path, syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			continue // in use, or gone
		}
		if fi, err := lock.Stat(); err == nil {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
				_ = sys.RemoveTree(path, lock)
			}
		}
		lock.Close()
	}
}

package serve

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
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
				_ = removeFolder(path, lock)
			}
		}
		lock.Close()
	}
}

// removeFolder removes a folder of ours with all its content, and follows no link. A program
// may have taken our rights to folders away, and may have nested more of them than there are
// descriptors. dir is the open folder.
func removeFolder(path string, dir *os.File) error {
	err := os.RemoveAll(path)
	if err == nil {
		return nil
	}
	if err := dir.Chmod(0o700); err != nil {
		return err
	}
	root, err := sys.OpenBeneath(int(dir.Fd()), ".")
	if err != nil {
		return err
	}
	defer sys.Close(root)
	f := flattener{root: root}
	for done := false; !done; {
		if done, err = f.pass(); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

// flattener empties a folder. It moves nested folders to the top and empties them there, so no
// path is longer than two names.
type flattener struct {
	root, moved int
}

// pass removes the folder's present content, and reports whether there was none.
func (f *flattener) pass() (empty bool, err error) {
	at, err := sys.OpenBeneath(f.root, ".") // from its beginning
	if err != nil {
		return false, err
	}
	defer sys.Close(at)
	empty = true
	err = eachName(at, func(name string, folder bool) error {
		empty = false
		if folder {
			if err := f.clear(name); err != nil {
				return err
			}
		}
		return sys.RemoveBeneath(f.root, name, folder)
	})
	return empty, err
}

func (f *flattener) clear(name string) error {
	if err := sys.Unlock(f.root, name); err != nil {
		return err
	}
	fd, err := sys.OpenBeneath(f.root, name)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	return eachName(fd, func(inner string, folder bool) error {
		if !folder {
			return sys.RemoveBeneath(fd, inner, false)
		}
		if err := sys.Unlock(fd, inner); err != nil { // moving a folder writes to it
			return err
		}
		for {
			f.moved++
			err := sys.MoveBeneath(fd, inner, f.root, "palyra-"+strconv.Itoa(f.moved))
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	})
}

// eachName calls do for the names in a folder until it has none. Each do takes its name away.
func eachName(fd int, do func(name string, folder bool) error) error {
	buf := make([]byte, 8<<10)
	for {
		names, err := sys.NextNames(fd, buf)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			_, folder, err := sys.Allocated(fd, name)
			if err == nil {
				err = do(name, folder)
			}
			if err != nil {
				return err
			}
		}
	}
}

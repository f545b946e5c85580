package sys

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// RemoveTree removes a folder of ours with all its content, and follows no link. A program
// may have taken our rights to folders away, and may have nested more of them than there are
// descriptors. dir is the open folder.
func RemoveTree(path string, dir *os.File) error {
	err := os.RemoveAll(path)
	if err == nil {
		return nil
	}
	if err := dir.Chmod(0o700); err != nil {
		return err
	}
	root, err := OpenBeneath(int(dir.Fd()), ".")
	if err != nil {
		return err
	}
	defer Close(root)
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
	at, err := OpenBeneath(f.root, ".") // from its beginning
	if err != nil {
		return false, err
	}
	defer Close(at)
	empty = true
	err = eachName(at, func(name string, folder bool) error {
		empty = false
		if folder {
			if err := f.clear(name); err != nil {
				return err
			}
		}
		return RemoveBeneath(f.root, name, folder)
	})
	return empty, err
}

func (f *flattener) clear(name string) error {
	if err := Unlock(f.root, name); err != nil {
		return err
	}
	fd, err := OpenBeneath(f.root, name)
	if err != nil {
		return err
	}
	defer Close(fd)
	return eachName(fd, func(inner string, folder bool) error {
		if !folder {
			return RemoveBeneath(fd, inner, false)
		}
		if err := Unlock(fd, inner); err != nil { // moving a folder writes to it
			return err
		}
		for {
			f.moved++
			err := MoveBeneath(fd, inner, f.root, "palyra-"+strconv.Itoa(f.moved))
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
		names, err := NextNames(fd, buf)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			_, folder, err := Allocated(fd, name)
			if err == nil {
				err = do(name, folder)
			}
			if err != nil {
				return err
			}
		}
	}
}

package sys

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// RemoveTree removes a folder of ours with all its content, and follows no link. A program
// may have taken our rights to folders away, and may have nested more of them than there are
// descriptors, of which os.RemoveAll takes one for each: all of the process's, for others to miss.
// dir is the open folder.
func RemoveTree(path string, dir *os.File) error {
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

// flattener empties a folder. It moves folders that are nested too deeply to the top and empties
// them there, so it holds few descriptors, and no path is longer than two names.
type flattener struct {
	root, moved int
}

// held is how many folders within each other a flattener holds open.
const held = 32

// pass removes the folder's present content, and reports whether there was none.
func (f *flattener) pass() (empty bool, err error) {
	at, err := OpenBeneath(f.root, ".") // from its beginning
	if err != nil {
		return false, err
	}
	defer Close(at)
	empty = true
	err = f.clear(at, held, &empty)
	return empty, err
}

// clear removes the content of a folder, and moves what is nested deeper than left to the top.
func (f *flattener) clear(fd, left int, empty *bool) error {
	return eachName(fd, func(name string, folder bool) error {
		*empty = false
		if !folder {
			return RemoveBeneath(fd, name, false)
		}
		if RemoveBeneath(fd, name, true) == nil {
			return nil // an empty one may be another user's, as overlayfs's own is
		}
		if err := Unlock(fd, name); err != nil { // moving a folder writes to it
			return err
		}
		if left == 0 {
			return f.move(fd, name)
		}
		sub, err := OpenBeneath(fd, name)
		if err != nil {
			return err
		}
		err = f.clear(sub, left-1, empty)
		Close(sub)
		if err != nil {
			return err
		}
		return RemoveBeneath(fd, name, true)
	})
}

func (f *flattener) move(fd int, name string) error {
	for {
		f.moved++
		err := MoveBeneath(fd, name, f.root, "palyra-"+strconv.Itoa(f.moved))
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
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

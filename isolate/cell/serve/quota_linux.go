package serve

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"palyra/isolate/internal/sys"
)

// maxNested bounds the depth of folders that a look enters; each level takes a descriptor.
// Deeper nesting isn't counted, and a program could hide any amount down there.
const maxNested = 256

// quota measures a directory of the host while the program that fills it runs and may replace
// anything by anything. It enters only folders of the directory itself, by descriptor. A link
// or a mount that takes the place of a folder counts as a file, and no more.
//
// It bounds programs that grow too large, but it isn't exact: a file that is moved during the
// look may count twice or not at all. A folder whose mode keeps us, its owner, from reading it
// gets another mode. A folder that still can't be read is uncounted.
type quota struct {
	bytes, inodes int64 // left; negative is over
	blind         bool  // something can't be counted
	buf           []byte

	testOnlyEnter func(name string) // called before opening a folder that was seen
}

// overQuota returns "disk" if the directory behind dir holds more than bytes of allocated blocks
// or more than inodes files, itself included, [hitUncounted] if that can't be told, else "". It
// stops at the first of the three. The parts of bytes and of inodes that are left, from 0 to 1, say
// when to look again.
func overQuota(dir int, bytes, inodes int64) (hit string, left [2]float64) {
	q := &quota{bytes: bytes, inodes: inodes}
	hit = q.over(dir)
	part := func(left, of int64) float64 { return max(0, float64(left)/float64(max(of, 1))) }
	return hit, [2]float64{part(q.bytes, bytes), part(q.inodes, inodes)}
}

func (q *quota) over(dir int) string {
	q.buf = make([]byte, 8<<10)
	root, err := sys.OpenBeneath(dir, ".")
	if errors.Is(err, fs.ErrPermission) && syscall.Fchmod(dir, 0o700) == nil {
		root, err = sys.OpenBeneath(dir, ".")
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		return hitUncounted
	}
	defer sys.Close(root)
	used, _, _ := sys.Allocated(root, ".")
	q.bytes, q.inodes = q.bytes-used, q.inodes-1
	q.look(root, maxNested)
	switch {
	case q.bytes < 0 || q.inodes < 0:
		return "disk"
	case q.blind:
		return hitUncounted
	}
	return ""
}

// done reports whether a look can end.
func (q *quota) done() bool { return q.bytes < 0 || q.inodes < 0 || q.blind }

func (q *quota) look(fd, nested int) {
	if nested == 0 {
		q.blind = true
		return
	}
	for {
		names, err := sys.NextNames(fd, q.buf)
		if err != nil || len(names) == 0 {
			return // the end, or the folder is gone
		}
		for _, name := range names {
			used, folder, err := sys.Allocated(fd, name)
			if err != nil {
				used = 0 // gone; it counts all the same, so that the look ends
			}
			if q.bytes, q.inodes = q.bytes-used, q.inodes-1; q.done() {
				return
			}
			if !folder {
				continue
			}
			if q.testOnlyEnter != nil {
				q.testOnlyEnter(name)
			}
			sub, err := openFolder(fd, name)
			if err != nil {
				if replaced(err) {
					continue
				}
				q.blind = true
				return
			}
			q.look(sub, nested-1)
			sys.Close(sub)
			if q.done() {
				return
			}
		}
	}
}

// openFolder is sys.OpenBeneath for a folder that is ours, whatever its mode.
func openFolder(dir int, name string) (int, error) {
	fd, err := sys.OpenBeneath(dir, name)
	if errors.Is(err, fs.ErrPermission) {
		if err = sys.Unlock(dir, name); err == nil {
			fd, err = sys.OpenBeneath(dir, name)
		}
	}
	return fd, err
}

// replaced reports whether an error of openFolder says that the name no longer leads to a
// folder of this file system.
func replaced(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.EXDEV, syscall.EAGAIN},
		func(e error) bool { return errors.Is(err, e) })
}

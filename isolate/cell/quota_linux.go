package cell

import "palyra/isolate/internal/sys"

// maxNested is how many folders within each other are looked into, each of which takes
// a descriptor meanwhile. What is nested deeper is beyond the quota: a program could
// otherwise have as much as it likes down there.
const maxNested = 256

// quota is one look at how much a directory of the host holds, while the program
// that fills it runs and may put anything in the place of anything. Only folders of
// the directory itself are entered, by their descriptors: a link or a mount that takes
// the place of one is counted as a file, and no more.
//
// It is a bound for programs that grow too large, not an exact one: what is moved
// during the look may be counted twice or not at all, and a folder whose mode keeps
// its own owner from reading it is not looked into.
type quota struct {
	bytes, inodes int64 // that are left; negative is over
	buf           []byte

	testOnlyEnter func(name string) // a folder was seen and is about to be opened
}

// overQuota reports whether the directory behind dir holds more than bytes of
// allocated blocks or more than inodes files, itself among them. It stops at the
// first of the two.
func overQuota(dir int, bytes, inodes int64) bool {
	q := &quota{bytes: bytes, inodes: inodes}
	return q.over(dir)
}

func (q *quota) over(dir int) bool {
	q.buf = make([]byte, 8<<10)
	root, err := sys.OpenBeneath(dir, ".")
	if err != nil {
		return false
	}
	defer sys.Close(root)
	used, _, _ := sys.Allocated(root, ".")
	q.bytes, q.inodes = q.bytes-used, q.inodes-1
	q.look(root, maxNested)
	return q.bytes < 0 || q.inodes < 0
}

// look counts what is in a folder, and in its folders, until that is too much.
func (q *quota) look(fd, nested int) {
	if nested == 0 {
		q.inodes = -1
		return
	}
	for {
		names, err := sys.NextNames(fd, q.buf)
		if err != nil || len(names) == 0 {
			return // its end, or it is gone
		}
		for _, name := range names {
			used, folder, err := sys.Allocated(fd, name)
			if err != nil {
				used = 0 // gone; it is counted all the same, so that the look ends
			}
			if q.bytes, q.inodes = q.bytes-used, q.inodes-1; q.bytes < 0 || q.inodes < 0 {
				return
			}
			if !folder {
				continue
			}
			if q.testOnlyEnter != nil {
				q.testOnlyEnter(name)
			}
			sub, err := sys.OpenBeneath(fd, name)
			if err != nil {
				continue // it is none any more, or none that we may read
			}
			q.look(sub, nested-1)
			sys.Close(sub)
			if q.bytes < 0 || q.inodes < 0 {
				return
			}
		}
	}
}

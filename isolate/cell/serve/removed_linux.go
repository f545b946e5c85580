package serve

import (
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"palyra/isolate/internal/sys"
)

// Where samples bound what is written, a file counts that is in no folder any more: as long as a
// descriptor, a mapping, an unread message or a waiting system call has it.

// gone is what the kernel writes behind the name of a file that was removed.
const gone = " (deleted)"

// withdrawn notes a file that a descriptor holds and no folder.
func (t *tally) withdrawn(link string) {
	if f, err := sys.FileBehind(link); err == nil {
		held := int64(0) // it has another name, which the look at the folder finds
		if f.Removed {
			held = f.Bytes
		}
		t.removed[strconv.FormatUint(f.Inode.Ino, 10)] = held
	}
}

// inPrivate reports whether a path is one of where samples bound what is written.
func (t *tally) inPrivate(path string) bool {
	return slices.ContainsFunc(t.private, func(p string) bool { return strings.HasPrefix(path, p+"/") })
}

// withheld returns what the removed files there hold. One that is
// mapped and has no descriptor counts as largest, since its size does not show.
func (t *tally) withheld(largest int64) (r removed) {
	for _, n := range t.removed {
		r.bytes, r.inodes = r.bytes+n, r.inodes+1
	}
	for ino := range t.shown {
		if _, ok := t.removed[ino]; !ok {
			r.bytes, r.inodes = r.bytes+largest, r.inodes+1
		}
	}
	return r
}

// waits looks for system calls that hold files of which another thread may have closed the
// descriptor. dir is that of one of the threads.
func (t *tally) waits(dir string, threads []string) {
	for _, tid := range threads {
		if t.unread || t.late() {
			return
		}
		sending, fd := sys.WaitsWith(path.Dir(dir)+"/"+tid, &t.buf)
		if fd >= 0 {
			_, err := os.Lstat(dir + "/fd/" + strconv.Itoa(fd))
			t.unread = errors.Is(err, os.ErrNotExist)
		}
		t.unread = t.unread || sending
	}
}

// onTheWay looks at the descriptors in a socket's first unread message, as if they were open. Those
// in others, and in a socket among them, can't be looked at.
func (t *tally) onTheWay(thread int, name string, sent int64) {
	fd, err := strconv.Atoi(name)
	if err == nil {
		err = sys.Unread(thread, fd, func(own string) {
			sent--
			link, err := os.Readlink(own)
			switch {
			case strings.HasPrefix(link, "socket:"):
				t.unread = true
			case errors.Is(err, syscall.ENAMETOOLONG), t.inPrivate(link) && strings.HasSuffix(link, gone):
				t.withdrawn(own)
			}
			t.folder(own, link)
		})
	}
	t.unread = t.unread || err != nil || sent > 0
}

package tree

import (
	"io/fs"
	"os"
	"syscall"
)

// own reports whether a file belongs to the user that we run as.
func own(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// extra returns the number of names that a file has and when its inode was last
// changed.
func extra(fi fs.FileInfo) (links, changed int64) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 1, 0
	}
	return int64(st.Nlink), st.Ctim.Nano()
}

//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// ours reports whether a folder belongs to this user or to root.
func ours(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && (st.Uid == 0 || int(st.Uid) == os.Geteuid())
}

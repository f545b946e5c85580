//go:build unix

package place

import (
	"os"
	"syscall"
)

// ownSocket reports whether there is a socket at path that this user or root made: a
// variable that came along with sudo must not lead to another user's palyrad.
func ownSocket(path string) bool {
	uid, ok := socketOf(path)
	return ok && (uid == 0 || uid == os.Geteuid())
}

// mine reports whether there is a socket at path that this user made.
func mine(path string) bool {
	uid, ok := socketOf(path)
	return ok && uid == os.Geteuid()
}

// socketOf returns who made the socket at path.
func socketOf(path string) (uid int, ok bool) {
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Type() != os.ModeSocket {
		return 0, false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

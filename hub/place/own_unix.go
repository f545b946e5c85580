//go:build unix

package place

import (
	"os"
	"syscall"
)

// ownSocket reports whether there is a socket at path that this user or root made: a
// variable that came along with sudo must not lead to another user's palyrad.
func ownSocket(path string) bool {
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Type() != os.ModeSocket {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && (st.Uid == 0 || int(st.Uid) == os.Geteuid())
}

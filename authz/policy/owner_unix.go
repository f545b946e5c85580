//go:build unix

package policy

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// onlyOursToWrite refuses a file that a user other than us and root can change. As sshd does,
// it refuses group-writable files too.
func onlyOursToWrite(info fs.FileInfo) error {
	if m := info.Mode().Perm(); m&0o022 != 0 {
		return fmt.Errorf("mode %04o: others can write it", m)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("owner unknown")
	}
	if uid := int(st.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("owned by uid %d, want %d or 0", uid, os.Geteuid())
	}
	return nil
}

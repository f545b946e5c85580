//go:build unix

package config

import (
	"fmt"
	"os"
	"syscall"

	"palyra/internal/fault"
)

// checkFile refuses a file that other users than root and this one may write: its writers
// decide what palyrad allows.
func checkFile(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return nil // reading it says why
	}
	op := fmt.Sprintf("config %q", path)
	if fi.Mode().Perm()&0o022 != 0 {
		return fault.New(fault.BadState, "unsafe_file", op, fmt.Errorf("others may write to it (mode %04o)", fi.Mode().Perm())).
			WithHint("chmod go-w " + path)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fault.New(fault.BadState, "unsafe_file", op, fmt.Errorf("user %d owns it", st.Uid)).
			WithHint("chown root " + path)
	}
	return nil
}

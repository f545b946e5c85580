//go:build unix

package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"palyra/internal/fault"
)

// readFile reads a file, and refuses one that other users than root and this one may write: its
// writers decide what palyrad allows. It checks and reads through one descriptor: in a folder that
// others may write to, the name may lead to another file a moment later.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EMLINK) {
		return nil, errors.New("is a symbolic link, want a regular file")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, errors.New("is no regular file")
	}
	op := fmt.Sprintf("config %q", path)
	if fi.Mode().Perm()&0o022 != 0 {
		return nil, fault.New(fault.BadState, "unsafe_file", op, fmt.Errorf("others may write to it (mode %04o)", fi.Mode().Perm())).
			WithHint("chmod go-w " + path)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, fault.New(fault.BadState, "unsafe_file", op, fmt.Errorf("user %d owns it", st.Uid)).
			WithHint("chown root " + path)
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(b) > MaxFile {
		err = fmt.Errorf("more than %d bytes", MaxFile)
	}
	return b, err
}

package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The calls below are made by isolate/probe only, to see whether they work.

// CloseRange closes descriptors first to last: close_range(2), 5.9.
func CloseRange(first, last uint) error {
	if err := unix.CloseRange(first, last, 0); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	return nil
}

// NoexecMemfd makes and closes a memfd that can never be executed:
// MFD_NOEXEC_SEAL, 6.3.
func NoexecMemfd() error {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	return unix.Close(fd)
}

// HasClone3 reports whether clone3(2) exists, by a call that must fail.
func HasClone3() error {
	if _, _, e := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); !errors.Is(e, unix.EINVAL) {
		return fmt.Errorf("clone3: %w", e)
	}
	return nil
}

// ExecFile replaces this process by the program that f refers to:
// execveat(2) with AT_EMPTY_PATH, 3.19. It returns only if that failed.
func ExecFile(f *os.File, argv, env []string) error {
	e, err := execFile(int(f.Fd()), argv, env)
	if err != nil {
		return err
	}
	return fmt.Errorf("execveat: %w", e)
}

// SetHostname sets the host name of the UTS namespace.
func SetHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	return nil
}

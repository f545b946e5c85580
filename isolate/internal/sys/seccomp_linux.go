package sys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Arguments of seccomp(2), for steps of a tape.
const (
	SeccompSetModeFilter = unix.SECCOMP_SET_MODE_FILTER
	SeccompGetAction     = unix.SECCOMP_GET_ACTION_AVAIL
)

var errFilterSize = errors.New("filter is empty, too long or not an array of struct sock_filter")

// NoNewPrivs sets no_new_privs for the calling thread and what it starts.
func NoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	return nil
}

// InstallFilter installs a seccomp filter, given as its sock_filter array, on
// the calling thread only. The caller has locked the goroutine to its thread
// and has set no_new_privs, or has CAP_SYS_ADMIN.
func InstallFilter(filter []byte) error {
	if len(filter) == 0 || len(filter)%8 != 0 || len(filter)/8 > unix.BPF_MAXINSNS {
		return fmt.Errorf("seccomp: %w", errFilterSize)
	}
	if e := installFilter(filter); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}

// SeccompAction reports whether the kernel knows a SECCOMP_RET_* action.
func SeccompAction(action uint32) error {
	if e := seccompAction(action); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}

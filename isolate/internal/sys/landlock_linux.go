package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// LandlockAttr is struct landlock_ruleset_attr up to ABI 6. The kernel takes a
// shorter structure, and a longer one if what it does not know is zero.
type LandlockAttr struct {
	HandledFS  uint64
	HandledNet uint64
	Scoped     uint64
}

// LandlockABI returns the version of the Landlock interface. ENOSYS: the kernel
// was built without; EOPNOTSUPP: it was booted without.
func LandlockABI() (int, error) {
	v, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0, fmt.Errorf("landlock_create_ruleset: %w", e)
	}
	return int(v), nil
}

// LandlockCreate makes a ruleset and returns its descriptor, close-on-exec.
func LandlockCreate(attr LandlockAttr) (int, error) {
	fd, e := landlockCreate(attr)
	if e != 0 {
		return -1, fmt.Errorf("landlock_create_ruleset: %w", e)
	}
	return fd, nil
}

// LandlockAllow adds rights beneath the file or directory that parent refers to
// (O_PATH is enough).
func LandlockAllow(ruleset int, rights uint64, parent int) error {
	if e := landlockAllow(ruleset, rights, parent); e != 0 {
		return fmt.Errorf("landlock_add_rule: %w", e)
	}
	return nil
}

// LandlockAllowPort adds rights on a port. ABI 4.
func LandlockAllowPort(ruleset int, rights uint64, port uint16) error {
	if e := landlockAllowPort(ruleset, rights, port); e != 0 {
		return fmt.Errorf("landlock_add_rule: %w", e)
	}
	return nil
}

// LandlockRestrict puts the calling thread, and what it starts, under the
// ruleset. The caller has locked the goroutine to its thread and has set
// no_new_privs.
func LandlockRestrict(ruleset int) error {
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); e != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", e)
	}
	return nil
}

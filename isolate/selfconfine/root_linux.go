package selfconfine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// nobody is the user and group that own nothing.
const nobody = 65534

// LeaveRoot makes a process of root's one of nobody's, on all threads and for good. It does nothing
// for other users, and for a root that can be no other: that of a user namespace with one user, who
// is that user outside. The kernel clears the calling thread's parent-death signal with the user;
// it is set to deathSignal again, if that isn't 0.
func LeaveRoot(deathSignal syscall.Signal) error {
	if os.Geteuid() != 0 {
		return nil
	}
	err := errors.Join(os.NewSyscallError("setgroups", syscall.Setgroups(nil)), os.NewSyscallError("setresgid", syscall.Setresgid(nobody, nobody, nobody)),
		os.NewSyscallError("setresuid", syscall.Setresuid(nobody, nobody, nobody)))
	if err != nil {
		if m, merr := os.ReadFile("/proc/self/uid_map"); merr == nil && strings.Join(strings.Fields(string(m)), " ") != "0 0 4294967295" {
			return nil
		}
		return fmt.Errorf("give up root: %w", err)
	}
	if deathSignal != 0 {
		if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDeath, uintptr(deathSignal), 0); e != 0 {
			return os.NewSyscallError("prctl PR_SET_PDEATHSIG", e)
		}
	}
	return nil
}

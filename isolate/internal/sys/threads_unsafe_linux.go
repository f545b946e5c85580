package sys

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls here change every thread of this process, for a program that
// confines itself after it has started. Attributes of a process are attributes
// of its threads in Linux; a thread that was forgotten would be the way out.

// NoNewPrivsAllThreads sets no_new_privs for every thread of this process. It
// fails in a program that was built with cgo.
func NoNewPrivsAllThreads() error {
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", e)
	}
	return nil
}

// InstallFilterAllThreads installs a seccomp filter, given as its sock_filter
// array, on every thread of this process: seccomp(SECCOMP_SET_MODE_FILTER,
// SECCOMP_FILTER_FLAG_TSYNC, &prog). no_new_privs is set.
func InstallFilterAllThreads(filter []byte) error {
	if len(filter) == 0 || len(filter)%8 != 0 || len(filter)/8 > unix.BPF_MAXINSNS {
		return fmt.Errorf("seccomp: %w", errFilterSize)
	}
	// As in installFilter: copied for its alignment; the pointers live until the
	// call returns.
	insns := make([]unix.SockFilter, len(filter)/int(unsafe.Sizeof(unix.SockFilter{})))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&insns[0])), len(filter)), filter)
	prog := unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}
	tid, _, e := unix.RawSyscall(unix.SYS_SECCOMP, SeccompSetModeFilter, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	switch {
	case e != 0:
		return fmt.Errorf("seccomp: %w", e)
	case tid != 0: // the thread that has a filter of its own
		return fmt.Errorf("seccomp: thread %d cannot be synchronised", tid)
	}
	return nil
}

// KeepCapabilitiesAllThreads gives up, on every thread of this process and for
// what it starts, each capability whose bit is not in keep. Those of keep stay
// effective and permitted where they were. It fails in a program that was built
// with cgo.
func KeepCapabilitiesAllThreads(keep uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&hdr, &now[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	const setpcap = 1 << unix.CAP_SETPCAP
	if now[0].Effective&setpcap != 0 { // else there is nothing in the bounding set that we could use
		for c := range LastCap() + 1 {
			if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); e != 0 {
				return fmt.Errorf("prctl PR_CAPBSET_DROP %d: %w", c, e)
			}
		}
	}
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("prctl PR_CAP_AMBIENT: %w", e)
	}
	var set [2]unix.CapUserData
	for i := range set {
		mask := uint32(keep >> (32 * i))
		set[i].Effective, set[i].Permitted = now[i].Effective&mask, now[i].Permitted&mask
	}
	hdr.Pid = 0
	// Both live on this stack until every thread has made the call; the kernel
	// writes to neither, since the version is one that it knows.
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&set[0])), 0); e != 0 {
		return fmt.Errorf("capset: %w", e)
	}
	return nil
}

// oomScore is how much sooner than others, or later if it's negative, the OOM killer chooses this
// process: proc_pid_oom_score_adj(5).
const oomScore = "/proc/self/oom_score_adj"

// OrdinaryAllThreads gives up what this process, and so all that it starts, has inherited before
// other processes of the host: realtime classes of processors and disks, on every thread, and
// protection from the OOM killer. None of it needs a privilege. It fails in a program that was
// built with cgo.
func OrdinaryAllThreads() error {
	policy, _, e := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("sched_getscheduler: %w", e)
	}
	const resetOnFork = 0x40000000 // SCHED_RESET_ON_FORK
	switch policy &^ resetOnFork {
	case unix.SCHED_FIFO, unix.SCHED_RR:
		var param struct{ priority int32 } // lives on this stack until every thread has made the call
		if _, _, e := syscall.AllThreadsSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&param))); e != 0 {
			return fmt.Errorf("sched_setscheduler: %w", e)
		}
	}
	const ofProcess, realtime, classShift = 1, 1, 13 // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_RT, IOPRIO_CLASS_SHIFT
	class, _, e := unix.Syscall(unix.SYS_IOPRIO_GET, ofProcess, 0, 0)
	if e == 0 && class>>classShift == realtime {
		_, _, e = syscall.AllThreadsSyscall(unix.SYS_IOPRIO_SET, ofProcess, 0, 0) // by its nice value
	}
	if e != 0 && e != unix.ENOSYS {
		return fmt.Errorf("ioprio: %w", e)
	}
	score, err := os.ReadFile(oomScore)
	if err == nil && bytes.HasPrefix(score, []byte("-")) {
		err = os.WriteFile(oomScore, []byte("0"), 0)
	}
	return err
}

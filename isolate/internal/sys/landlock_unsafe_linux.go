package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// landlockCreate passes the whole structure; its size tells the kernel which
// fields it has. The pointer lives until the call returns.
func landlockCreate(attr LandlockAttr) (int, unix.Errno) {
	fd, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	return int(fd), e
}

// landlockAllow passes struct landlock_path_beneath_attr, which is packed: 12
// bytes, the first 12 of unix.LandlockPathBeneathAttr. The pointer lives until
// the call returns.
func landlockAllow(ruleset int, rights uint64, parent int) unix.Errno {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(parent)}
	_, _, e := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	return e
}

// landlockAllowPort passes struct landlock_net_port_attr: two numbers of 8 bytes. The pointer lives
// until the call returns.
func landlockAllowPort(ruleset int, rights uint64, port uint16) unix.Errno {
	attr := [2]uint64{rights, uint64(port)}
	_, _, e := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), landlockRuleNetPort,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	return e
}

const landlockRuleNetPort = 2 // LANDLOCK_RULE_NET_PORT, linux/landlock.h

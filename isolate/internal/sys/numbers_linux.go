package sys

import "golang.org/x/sys/unix"

// numbers maps the calls that a tape may make to this architecture's numbers.
var numbers = map[string]uintptr{
	"capset":                 unix.SYS_CAPSET,
	"chdir":                  unix.SYS_CHDIR,
	"clone":                  unix.SYS_CLONE,
	"close":                  unix.SYS_CLOSE,
	"close_range":            unix.SYS_CLOSE_RANGE,
	"dup3":                   unix.SYS_DUP3,
	"execveat":               unix.SYS_EXECVEAT,
	"fchdir":                 unix.SYS_FCHDIR,
	"fsconfig":               unix.SYS_FSCONFIG,
	"fsmount":                unix.SYS_FSMOUNT,
	"fsopen":                 unix.SYS_FSOPEN,
	"getppid":                unix.SYS_GETPPID,
	"ioctl":                  unix.SYS_IOCTL,
	"kill":                   unix.SYS_KILL,
	"landlock_restrict_self": unix.SYS_LANDLOCK_RESTRICT_SELF,
	"move_mount":             unix.SYS_MOVE_MOUNT,
	"open_tree":              unix.SYS_OPEN_TREE,
	"openat2":                unix.SYS_OPENAT2,
	"prctl":                  unix.SYS_PRCTL,
	"pread64":                unix.SYS_PREAD64,
	"prlimit64":              unix.SYS_PRLIMIT64,
	"read":                   unix.SYS_READ,
	"rt_sigaction":           unix.SYS_RT_SIGACTION,
	"rt_sigprocmask":         unix.SYS_RT_SIGPROCMASK,
	"seccomp":                unix.SYS_SECCOMP,
	"setgroups":              unix.SYS_SETGROUPS,
	"sethostname":            unix.SYS_SETHOSTNAME,
	"setresgid":              unix.SYS_SETRESGID,
	"setresuid":              unix.SYS_SETRESUID,
	"setsid":                 unix.SYS_SETSID,
	"socket":                 unix.SYS_SOCKET,
	"umask":                  unix.SYS_UMASK,
	"umount2":                unix.SYS_UMOUNT2,
	"unshare":                unix.SYS_UNSHARE,
	"write":                  unix.SYS_WRITE,
	Init:                     opInit,
	Park:                     opPark,
}

// They are no system call numbers: the walker takes them for the reaper loop and
// for the wait of a cell that was made ahead.
const (
	opInit = ^uintptr(0) - 1
	opPark = ^uintptr(0) - 2
)

package main

import (
	"fmt"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// abiProbes are cases 66 and 67 and the reach of single system calls.
//
// To reach is to make a call with arguments that are nonsense, so that it does
// nothing: the kernel then answers EFAULT, EBADF, EINVAL or ESRCH from within
// the call, and a filter answers EPERM or ENOSYS before it. It tells whether a
// filter stands there whatever the user may do, in either ABI.
var abiProbes = map[string]probe{
	"reach":      reach,
	"reach-i386": reachI386,
	"x32":        x32,
}

// target is a system call by both its numbers. The arguments are the same: no
// pointer of theirs is good.
type target struct {
	nr   int // this architecture's; -1 none
	i386 int // of arch/x86/entry/syscalls/syscall_32.tbl; -1 none
	args [5]uintptr
}

const (
	none = ^uintptr(0) // descriptor or process -1
	bad  = 1           // a pointer that faults
)

// targets are the calls that a filter must stop. The kernel's first check is
// not of a privilege, or outside proves nothing for an unprivileged user.
var targets = map[string]target{
	"unshare":           {unix.SYS_UNSHARE, 310, [5]uintptr{unix.CLONE_NEWUSER | unix.CLONE_THREAD | 1}},
	"setns":             {unix.SYS_SETNS, 346, [5]uintptr{none}},
	"clone3":            {unix.SYS_CLONE3, 435, [5]uintptr{bad}},
	"mount":             {unix.SYS_MOUNT, 21, [5]uintptr{bad, bad, bad}},
	"umount2":           {unix.SYS_UMOUNT2, 52, [5]uintptr{bad}},
	"chroot":            {unix.SYS_CHROOT, 61, [5]uintptr{bad}},
	"mount_setattr":     {unix.SYS_MOUNT_SETATTR, 442, [5]uintptr{none, bad, 0, bad, 1}},
	"open_tree":         {unix.SYS_OPEN_TREE, 428, [5]uintptr{none, bad}},
	"fsconfig":          {unix.SYS_FSCONFIG, 431, [5]uintptr{none}},
	"open_by_handle_at": {unix.SYS_OPEN_BY_HANDLE_AT, 342, [5]uintptr{none - 1, bad}},
	"name_to_handle_at": {unix.SYS_NAME_TO_HANDLE_AT, 341, [5]uintptr{none, bad, bad, bad, 0xffff}},
	"io_uring_setup":    {unix.SYS_IO_URING_SETUP, 425, [5]uintptr{1, bad}},
	"io_uring_enter":    {unix.SYS_IO_URING_ENTER, 426, [5]uintptr{none, 1}},
	"io_uring_register": {unix.SYS_IO_URING_REGISTER, 427, [5]uintptr{none, 2}},
	"bpf":               {unix.SYS_BPF, 357, [5]uintptr{0, bad, 16}},
	"perf_event_open":   {unix.SYS_PERF_EVENT_OPEN, 336, [5]uintptr{bad, 0, none, none}},
	"userfaultfd":       {unix.SYS_USERFAULTFD, 374, [5]uintptr{0xffff}},
	"keyctl":            {unix.SYS_KEYCTL, 288, [5]uintptr{0x7fff}},
	"add_key":           {unix.SYS_ADD_KEY, 286, [5]uintptr{bad, bad, 0, 0, none}},
	"request_key":       {unix.SYS_REQUEST_KEY, 287, [5]uintptr{bad, bad}},
	"ptrace":            {unix.SYS_PTRACE, 26, [5]uintptr{unix.PTRACE_PEEKDATA, none}},
	"process_vm_readv":  {unix.SYS_PROCESS_VM_READV, 347, [5]uintptr{none, bad, 1, bad, 1}},
	"process_vm_writev": {unix.SYS_PROCESS_VM_WRITEV, 348, [5]uintptr{none, bad, 1, bad, 1}},
	"kcmp":              {unix.SYS_KCMP, 349, [5]uintptr{none, none}},
	"pidfd_getfd":       {unix.SYS_PIDFD_GETFD, 438, [5]uintptr{none}},
	"fanotify_init":     {unix.SYS_FANOTIFY_INIT, 338, [5]uintptr{unix.FAN_REPORT_FID | 0x40000000}},
	"modify_ldt":        {modifyLDTNumber, 123, [5]uintptr{1, 0, 3}},
	"vmsplice":          {unix.SYS_VMSPLICE, 316, [5]uintptr{none, bad, 1}},
	"tee":               {unix.SYS_TEE, 315, [5]uintptr{none, none, 1}},
	"splice":            {unix.SYS_SPLICE, 313, [5]uintptr{none, 0, none, 0, 1}},
	"execveat":          {unix.SYS_EXECVEAT, 358, [5]uintptr{none, bad, 0, 0, unix.AT_EMPTY_PATH}},
	"socket":            {unix.SYS_SOCKET, 359, [5]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, 0}},
	"mq_open":           {unix.SYS_MQ_OPEN, 277, [5]uintptr{bad}},
	"shmget":            {unix.SYS_SHMGET, 395, [5]uintptr{0, 0, 0}},
	"io_setup":          {unix.SYS_IO_SETUP, 245, [5]uintptr{1, bad}},
	"getpid":            {unix.SYS_GETPID, 20, [5]uintptr{}},
}

// answered turns the errno of a nonsensical call into the outcome: what a
// filter says is what stopped us, anything else is the kernel's own answer.
func answered(name string, errno syscall.Errno) (string, error) {
	switch errno {
	case unix.EPERM, unix.ENOSYS, unix.EACCES:
		return "", failed(name, errno)
	case 0:
		return "reached, done", nil
	}
	return "reached: " + errnoName(errno), nil
}

func targetOf(a args) (string, target, error) {
	name := a.str("call")
	t, ok := targets[name]
	if !ok {
		return "", t, fmt.Errorf("no target %q", name)
	}
	return name, t, nil
}

func reach(a args) (string, error) {
	name, t, err := targetOf(a)
	if err != nil {
		return "", err
	}
	if t.nr < 0 {
		return "", failed(name, unix.ENOSYS)
	}
	_, errno := call(uintptr(t.nr), t.args[0], t.args[1], t.args[2], t.args[3], t.args[4])
	return answered(name, errno)
}

// reachI386 makes the call through int $0x80, in the 32-bit ABI. Booted with ia32_emulation=0,
// a kernel has no gate there and the instruction faults: for us that is ENOSYS.
func reachI386(a args) (outcome string, err error) {
	name, t, err := targetOf(a)
	if err != nil {
		return "", err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // of SetPanicOnFault
			outcome, err = "", failed(fmt.Sprintf("int80 %s (%v)", name, fault), unix.ENOSYS)
		default:
			panic(fault)
		}
	}()
	r := int80(uintptr(uint32(t.i386)), t.args[0], t.args[1], t.args[2], t.args[3], t.args[4])
	errno := syscall.Errno(0)
	if v := int32(r); v < 0 && v > -4096 {
		errno = syscall.Errno(-v)
	}
	return answered("int80 "+name, errno)
}

// x32 makes the call with the x32 bit in its number.
func x32(a args) (string, error) {
	name, t, err := targetOf(a)
	if err != nil {
		return "", err
	}
	_, errno := call(uintptr(t.nr)|0x40000000, t.args[0], t.args[1], t.args[2], t.args[3], t.args[4])
	return answered("x32 "+name, errno)
}

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// kernelProbes are cases 47 and 55 to 65: parts of the kernel that a tool does
// not need and that have had holes.
var kernelProbes = map[string]probe{
	"io_uring":    ioUring,
	"bpf":         bpf,
	"bpf-classic": classicBPF,
	"perf":        perf,
	"userfaultfd": userfault,
	"memfd":       memfdExec,
	"execveat":    filelessExec,
	"executed":    func(a args) (string, error) { return a.str("token"), nil },
	"fanotify":    fanotify,
	"kcmp":        kcmp,
	"ldt":         modifyLDT,
	"splice":      splice,
}

func ioUring(args) (string, error) {
	p := make([]byte, 120) // struct io_uring_params
	fd, err := raw("io_uring_setup", unix.SYS_IO_URING_SETUP, 4, address(p))
	keep(p)
	return fmt.Sprintf("ring %d", fd), err
}

func bpf(a args) (string, error) {
	attr := make([]byte, 128)
	var cmd uintptr
	switch how := a.str("how"); how {
	case "map": // BPF_MAP_CREATE: array, key 4, value 4, one entry
		attr[0], attr[4], attr[8], attr[12] = 2, 4, 4, 1
	case "prog": // BPF_PROG_LOAD: socket filter, r0 = 0; exit
		cmd = 5
		insns := []byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0}
		license := cstring("GPL")
		defer keep(insns, license)
		attr[0], attr[4] = 1, 2
		putUint64(attr[8:], uint64(address(insns)))
		putUint64(attr[16:], uint64(address(license)))
	default:
		return "", fmt.Errorf("no use of bpf named %q", how)
	}
	_, err := raw("bpf", unix.SYS_BPF, cmd, address(attr), uintptr(len(attr)))
	keep(attr)
	return "", err
}

// classicBPF has the kernel compile a program of the older kind, which needs no
// capability.
func classicBPF(a args) (string, error) {
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: seccompAllow}}
	switch how := a.str("how"); how {
	case "seccomp":
		return "", installFilter(filter)
	case "prctl":
		return "", prctlFilter(filter)
	case "socket":
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return "", failed("socketpair", err)
		}
		prog := unix.SockFprog{Len: 1, Filter: &filter[0]}
		return "", failed("setsockopt", unix.SetsockoptSockFprog(pair[0], unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog))
	default:
		return "", fmt.Errorf("no filter of kind %q", how)
	}
}

func putUint64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

func perf(args) (string, error) {
	_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: 112, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}, 0, -1, -1, 0)
	return "", failed("perf_event_open", err)
}

func userfault(a args) (string, error) {
	const userModeOnly = 1
	if a.str("how") == "device" {
		fd, err := unix.Open("/dev/userfaultfd", unix.O_RDWR, 0)
		if err != nil {
			return "", failed("open /dev/userfaultfd", err)
		}
		_, err = raw("ioctl USERFAULTFD_IOC_NEW", unix.SYS_IOCTL, uintptr(fd), 0xaa00, unix.O_CLOEXEC)
		return "", err
	}
	_, err := raw("userfaultfd", unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly)
	return "", err
}

// execArgv is what a copy of this program is executed with: it prints token,
// which proves that it ran.
func execArgv(a args) []string { return []string{"attack", "executed", "token=" + a.str("token")} }

// memfdExec executes a program that is in no file system.
func memfdExec(a args) (string, error) {
	flags := 0
	switch a.str("how") {
	case "exec":
		flags = unix.MFD_EXEC
	case "sealed":
		flags = unix.MFD_NOEXEC_SEAL
	}
	fd, err := unix.MemfdCreate("x", flags)
	if err != nil {
		return "", failed("memfd_create", err)
	}
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	if _, err := unix.Write(fd, b); err != nil {
		return "", failed("write", err)
	}
	if a.str("how") == "sealed" {
		_ = unix.Fchmod(fd, 0o755) // refused: to execute it is, too
	}
	// Open for reading only and close the writer, else ETXTBSY.
	ro, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY, 0)
	if err != nil {
		return "", failed("open memfd", err)
	}
	unix.Close(fd)
	if a.str("how") == "execveat" {
		return "", execveat(ro, execArgv(a))
	}
	return "", failed("execve memfd", unix.Exec("/proc/self/fd/"+strconv.Itoa(ro), execArgv(a), os.Environ()))
}

func execveat(fd int, argv []string) error {
	empty := cstring("")
	words := make([][]byte, len(argv))
	vec := make([]byte, 8*(len(argv)+1))
	for i, w := range argv {
		words[i] = cstring(w)
		putUint64(vec[8*i:], uint64(address(words[i])))
	}
	env := make([]byte, 8)
	_, err := raw("execveat", unix.SYS_EXECVEAT, uintptr(fd), address(empty), address(vec), address(env), unix.AT_EMPTY_PATH)
	keep(empty, words, vec, env)
	return err
}

// filelessExec executes by descriptor: a file that has lost its name, or one
// opened O_PATH.
func filelessExec(a args) (string, error) {
	switch how := a.str("how"); how {
	case "unlinked":
		dir, err := writable(func(dir string) error { return copySelf(dir + "/fileless") })
		if err != nil {
			return "", failed("copy self", err)
		}
		path := dir + "/fileless"
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", failed("open", err)
		}
		unix.Unlink(path)
		return "", execveat(fd, execArgv(a))
	case "self": // what we were started from, again
		fd, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", failed("open /proc/self/exe", err)
		}
		return "", execveat(fd, execArgv(a))
	default:
		return "", fmt.Errorf("no fileless way named %q", how)
	}
}

func fanotify(args) (string, error) {
	_, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, unix.O_RDONLY)
	return "", failed("fanotify_init", err)
}

func kcmp(args) (string, error) {
	const vm = 1 // KCMP_VM
	pid := uintptr(unix.Getpid())
	r, err := raw("kcmp", unix.SYS_KCMP, pid, pid, vm)
	return strconv.Itoa(int(r)), err
}

// splice moves pages between pipes and files without copying them, the class of
// Dirty Pipe and Copy Fail.
func splice(a args) (string, error) {
	var p, q [2]int
	if err := errors.Join(unix.Pipe(p[:]), unix.Pipe(q[:])); err != nil {
		return "", err
	}
	switch how := a.str("how"); how {
	case "splice":
		fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0)
		if err != nil {
			return "", failed("open", err)
		}
		n, err := unix.Splice(fd, nil, p[1], nil, 100, 0)
		return fmt.Sprintf("%d bytes", n), failed("splice", err)
	case "vmsplice":
		b := make([]byte, 100)
		n, err := unix.Vmsplice(p[1], []unix.Iovec{{Base: &b[0], Len: 100}}, 0)
		return fmt.Sprintf("%d bytes", n), failed("vmsplice", err)
	case "tee":
		if _, err := unix.Write(p[1], []byte("x")); err != nil {
			return "", err
		}
		n, err := unix.Tee(p[0], q[1], 1, 0)
		return fmt.Sprintf("%d bytes", n), failed("tee", err)
	default:
		return "", fmt.Errorf("no way to splice named %q", how)
	}
}

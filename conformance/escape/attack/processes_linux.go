package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processProbes are cases 24 to 29: what can be seen of and done to a process
// of the host. The battery's victim is such a process.
var processProbes = map[string]probe{
	"ps":     listProcesses,
	"proc":   readProc,
	"signal": signalVictim,
	"pidfd":  pidfdVictim,
	"ptrace": ptraceVictim,
}

// listProcesses tells every command line in /proc.
func listProcesses(args) (string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == unix.Getpid() {
			continue
		}
		if b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil {
			fmt.Fprintf(&out, "%s: %s; ", e.Name(), strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	if out.Len() == 0 {
		return "", failed("read cmdlines", unix.ENOENT)
	}
	return out.String(), nil
}

// readProc reads a file of the victim's /proc directory.
func readProc(a args) (string, error) {
	s, err := slurp("/proc/" + a.str("pid") + "/" + a.str("file"))
	return strings.ReplaceAll(s, "\x00", " "), err
}

// signalVictim ends the victim in the way that how names.
func signalVictim(a args) (string, error) {
	pid := a.num("pid")
	switch how := a.str("how"); how {
	case "probe":
		return "", failed("kill 0", unix.Kill(pid, 0))
	case "kill":
		return "", failed("kill", unix.Kill(pid, unix.SIGKILL))
	case "tgkill":
		return "", failed("tgkill", unix.Tgkill(pid, pid, unix.SIGKILL))
	case "tkill":
		_, err := raw("tkill", unix.SYS_TKILL, uintptr(pid), uintptr(unix.SIGKILL))
		return "", err
	case "sigqueue":
		info := make([]byte, 128) // siginfo_t: si_signo, si_errno, si_code = SI_QUEUE
		info[0], info[8], info[9], info[10], info[11] = byte(unix.SIGKILL), 0xff, 0xff, 0xff, 0xff
		_, err := raw("rt_sigqueueinfo", unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(unix.SIGKILL), address(info))
		keep(info)
		return "", err
	case "setown": // the kernel sends the signal when the pipe becomes readable
		var p [2]int
		if err := unix.Pipe(p[:]); err != nil {
			return "", failed("pipe", err)
		}
		for _, c := range []struct{ cmd, arg int }{{unix.F_SETOWN, pid}, {unix.F_SETSIG, int(unix.SIGKILL)}, {unix.F_SETFL, unix.O_ASYNC}} {
			if _, err := unix.FcntlInt(uintptr(p[0]), c.cmd, c.arg); err != nil {
				return "", failed("fcntl", err)
			}
		}
		_, err := unix.Write(p[1], []byte("x"))
		return "", failed("write", err)
	default:
		return "", fmt.Errorf("no way to signal named %q", how)
	}
}

// pidfdVictim reaches the victim through a process descriptor.
func pidfdVictim(a args) (string, error) {
	fd, err := unix.PidfdOpen(a.num("pid"), 0)
	if err != nil {
		return "", failed("pidfd_open", err)
	}
	switch how := a.str("how"); how {
	case "open":
		return "", nil
	case "signal":
		return "", failed("pidfd_send_signal", unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	case "getfd":
		got, err := unix.PidfdGetfd(fd, a.num("fd"), 0)
		if err != nil {
			return "", failed("pidfd_getfd", err)
		}
		b := make([]byte, 512)
		n, err := unix.Pread(got, b, 0)
		return string(b[:max(n, 0)]), failed("pread", err)
	default:
		return "", fmt.Errorf("no use of a pidfd named %q", how)
	}
}

// ptraceVictim attaches to the victim or reads and writes its memory.
func ptraceVictim(a args) (string, error) {
	pid := a.num("pid")
	addr := uintptr(a.num("addr"))
	local := func(b []byte) []unix.Iovec { return []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}} }
	b := make([]byte, 64)
	switch how := a.str("how"); how {
	case "seize":
		return "", failed("ptrace seize", unix.PtraceSeize(pid))
	case "attach":
		return "", failed("ptrace attach", unix.PtraceAttach(pid))
	case "readv":
		_, err := unix.ProcessVMReadv(pid, local(b), remote(addr, len(b)), 0)
		return strings.TrimRight(string(b), "\x00"), failed("process_vm_readv", err)
	case "writev":
		copy(b, "palyra was here")
		_, err := unix.ProcessVMWritev(pid, local(b), remote(addr, len(b)), 0)
		return "", failed("process_vm_writev", err)
	case "mem":
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDWR, 0)
		if err != nil {
			return "", failed("open mem", err)
		}
		_, err = unix.Pread(fd, b, int64(addr))
		return strings.TrimRight(string(b), "\x00"), failed("pread", err)
	default:
		return "", fmt.Errorf("no way to trace named %q", how)
	}
}

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// handProbes are not attempts: what the battery needs done with raw system
// calls, as the user under test.
var handProbes = map[string]probe{
	"victim":  victim,
	"plant":   plant,
	"exists":  exists,
	"on-tty":  onTTY,
	"without": without,
	"status":  selfStatus,
	"peer":    peer,
}

// peer listens on a port of the kernel's choice, says which, and repeats what callers say.
func peer(args) (string, error) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", failed("socket", err)
	}
	if err := unix.Listen(l, 8); err != nil { // which binds it to a port
		return "", failed("listen", err)
	}
	at, err := unix.Getsockname(l)
	if err != nil {
		return "", failed("getsockname", err)
	}
	emit(result{Case: "peer", Outcome: "READY", Detail: strconv.Itoa(at.(*unix.SockaddrInet4).Port)})
	for {
		c, _, err := unix.Accept(l)
		if err != nil {
			return "", failed("accept", err)
		}
		f := os.NewFile(uintptr(c), "caller")
		io.Copy(os.Stdout, f)
		f.Close()
	}
}

// victim is a process of the host with a secret in its memory. It says where,
// and answers each line of its input with whether the memory is intact.
func victim(a args) (string, error) {
	secret := a.str("memory")
	page, addr, err := victimMemory(secret)
	if err != nil {
		return "", err
	}
	emit(result{Case: "victim", Outcome: "READY", Detail: fmt.Sprint(addr)})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		state := "INTACT"
		if string(page[:len(secret)]) != secret {
			state = "CHANGED"
		}
		emit(result{Case: "victim", Outcome: state})
	}
	return "", in.Err()
}

// plant makes a thing in the host's key ring or IPC namespace and waits until
// its input ends, then removes it. One thing at a time: what=key, shm or mq.
func plant(a args) (string, error) {
	secret := a.str("secret")
	var remove func() error
	switch what := a.str("what"); what {
	case "key":
		id, err := newKey(userKeyring, a.str("name"), secret)
		if err != nil {
			return "", err
		}
		// Readable by its user without possession, as a daemon's key would be.
		if _, err := raw("keyctl setperm", unix.SYS_KEYCTL, keyctlSetPerm, id, 0x3f3f0000); err != nil {
			return "", err
		}
		remove = func() error {
			_, err := raw("keyctl unlink", unix.SYS_KEYCTL, unix.KEYCTL_UNLINK, id, userKeyring)
			return err
		}
	case "shm":
		id, err := unix.SysvShmGet(a.num("name"), 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
		if err != nil {
			return "", failed("shmget", err)
		}
		b, err := unix.SysvShmAttach(id, 0, 0)
		if err != nil {
			return "", failed("shmat", err)
		}
		copy(b, secret)
		remove = func() error {
			_, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
			return failed("shmctl", err)
		}
	case "mq":
		fd, err := openQueue(a.str("name"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		if err != nil {
			return "", err
		}
		b := []byte(secret)
		if _, err := raw("mq_timedsend", unix.SYS_MQ_TIMEDSEND, uintptr(fd), address(b), uintptr(len(b)), 0, 0); err != nil {
			return "", err
		}
		keep(b)
		remove = func() error { return unlinkQueue(a.str("name")) }
	default:
		return "", fmt.Errorf("nothing to plant named %q", what)
	}
	emit(result{Case: "plant", Outcome: "READY"})
	bufio.NewScanner(os.Stdin).Scan()
	return "", remove()
}

func unlinkQueue(name string) error {
	n := cstring(name)
	_, err := raw("mq_unlink", unix.SYS_MQ_UNLINK, address(n))
	keep(n)
	return err
}

// exists tells whether a message queue of that name is here, and removes it.
func exists(a args) (string, error) {
	err := unlinkQueue(a.str("mq"))
	if err == nil {
		emit(result{Case: "exists", Outcome: "READY"})
	}
	return "", err
}

// without runs a command on a host that lacks a control: case 90.
func without(a args) (string, error) {
	switch what := a.str("control"); what {
	case "userns": // we are root of a user namespace already (see the battery)
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0o644); err != nil {
			return "", err
		}
	case "landlock":
		if err := forbid(unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_RESTRICT_SELF); err != nil {
			return "", err
		}
	case "seccomp":
		if err := forbid(unix.SYS_SECCOMP, unix.SYS_PRCTL); err != nil {
			return "", err
		}
	default:
		return "", fmt.Errorf("no control named %q", what)
	}
	return "", failed("exec", unix.Exec(a.command[0], a.command, os.Environ()))
}

// forbid has the kernel answer EOPNOTSUPP to the given calls, as one that is
// built without them does for Landlock when it is not enabled at boot. Of
// prctl only PR_SET_SECCOMP is answered so.
func forbid(calls ...uintptr) error {
	const load, jumpEqual, ret, allow = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K, seccompAllow
	filter := []unix.SockFilter{{Code: load, K: 0}}
	for _, nr := range calls {
		deny := unix.SockFilter{Code: ret, K: 0x00050000 | uint32(unix.EOPNOTSUPP)}
		if nr == unix.SYS_PRCTL {
			filter = append(filter, unix.SockFilter{Code: jumpEqual, K: uint32(nr), Jf: 4},
				unix.SockFilter{Code: load, K: 16}, unix.SockFilter{Code: jumpEqual, K: unix.PR_SET_SECCOMP, Jf: 1}, deny,
				unix.SockFilter{Code: ret, K: allow})
			continue
		}
		filter = append(filter, unix.SockFilter{Code: jumpEqual, K: uint32(nr), Jf: 1}, deny)
	}
	filter = append(filter, unix.SockFilter{Code: ret, K: allow})
	return installFilter(filter)
}

// selfStatus tells what the kernel says of this process: the lines of
// /proc/self/status that name confinement, and its namespaces.
func selfStatus(args) (string, error) {
	out := make(map[string]string)
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch k {
			case "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Uid":
				out[k] = strings.TrimSpace(v)
			}
		}
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"} {
		if l, err := os.Readlink("/proc/self/ns/" + ns); err == nil {
			out["ns:"+ns] = strings.Trim(strings.TrimPrefix(l, ns+":"), "[]")
		}
	}
	// Tier B shows no /proc; the process can still ask about itself.
	if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil {
		out["NoNewPrivs"] = strconv.Itoa(v)
	}
	if v, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
		out["Seccomp"] = strconv.Itoa(v)
	}
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err == nil {
		out["CapEff"] = fmt.Sprintf("%08x%08x", data[1].Effective, data[0].Effective)
		out["CapPrm"] = fmt.Sprintf("%08x%08x", data[1].Permitted, data[0].Permitted)
	}
	b, err := json.Marshal(out)
	return string(b), err
}

// runAttached runs a command as the leader of a session on tty and returns its
// exit status as a shell would.
func runAttached(command []string, tty *os.File) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{tty}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return 0, err
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

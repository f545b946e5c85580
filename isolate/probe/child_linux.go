package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native/cgroup"
	"palyra/isolate/native/landlock"
	"palyra/isolate/native/seccomp"
)

// errUntold is the error of a try that couldn't be made.
var errUntold = errors.New("not tried")

// Main is the helper's side: args are "probe-child", the control's name and the identity of
// the parent's namespace. It prints one answer and returns the exit status.
func Main(args []string) int {
	if len(args) < 3 || args[0] != childWord {
		fmt.Fprintln(os.Stderr, "probe-child: want a control and a namespace")
		return 2
	}
	runtime.LockOSThread() // what is tried confines a thread
	detail, err := try(args[1], args[2])
	res := result{Yes, detail}
	switch {
	case errors.Is(err, errUntold):
		res = result{Unknown, err.Error()}
	case err != nil:
		res = result{No, err.Error()}
	case detail == "":
		res.Detail = "works"
	}
	if err := json.NewEncoder(os.Stdout).Encode(res); err != nil {
		return 1
	}
	return 0
}

// try makes the forbidden or wanted call of one control.
func try(name, parent string) (detail string, err error) {
	if kind, ok := strings.CutSuffix(name, "_namespace"); ok && kind != "user" {
		if kind == "time" {
			if err := ownTime(); err != nil {
				return "", err
			}
		}
		return "", distinct(kind, parent)
	}
	switch name {
	case "no_new_privs":
		return tryNoNewPrivs()
	case "seccomp_filter":
		return trySeccomp()
	case "seccomp_kill_process":
		return "", sys.SeccompAction(uint32(seccomp.KillProcess))
	case "landlock":
		return tryLandlock()
	case "landlock_scopes":
		return tryScopes()
	case "close_range":
		return tryCloseRange()
	case "pidfd":
		return tryPidfd()
	case "clone3":
		return "", sys.HasClone3()
	case "execveat":
		return tryExecveat()
	case "memfd_seals":
		return trySeals()
	case "memfd_noexec":
		return "", sys.NoexecMemfd()
	case "openat2":
		return tryOpenat2()
	case "user_namespace":
		return tryUser(parent)
	case "user_namespace_unprivileged":
		return tryUnprivileged()
	case "mount_api":
		return tryMount()
	case "proc_mount":
		return tryProc()
	case "tmpfs_quota":
		return tryQuota()
	case "idmapped_mount":
		return tryIDMap()
	case "cgroup_v2":
		_, err := cgroup.Find("/proc")
		if err != nil {
			return "", errors.New(strings.TrimPrefix(cgroup.State(err), "unavailable: "))
		}
		return "", nil
	case "execveat_done":
		return "", nil
	case "hold":
		hold()
		return "", nil
	}
	return "", fmt.Errorf("%w: no such control", errUntold)
}

func tryNoNewPrivs() (string, error) {
	if err := sys.NoNewPrivs(); err != nil {
		return "", err
	}
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	if !strings.Contains(string(b), "\nNoNewPrivs:\t1\n") {
		return "", errors.New("prctl succeeded and had no effect")
	}
	return "", nil
}

// trySeccomp refuses getpgid with an errno of its own and makes the call.
func trySeccomp() (string, error) {
	const mark = 77
	arch, err := seccomp.ParseArch(runtime.GOARCH)
	if err != nil {
		return "", err
	}
	f, err := seccomp.Compile(seccomp.Policy{Name: "probe", Default: seccomp.Allow, Unknown: seccomp.Allow,
		Rules: []seccomp.Rule{{Calls: []string{"getpgid"}, Else: seccomp.Errno(mark), Why: "to see it fail"}}}, arch)
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	if err := errors.Join(sys.NoNewPrivs(), sys.InstallFilter(f.Bytes())); err != nil {
		return "", err
	}
	if _, err := syscall.Getpgid(0); !errors.Is(err, syscall.Errno(mark)) {
		return "", fmt.Errorf("a filter was installed and had no effect: %v", err)
	}
	return "", nil
}

func tryLandlock() (string, error) {
	abi, err := landlock.ABI()
	if err != nil {
		return "", err
	}
	rs, _ := landlock.Plan(abi, nil)
	f, err := landlock.Build(rs)
	if err != nil {
		return "", err
	}
	if err := errors.Join(sys.NoNewPrivs(), sys.LandlockRestrict(int(f.Fd()))); err != nil {
		return "", err
	}
	if fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0); !errors.Is(err, syscall.EACCES) {
		syscall.Close(fd)
		return "", fmt.Errorf("restricted to nothing, / opens: %v", err)
	}
	return "ABI " + strconv.Itoa(abi), nil
}

func tryScopes() (string, error) {
	abi, err := landlock.ABI()
	if err != nil {
		return "", err
	}
	rs, _ := landlock.Plan(abi, nil)
	if rs.Scoped == 0 {
		return "", fmt.Errorf("ABI %d", abi)
	}
	if _, err := landlock.Build(rs); err != nil {
		return "", err
	}
	if err := sys.NoNewPrivs(); err != nil {
		return "", err
	}
	f, err := landlock.Build(landlock.Ruleset{ABI: abi, HandledFS: landlock.FSMakeBlock, Scoped: rs.Scoped})
	if err != nil {
		return "", err
	}
	parent := os.Getppid()
	if err := syscall.Kill(parent, 0); err != nil {
		return "", fmt.Errorf("%w: the parent cannot be signalled anyway: %v", errUntold, err)
	}
	if err := sys.LandlockRestrict(int(f.Fd())); err != nil {
		return "", err
	}
	if err := syscall.Kill(parent, 0); !errors.Is(err, syscall.EPERM) {
		return "", fmt.Errorf("scoped, the parent can be signalled: %v", err)
	}
	return "", nil
}

func tryCloseRange() (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	defer w.Close()
	n := uint(r.Fd())
	if err := sys.CloseRange(n, n); err != nil {
		return "", err
	}
	if err := syscall.Fstat(int(n), new(syscall.Stat_t)); !errors.Is(err, syscall.EBADF) {
		return "", fmt.Errorf("the descriptor is still open: %v", err)
	}
	return "", nil
}

// held is a helper that waits until its input ends.
type held struct {
	*os.Process
	input *os.File
}

// holder starts one.
func holder(attr *syscall.SysProcAttr) (*held, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"probe", childWord, "hold", "0"},
		&os.ProcAttr{Env: os.Environ(), Files: []*os.File{r}, Sys: attr})
	if err != nil {
		w.Close()
		return nil, err
	}
	return &held{p, w}, nil
}

func (h *held) end() {
	h.Kill()
	h.Wait()
	h.input.Close()
}

func tryPidfd() (string, error) {
	child, err := holder(nil)
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	defer child.end()
	fd, err := sys.PidfdOpen(child.Pid)
	if err != nil {
		return "", err
	}
	defer sys.Close(fd)
	if err := sys.KillPidfd(fd); err != nil {
		return "", err
	}
	if ended, err := sys.WaitPidfd(fd, 5000); err != nil || !ended {
		return "", fmt.Errorf("killed through a pidfd, the child lives: %v", err)
	}
	return "", nil
}

// tryExecveat becomes another helper, by descriptor; that one answers.
func tryExecveat() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	return "", sys.ExecFile(f, []string{"probe", childWord, "execveat_done", "0"}, os.Environ())
}

func trySeals() (string, error) {
	f, err := sys.SealedFile("probe", strings.NewReader("sealed"))
	if err != nil {
		return "", err
	}
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.EPERM) {
		return "", fmt.Errorf("a sealed file was written to: %v", err)
	}
	return "", nil
}

func tryOpenat2() (string, error) {
	if _, err := sys.OpenDirNoLinks("/proc/self"); !errors.Is(err, syscall.ELOOP) {
		return "", fmt.Errorf("a link was followed: %w", err)
	}
	return "", nil
}

// tryUser uses a capability that only the new user namespace can give, over the
// UTS namespace that came with it: a host can hand out user namespaces whose
// capabilities are worth nothing (AppArmor's restriction). The comparison comes
// first, so that the host's own name is never set.
func tryUser(parent string) (string, error) {
	if err := distinct("user", parent); err != nil {
		return "", err
	}
	return "", sys.SetHostname("probe")
}

// ownTime gives this thread's children a time namespace. The child makes it only after the
// helper is executed: until Linux 6.2 an execution doesn't enter it, and a process between
// the two can start no thread, and Go needs threads.
func ownTime() error {
	return os.NewSyscallError("unshare", syscall.Unshare(newTime))
}

// distinct compares this process's namespace with its parent's.
func distinct(kind, parent string) error {
	mine, err := namespaceLink(kind)
	if err != nil {
		return fmt.Errorf("%w: %v", errUntold, err)
	}
	if mine == parent {
		return errors.New("clone succeeded and the namespace is the old one")
	}
	return nil
}

// tryUnprivileged starts the user namespace probe from a process without
// privileges.
func tryUnprivileged() (string, error) {
	if os.Getuid() == 0 {
		return "", fmt.Errorf("%w: still root", errUntold)
	}
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	defer f.Close()
	res := start(context.Background(), f, "user_namespace", newUser|newUTS, false)
	switch res.Answer {
	case Yes:
		return "", nil
	case No:
		return "", errors.New(res.Detail)
	}
	return "", fmt.Errorf("%w: %s", errUntold, res.Detail)
}

// tryMount makes a read-only tmpfs and attaches it over /, for this process.
func tryMount() (string, error) {
	if err := sys.MakePrivate(); err != nil {
		return "", err
	}
	m, err := sys.NewFS("tmpfs", sys.AttrNoSUID|sys.AttrNoDev)
	if err != nil {
		return "", err
	}
	if err := errors.Join(sys.SetAttr(m, sys.AttrReadOnly), sys.MoveMount(m, "/proc")); err != nil {
		return "", err
	}
	if err := os.Mkdir("/proc/x", 0o700); !errors.Is(err, syscall.EROFS) {
		return "", fmt.Errorf("a read-only mount takes writes: %v", err)
	}
	return "", nil
}

func tryProc() (string, error) {
	if err := sys.MakePrivate(); err != nil {
		return "", err
	}
	m, err := sys.NewFS("proc", sys.AttrNoSUID|sys.AttrNoDev|sys.AttrNoExec)
	if err != nil {
		return "", err
	}
	if err := sys.MoveMount(m, "/proc"); err != nil {
		return "", err
	}
	if p, err := evidence.ReadProcess("/proc", 1); err != nil || p.HostUID != uint32(os.Getuid()) {
		return "", fmt.Errorf("the new proc does not show this process as the first: %v", err)
	}
	return "", nil
}

func tryQuota() (string, error) {
	m, err := sys.NewFS("tmpfs", 0, "size", "65536", "nr_inodes", "8")
	if err != nil {
		return "", err
	}
	if err := errors.Join(sys.MakePrivate(), sys.MoveMount(m, "/proc")); err != nil {
		return "", err
	}
	err = os.WriteFile("/proc/x", make([]byte, 1<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		return "", fmt.Errorf("a full tmpfs takes writes: %v", err)
	}
	return "", nil
}

// tryIDMap maps the ids of a clone of the mount at /, with a user namespace of
// a child that only holds it.
func tryIDMap() (string, error) {
	child, err := holder(&syscall.SysProcAttr{Cloneflags: newUser, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}})
	if err != nil {
		if refused(err) {
			return "", fmt.Errorf("clone: %s", errnoText(err))
		}
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	defer child.end()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	defer ns.Close()
	dir, err := os.Open("/")
	if err != nil {
		return "", fmt.Errorf("%w: %v", errUntold, err)
	}
	m, err := sys.OpenTree(int(dir.Fd()), "", false)
	if err != nil {
		return "", err
	}
	return "", sys.IDMap(m, ns)
}

// hold keeps a process, and its namespaces, until its stdin closes.
func hold() { io.Copy(io.Discard, os.Stdin) }

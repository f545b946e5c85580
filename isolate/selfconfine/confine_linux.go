package selfconfine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	ll "github.com/landlock-lsm/go-landlock/landlock"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native/landlock"
	"palyra/isolate/native/seccomp"
)

// Apply confines this process. It fails in a program that was built with cgo, or if
// Landlock or seccomp is missing; controls applied until then stay.
func Apply(c Config) error {
	op := "confine this process"
	if err := sys.SetDumpable(0); err != nil {
		return fault.New(fault.Refused, "confine_not_in_force", op, err)
	}
	if err := sys.KeepCapabilitiesAllThreads(c.KeepCapabilities); err != nil {
		return fault.New(fault.Refused, "confine_not_in_force", op, err)
	}
	if err := sys.NoNewPrivsAllThreads(); err != nil {
		return fault.New(fault.Refused, "confine_not_in_force", op, err)
	}
	if _, err := landlock.ABI(); err != nil {
		return err
	}
	rules, err := c.rules()
	if err != nil {
		return fault.New(fault.Refused, "confine_not_in_force", op, err)
	}
	// BestEffort is for rights that an older kernel's Landlock lacks. A kernel without
	// Landlock was refused above, and Report says what is missing.
	if err := c.restrict(rules); err != nil {
		return fault.New(fault.Refused, "confine_not_in_force", op, err)
	}
	f, err := c.compile()
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if err := sys.InstallFilterAllThreads(f.Bytes()); err != nil {
		return fault.New(fault.Refused, "confine_not_in_force", op, err)
	}
	// Check what the kernel says, not what we asked for.
	for _, c := range report(c.refused()).Controls {
		if !c.On {
			return fault.New(fault.Refused, "confine_not_in_force", op, fmt.Errorf("%s is not on: %s", c.Name, c.Detail))
		}
	}
	return nil
}

// restrict restricts files, ways to other processes and, unless it is to have the Internet, ports.
func (c Config) restrict(rules []ll.Rule) error {
	all := ll.V10.BestEffort()
	if !c.Internet {
		return all.Restrict(rules...)
	}
	return errors.Join(all.RestrictPaths(rules...), all.RestrictScoped())
}

func (c Config) compile() (seccomp.Filter, error) {
	arch := seccomp.AMD64
	if runtime.GOARCH == "arm64" {
		arch = seccomp.ARM64
	}
	if c.Internet {
		return seccomp.Compile(InternetPolicy(os.Getpid()), arch)
	}
	return seccomp.Compile(Policy(os.Getpid()), arch)
}

// refused returns the family of a socket that the filter refuses.
func (c Config) refused() int {
	if c.Internet {
		return syscall.AF_NETLINK
	}
	return syscall.AF_INET
}

// own returns the folder of this process in /proc: mounts, namespaces, status.
func own() string { return fmt.Sprintf("/proc/%d", os.Getpid()) }

func (c Config) rules() ([]ll.Rule, error) {
	// The kernel makes a process's directory in /proc anew whenever it has forgotten it,
	// and a rule on the old one wouldn't hold for the new one. A descriptor that is never
	// closed keeps it.
	if _, err := syscall.Open(own(), syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open %q: %w", own(), err)
	}
	rules := []ll.Rule{ll.RODirs(own()), ll.RWFiles(os.DevNull)}
	for _, p := range c.Read {
		switch fi, err := os.Stat(p); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		case fi.IsDir():
			rules = append(rules, ll.PathAccess(readDir, p))
		default:
			rules = append(rules, ll.PathAccess(readFile, p))
		}
	}
	for _, p := range c.Write {
		rules = append(rules, ll.RWDirs(p).WithRefer())
	}
	if c.TCPPort != 0 && !c.Internet {
		rules = append(rules, ll.BindTCP(c.TCPPort))
	}
	return rules, nil
}

// This allows reading, and not executing, which go-landlock's RODirs would allow.
const (
	readFile = ll.AccessFSSet(landlock.FSReadFile)
	readDir  = ll.AccessFSSet(landlock.FSReadFile | landlock.FSReadDir)
)

// Report lists the controls in force in a process without Internet: from /proc for every thread if
// the kernel tells, and otherwise by trying things that must fail.
func Report() Controls { return report(Config{}.refused()) }

// report is Report for a process whose filter refuses sockets of family.
func report(family int) Controls {
	var r Controls
	add := func(name string, on bool, detail, fix string) {
		c := Control{Name: name, On: on, Detail: detail}
		if !on {
			c.Fix = fix
		}
		r.Controls = append(r.Controls, c)
	}
	threads, err := readThreads()
	if err != nil {
		add("threads", false, err.Error(), "mount proc on /proc")
	}
	every := func(f func(thread) bool) bool {
		return len(threads) > 0 && !slices.ContainsFunc(threads, func(t thread) bool { return !f(t) })
	}
	const start = "set cell.confinement = \"enforce\""
	dump, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prGetDump, 0, 0)
	add("not_dumpable", e == 0 && dump == 0, fmt.Sprintf("PR_GET_DUMPABLE is %d", dump), start)
	add("no_new_privs", every(func(t thread) bool { return t.noNewPrivs }), fmt.Sprintf("%d threads", len(threads)), start)
	add("seccomp", every(func(t thread) bool { return t.seccomp == 2 }) && refused(func() error { return trySocket(family) }), fmt.Sprintf("mode %d on %d threads; socket(2) tried", mode(threads), len(threads)), start)
	const risky = ^uint64(1 << 2) // CAP_DAC_READ_SEARCH is kept where it is there
	add("capabilities", every(func(t thread) bool { return t.permitted&risky == 0 && t.effective&risky == 0 }),
		fmt.Sprintf("permitted %016x, bounding %016x", permitted(threads), bounding(threads)), start)
	abi, err := landlock.ABI()
	detail := fmt.Sprintf("ABI %d; reading / tried", abi)
	if err != nil {
		detail = err.Error()
	}
	add("landlock", refused(tryRoot), detail, start+" on a kernel 5.13 or later with landlock in its lsm= list")
	_, missing := landlock.Plan(abi, nil)
	for _, m := range missing {
		// It doesn't count against Enforced: the filter lets the process make no socket and
		// send no signal. Report names it because the kernel could do more.
		r.Controls = append(r.Controls, Control{Name: "landlock_abi", On: true, Detail: m + "; the system call filter covers it"})
	}
	r.Enforced = !slices.ContainsFunc(r.Controls, func(c Control) bool { return !c.On })
	return r
}

func refused(try func() error) bool {
	err := try()
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
}

func trySocket(family int) error {
	kind := syscall.SOCK_STREAM
	if family == syscall.AF_NETLINK {
		kind = syscall.SOCK_RAW
	}
	fd, err := syscall.Socket(family, kind|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		syscall.Close(fd)
	}
	return err
}

func tryRoot() error {
	fd, err := syscall.Open("/", syscall.O_DIRECTORY|syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		syscall.Close(fd)
	}
	return err
}

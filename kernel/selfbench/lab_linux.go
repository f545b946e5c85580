package selfbench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/internal/measure"
)

// Lab makes paths. It is owned by one goroutine; the paths may be run by many.
type Lab struct {
	Absent []measure.Absent  // what was left out, and why
	Tools  map[string]string // versions of peers

	dir      string // ours
	cell     string // palyra-cell
	null     *os.File
	programs []string
	policies string // directory with permitAll

	mu      sync.Mutex
	inForce string // guarded by mu: what the first tier C cell's evidence said
}

// permitAll is a policy that permits every call.
const permitAll = "@id(\"all\") permit (principal, action, resource);\n"

// New makes a Lab with a directory of its own. Close it.
func New(cell string) (*Lab, error) {
	dir, err := os.MkdirTemp("", "palyra-bench-")
	if err != nil {
		return nil, fault.New(fault.Unavailable, "bench_directory", "make a directory to measure in", err)
	}
	// A cell's user must be able to walk to the program.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l := &Lab{dir: dir, cell: cell, null: null, programs: []string{True}, Tools: make(map[string]string)}
	l.policies = filepath.Join(dir, "policy")
	err = os.Mkdir(l.policies, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(l.policies, "all.cedar"), []byte(permitAll), 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	program, err := measure.Noop(runtime.GOARCH)
	if err == nil {
		err = os.WriteFile(l.Host(Noop), program, 0o755)
	}
	if err != nil {
		l.Miss("every path", Noop, err)
	} else {
		l.programs = []string{Noop, True}
	}
	return l, nil
}

// Close removes the directory.
func (l *Lab) Close() error { return errors.Join(l.null.Close(), os.RemoveAll(l.dir)) }

// Dir is a directory that is removed by Close.
func (l *Lab) Dir() string { return l.dir }

// Programs are the names of the programs to measure with.
func (l *Lab) Programs() []string { return l.programs }

// InForce says in a line what held the programs of tier C cells, as the evidence
// of the first of them has it; "" if there was none.
func (l *Lab) InForce() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inForce
}

// Miss notes that something is left out.
func (l *Lab) Miss(path, program string, why error) {
	l.Absent = append(l.Absent, measure.Absent{Path: path, Program: program, Why: why.Error()})
}

// Host returns where a program lies on the host.
func (l *Lab) Host(program string) string {
	if program == Noop {
		return filepath.Join(l.dir, "noop")
	}
	return program
}

// Environment is what every path gives the program, as far as it can.
func Environment() []string { return []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"} }

// Set makes the paths of a set. A path that this host does not have is noted and
// left out; without one beside the floor a set is an error.
func (l *Lab) Set(name, program string) (*Set, error) {
	s := &Set{recorders: make(map[string]*recorder),
		Paths: []measure.Path{l.Spawner(Floor, func() []string { return []string{l.Host(program)} })}}
	var err error
	switch name {
	case Cells:
		err = l.addCells(s, program)
	case Calls:
		err = l.addCalls(s, program)
	default:
		err = fmt.Errorf("measure %q: no such set", name)
	}
	if err == nil && len(s.Paths) < 2 {
		err = fault.New(fault.Refused, "nothing_to_measure", "measure "+name, errors.New(l.reasons()))
	}
	if err != nil {
		return nil, errors.Join(err, measure.Close(s.Paths))
	}
	if p, ok := l.Bwrap(program); ok {
		s.Paths = append(s.Paths, p)
	}
	return s, nil
}

// reasons are those of all that was left out.
func (l *Lab) reasons() string {
	var out []string
	for _, a := range l.Absent {
		out = append(out, a.Path+": "+a.Why)
	}
	return strings.Join(out, "; ")
}

// Spawner is a path that forks and executes, and waits: nothing of os/exec is in
// the measured time. The standard streams are /dev/null.
func (l *Lab) Spawner(name string, argv func() []string) measure.Path {
	null := l.null.Fd()
	attr := &syscall.ProcAttr{Env: Environment(), Files: []uintptr{null, null, null}}
	return measure.Path{Name: name, Once: func() (time.Duration, error) {
		args := argv()
		start := time.Now()
		pid, err := syscall.ForkExec(args[0], args, attr)
		if err != nil {
			return 0, err
		}
		var status syscall.WaitStatus
		for {
			if _, err = syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
				break
			}
		}
		took := time.Since(start)
		if err == nil && status != 0 {
			err = fmt.Errorf("wait status %#x", int(status))
		}
		return took, err
	}}
}

// Peer is a spawner of an installed tool, if it is there and one run of it works.
func (l *Lab) Peer(name, program string, argv func(bin string) []string) (measure.Path, bool) {
	bin, err := exec.LookPath(name)
	if err != nil {
		l.Miss(name, program, errors.New("not installed"))
		return measure.Path{}, false
	}
	p, ok := l.Tried(name, program, func() []string { return argv(bin) })
	if ok && l.Tools[name] == "" {
		l.Tools[name] = version(bin)
	}
	return p, ok
}

// Tried is a spawner of a command line, if one run of it works; if not, that is
// noted.
func (l *Lab) Tried(name, program string, argv func() []string) (measure.Path, bool) {
	args := argv()
	c := exec.Command(args[0], args[1:]...)
	c.Env = Environment()
	if out, err := c.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(string(bytes.TrimSpace(out)), "\n")
		l.Miss(name, program, fmt.Errorf("run: %w: %s", err, first))
		return measure.Path{}, false
	}
	return l.Spawner(name, argv), true
}

func version(bin string) string {
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(bytes.TrimSpace(out)), "\n")
	return first
}

// Links returns the names in the root directory that lead into /usr, and those
// that are folders of their own.
func Links() (symlinks map[string]string, folders []string) {
	symlinks = make(map[string]string)
	for _, l := range []string{"/bin", "/lib", "/lib64", "/sbin"} {
		if to, err := os.Readlink(l); err == nil {
			symlinks[l] = to
		} else if _, err := os.Stat(l); err == nil {
			folders = append(folders, l)
		}
	}
	return symlinks, folders
}

// bwrap returns a bwrap command line for a program: as near to a tier C cell as
// it can get. It is given no seccomp filter (it wants one compiled, a cell brings
// its own) and has no Landlock; it does less than a cell does.
func (l *Lab) bwrap(bin, program string) []string {
	args := []string{bin, "--unshare-all", "--new-session", "--die-with-parent", "--clearenv", "--cap-drop", "ALL",
		"--ro-bind", "/usr", "/usr", "--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"}
	symlinks, folders := Links()
	for at, to := range symlinks {
		args = append(args, "--symlink", to, at)
	}
	for _, f := range folders {
		args = append(args, "--ro-bind", f, f)
	}
	args = append(args, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace",
		"--uid", "1000", "--gid", "1000")
	inside := program
	if program == Noop {
		inside = "/noop"
		args = append(args, "--ro-bind", l.Host(program), inside)
	}
	return append(args, "--", inside)
}

// Bwrap is bwrap's path for a program, if it is installed and works here.
func (l *Lab) Bwrap(program string) (measure.Path, bool) {
	return l.Peer(measure.Bwrap, program, func(bin string) []string { return l.bwrap(bin, program) })
}

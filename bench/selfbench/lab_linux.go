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

	"palyra/bench/measure"
	"palyra/internal/fault"
)

// Lab makes paths. One goroutine owns it; many may run the paths.
type Lab struct {
	Absent []measure.Absent  // paths that were left out, and why
	Tools  map[string]string // versions of peers

	dir      string // ours
	cell     string // palyra-cell
	null     *os.File
	programs []string
	policies string // directory with permitAll

	mu      sync.Mutex
	inForce string // guarded by mu: the confinement of the first tier C cell, by its evidence
}

const permitAll = "@id(\"all\") permit (principal, action, resource);\n"

// New makes a Lab with a directory of its own. Close it.
func New(cell string) (*Lab, error) {
	dir, err := os.MkdirTemp("", "palyra-bench-")
	if err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "make a directory to measure in", err)
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

// Dir is a directory that Close removes.
func (l *Lab) Dir() string { return l.dir }

// Programs returns the names of the programs to measure with.
func (l *Lab) Programs() []string { return l.programs }

// InForce describes the confinement of tier C cells in a line, from the first cell's evidence;
// "" if there was none.
func (l *Lab) InForce() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inForce
}

// Miss notes that a path is left out.
func (l *Lab) Miss(path, program string, why error) {
	l.Absent = append(l.Absent, measure.Absent{Path: path, Program: program, Why: why.Error()})
}

// Host returns a program's path on the host.
func (l *Lab) Host(program string) string {
	if program == Noop {
		return filepath.Join(l.dir, "noop")
	}
	return program
}

// Environment is the program's environment on every path, as far as the path can set it.
func Environment() []string { return []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"} }

// Set makes the paths of a set. It notes and leaves out paths that this host doesn't have. A
// set with only the floor is an error.
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
		err = fault.New(fault.Refused, "cell_start", "measure "+name, errors.New(l.reasons()))
	}
	if err != nil {
		return nil, errors.Join(err, measure.Close(s.Paths))
	}
	if p, ok := l.Bwrap(program); ok {
		s.Paths = append(s.Paths, p)
	}
	return s, nil
}

func (l *Lab) reasons() string {
	var out []string
	for _, a := range l.Absent {
		out = append(out, a.Path+": "+a.Why)
	}
	return strings.Join(out, "; ")
}

// Spawner is a path that forks, executes and waits. The time includes nothing of os/exec. The
// standard streams are /dev/null.
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

// Peer is a spawner of a tool, if it's installed and one run of it works.
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

// Tried is a spawner of a command line, if one run of it works. If not, Tried notes that.
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

// Links returns the root directory's links into /usr, and the folders of the same names that
// aren't links.
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

// bwrap returns a bwrap command line for a program, as near to a tier C cell as bwrap allows.
// It does less than a cell: it has no Landlock, and no seccomp filter because it wants a
// compiled one.
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

// Bwrap is bwrap's path for a program, if it's installed and works here.
func (l *Lab) Bwrap(program string) (measure.Path, bool) {
	return l.Peer(measure.Bwrap, program, func(bin string) []string { return l.bwrap(bin, program) })
}

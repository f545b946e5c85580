package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// lab is what the paths of a run share. It is owned by run.
type lab struct {
	dir      string // ours, removed by run
	bin      string // folder of palyra and palyra-cell, absolute
	null     *os.File
	programs []string
	noop     string // on the host

	absent  []absent
	tools   map[string]string // versions of peers
	inForce string            // what the tier C cell's evidence said
}

func newLab(o options, dir string) (*lab, error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, bin: bin, null: null, programs: []string{programTrue}, tools: make(map[string]string)}
	if err := l.buildNoop(); err != nil {
		l.miss("every path", programNoop, err)
	} else {
		l.programs = []string{programNoop, programTrue}
	}
	for _, p := range []string{pathCellWarm, pathCellVoid} {
		l.miss(p, "", errors.New("does not exist yet"))
	}
	return l, nil
}

func (l *lab) close() { l.null.Close() }

// miss notes that something is left out.
func (l *lab) miss(path, program string, why error) {
	l.absent = append(l.absent, absent{path, program, why.Error()})
}

// host returns where a program lies on the host.
func (l *lab) host(program string) string {
	if program == programNoop {
		return l.noop
	}
	return program
}

// set makes the paths of a set, nil if it has none for the program. A path that
// this host does not have is noted and left out; without its floor and at least
// one other a set is an error.
func (l *lab) set(name, program string) (*set, error) {
	s := &set{name: name, program: program, paths: []path{l.spawner(pathFloor, func() []string { return []string{l.host(program)} })}}
	var err error
	switch name {
	case setCells:
		err = l.cells(s)
	case setCall:
		err = l.call(s)
	case setOneShot:
		if program == programNoop {
			return nil, nil // as one-shots differ by milliseconds, one program tells
		}
		l.oneShots(s)
	}
	if err == nil && len(s.paths) < 2 {
		err = fmt.Errorf("measure %s: nothing beside the floor", name)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// environment is what every path gives the program, as far as it can.
func environment() []string { return []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"} }

// spawner is a path that forks and executes, and waits: nothing of os/exec is in
// the measured time. The standard streams are /dev/null.
func (l *lab) spawner(name string, argv func() []string) path {
	null := l.null.Fd()
	attr := &syscall.ProcAttr{Env: environment(), Files: []uintptr{null, null, null}}
	return path{name: name, once: func() (time.Duration, error) {
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

// peer adds a spawner of an installed tool to s, if it is there and works.
func (l *lab) peer(s *set, name string, argv func(bin string) []string) {
	bin, err := exec.LookPath(name)
	if err != nil {
		l.miss(name, s.program, errors.New("not installed"))
		return
	}
	l.tried(s, name, func() []string { return argv(bin) })
	if l.tools[name] == "" {
		l.tools[name] = version(bin)
	}
}

// tried adds a spawner to s if one run of it succeeds, and notes why not.
func (l *lab) tried(s *set, name string, argv func() []string) {
	args := argv()
	c := exec.Command(args[0], args[1:]...)
	c.Env = environment()
	if out, err := c.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(string(bytes.TrimSpace(out)), "\n")
		l.miss(name, s.program, fmt.Errorf("run: %w: %s", err, first))
		return
	}
	s.paths = append(s.paths, l.spawner(name, argv))
}

func version(bin string) string {
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(bytes.TrimSpace(out)), "\n")
	return first
}

// oneShots adds everything that starts from nothing.
func (l *lab) oneShots(s *set) {
	l.peer(s, pathBwrap, func(bin string) []string { return l.bwrap(bin, s.program) })
	state := filepath.Join(l.dir, "one-shot")
	for _, x := range []struct{ name, tier string }{{pathExecC, "c"}, {pathExecB, "b"}} {
		l.tried(s, x.name, func() []string {
			return []string{filepath.Join(l.bin, "palyra"), "exec", "--tier", x.tier, "--state", state, "--", s.program}
		})
	}
	l.peer(s, pathFirejail, func(bin string) []string {
		return []string{bin, "--quiet", "--noprofile", "--net=none", "--private", "--private-dev", "--caps.drop=all",
			"--nonewprivs", "--seccomp", "--nogroups", "--ipc-namespace", "--", s.program}
	})
	bundle, err := l.bundle(s.program)
	if err != nil {
		l.miss(pathCrun+", "+pathRunc, s.program, err)
		return
	}
	var n atomic.Int64
	id := func() string { return fmt.Sprintf("palyra-bench-%d-%d", os.Getpid(), n.Add(1)) }
	root := filepath.Join(l.dir, "oci-state")
	l.peer(s, pathCrun, func(bin string) []string {
		return []string{bin, "--root", root, "--cgroup-manager=disabled", "run", "--bundle", bundle, id()}
	})
	l.peer(s, pathRunc, func(bin string) []string {
		return []string{bin, "--root", root, "run", "--bundle", bundle, id()}
	})
}

// The program that only exits, for machines that we have an assembler line for.
const noopSource = `__attribute__((noreturn)) void _start(void) {
#if defined(__x86_64__)
	__asm__ volatile("xor %edi,%edi; mov $60,%eax; syscall");
#elif defined(__aarch64__)
	__asm__ volatile("mov x0,#0; mov x8,#93; svc #0");
#else
#error no assembler line for this machine
#endif
	__builtin_unreachable();
}
`

// buildNoop makes a static program without a library: what is left of it is the
// cost of starting anything at all.
func (l *lab) buildNoop() error {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return errors.New("gcc is not installed")
	}
	l.noop = filepath.Join(l.dir, "noop")
	c := exec.Command(gcc, "-x", "c", "-O2", "-static", "-nostdlib", "-s", "-Wl,--build-id=none", "-o", l.noop, "-")
	c.Stdin = strings.NewReader(noopSource)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("compile noop for %s: %w: %s", runtime.GOARCH, err, bytes.TrimSpace(out))
	}
	return os.Chmod(l.noop, 0o755)
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	prSetChildSubreaper = 36 // include/uapi/linux/prctl.h
	polite              = 5 * time.Second
	patience            = 30 * time.Second // for killed processes to be gone
	interval            = 20 * time.Millisecond
)

// run starts argv, reaps every process that becomes a child of this one, and
// returns when none is left.
func run(budget time.Duration, argv []string) (int, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return statusBroken, err
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); e != 0 {
		return statusBroken, fmt.Errorf("prctl PR_SET_CHILD_SUBREAPER: %w", e)
	}
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A group of its own: a signal to the terminal's group comes here and not to the command.
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return statusBroken, fmt.Errorf("start %q: %w", path, err)
	}
	defer reportWork(time.Now())
	ended, empty := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go reap(pid, ended, empty)

	over := time.NewTimer(budget)
	defer over.Stop()
	select {
	case ws := <-ended:
		left := names(descendants(os.Getpid()))
		if len(left) > 0 {
			fmt.Fprintf(os.Stderr, "lane: left behind and ended: %s\n", strings.Join(left, ", "))
		}
		return status(ws), end(empty, 0)
	case <-over.C:
		err := fmt.Errorf("over its budget of %v: ended, with %s", budget, strings.Join(names(descendants(os.Getpid())), ", "))
		return statusOver, errors.Join(err, end(empty, polite))
	case s := <-interrupt:
		return 128 + int(s.(syscall.Signal)), end(empty, polite)
	}
}

// reportWork says how many processors the command and all that it started kept at work.
func reportWork(begun time.Time) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return
	}
	work := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	fmt.Fprintf(os.Stderr, "lane: at work on %.1f of %d processors\n", work.Seconds()/time.Since(begun).Seconds(), runtime.NumCPU())
}

// reap waits for every child. It sends pid's status to ended and closes empty
// when there are no children.
func reap(pid int, ended chan<- syscall.WaitStatus, empty chan<- struct{}) {
	defer close(empty)
	for {
		var ws syscall.WaitStatus
		switch got, err := syscall.Wait4(-1, &ws, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return
		case got == pid:
			ended <- ws
		}
	}
}

func status(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// end signals all descendants until none is left: SIGTERM once if it may wait,
// then SIGKILL. Killing one makes its children ours, so it looks again.
func end(empty <-chan struct{}, wait time.Duration) error {
	if wait > 0 {
		for _, pid := range descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGTERM) // it may be gone
		}
		select {
		case <-empty:
			return nil
		case <-time.After(wait):
		}
	}
	for last := time.Now().Add(patience); ; {
		left := descendants(os.Getpid())
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-empty:
			return nil
		case <-time.After(interval):
		}
		if time.Now().After(last) {
			return fmt.Errorf("would not end: %s", strings.Join(names(left), ", "))
		}
	}
}

// descendants returns the processes below root that /proc shows, zombies too.
func descendants(root int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // gone
		}
		// pid (name) state ppid; the name may hold anything, so the last ')' counts.
		if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 1 {
			if parent, err := strconv.Atoi(string(f[1])); err == nil {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	all := children[root]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// names says what pids are, "2 sleep", with zombies left out.
func names(pids []int) []string {
	count := make(map[string]int)
	for _, pid := range pids {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && len(line) > 0 {
			count[strings.TrimSpace(string(comm))]++
		}
	}
	var out []string
	for name, n := range count {
		out = append(out, fmt.Sprintf("%d %s", n, name))
	}
	slices.Sort(out)
	return out
}

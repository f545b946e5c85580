package selfconfine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// thread is what /proc/self/task/TID/status says about confinement, proc(5).
type thread struct {
	noNewPrivs                     bool
	seccomp                        int
	effective, permitted, bounding uint64
}

func readThreads() ([]thread, error) {
	dir := own() + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []thread
	for _, e := range tasks {
		b, err := os.ReadFile(dir + "/" + e.Name() + "/status")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has just ended
		}
		if err != nil {
			return nil, err
		}
		t, err := parseThread(string(b))
		if err != nil {
			return nil, fmt.Errorf("thread %s: %w", e.Name(), err)
		}
		out = append(out, t)
	}
	return out, nil
}

func parseThread(status string) (thread, error) {
	var t thread
	want := map[string]func(v string) error{
		"NoNewPrivs": func(v string) (err error) { t.noNewPrivs = v == "1"; return nil },
		"Seccomp":    func(v string) (err error) { t.seccomp, err = strconv.Atoi(v); return err },
		"CapEff":     func(v string) (err error) { t.effective, err = strconv.ParseUint(v, 16, 64); return err },
		"CapPrm":     func(v string) (err error) { t.permitted, err = strconv.ParseUint(v, 16, 64); return err },
		"CapBnd":     func(v string) (err error) { t.bounding, err = strconv.ParseUint(v, 16, 64); return err },
	}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if f := want[name]; f != nil {
			if err := f(strings.TrimSpace(value)); err != nil {
				return t, fmt.Errorf("status line %q: %w", name, err)
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		return t, fmt.Errorf("status lacks %d lines", len(want))
	}
	return t, nil
}

// mode returns the lowest seccomp mode of the threads.
func mode(ts []thread) int {
	m := 2
	for _, t := range ts {
		m = min(m, t.seccomp)
	}
	if len(ts) == 0 {
		return 0
	}
	return m
}

func permitted(ts []thread) (all uint64) {
	for _, t := range ts {
		all |= t.permitted
	}
	return all
}

func bounding(ts []thread) (all uint64) {
	for _, t := range ts {
		all |= t.bounding
	}
	return all
}

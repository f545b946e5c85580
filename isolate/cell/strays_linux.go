package cell

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"palyra/isolate/internal/sys"
)

// killStrays kills and reaps what a palyra-cell without a PID namespace left
// behind when it died. All of that is confined, which a process cannot undo, and
// becomes a child of ours once nobody is left between. What another palyra-cell
// runs is not: it has that one above it.
func killStrays() {
	for {
		var found bool
		for _, pid := range children(os.Getpid()) {
			if confined(pid) {
				found = true
				sys.Kill(pid, int(syscall.SIGKILL))
				sys.Reap(pid) // its children are ours by then
			}
		}
		if !found {
			return
		}
	}
}

// confined reports whether a process has no_new_privs and a seccomp filter.
func confined(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	var marks int
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if name == "NoNewPrivs" && value == "1" || name == "Seccomp" && value == "2" {
			marks++
		}
	}
	return marks == 2
}

// descendants lists the live descendants of pid, parents first.
func descendants(pid int) []int {
	var out []int
	queue := []int{pid}
	for len(queue) > 0 {
		kids := children(queue[0])
		queue = append(queue[1:], kids...)
		out = append(out, kids...)
	}
	return out
}

// children lists the children of all threads of pid.
func children(pid int) (out []int) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := sys.ListAt(sys.AtCWD, dir)
	if err != nil {
		return nil
	}
	buf := make([]byte, 512) // it is replaced if it is too small
	for _, t := range tasks {
		b, err := sys.ReadAt(sys.AtCWD, dir+"/"+t+"/children", &buf)
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// onlyChild returns the child of a process of one thread, which must have one.
func (s *server) onlyChild(pid int) (int, error) {
	dir, err := s.reader.Process(pid)
	if err != nil {
		return 0, err
	}
	defer sys.Close(dir)
	buf := make([]byte, 64) // it is replaced if it is too small
	b, err := sys.ReadAt(dir, "task/"+strconv.Itoa(pid)+"/children", &buf)
	if err != nil {
		return 0, err
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("it has children %q, want one", b)
	}
	return child, nil
}

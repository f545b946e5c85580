package spawn

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"palyra/isolate/internal/sys"
	"palyra/isolate/internal/tree"
)

// killStrays kills and reaps the processes that a dead palyra-cell without a PID namespace left
// behind. They are all confined, which a process can't undo, and become our children when no
// process is left between. Processes of another palyra-cell don't: they are below it.
func killStrays() {
	for {
		var found bool
		for _, pid := range tree.NewWalk(0).Children(os.Getpid()) {
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

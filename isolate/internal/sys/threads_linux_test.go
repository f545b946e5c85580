package sys

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOrdinary: a process that was started with realtime classes has them on no thread afterwards.
// The control is one that keeps what it inherited. Its program is built without cgo, as everything
// that ships: with it, as under the race detector, not all threads can be changed.
func TestOrdinary(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ordinary")
	build := exec.Command("go", "build", "-o", program, "./testdata/ordinary")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its classes
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	if _, _, e := unix.Syscall(unix.SYS_IOPRIO_SET, 1, 0, 1<<13); err != nil || e != 0 {
		t.Skip("needs root that may have realtime classes:", err, e)
	}
	for arg, want := range map[string]string{"give-up": "ordinary ordinary", "keep": "realtime realtime"} {
		out, err := exec.Command(program, arg).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", arg, err, out)
		}
		for got := range strings.Lines(string(out)) {
			if got = strings.TrimSpace(got); got != want {
				t.Errorf("%s: a thread's classes are %s, want %s", arg, got, want)
			}
		}
	}
}

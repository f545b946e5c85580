package sys

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const ordinary = "PALYRA_TEST_ORDINARY"

// TestOrdinary: a process that was started with realtime classes has them on no thread afterwards.
// The control is one that keeps what it inherited.
func TestOrdinary(t *testing.T) {
	if child := os.Getenv(ordinary); child != "" {
		if child == "give up" {
			if err := OrdinaryAllThreads(); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Println("classes:", strings.Join(classes(t), ","))
		return
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its classes
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	if _, _, e := unix.Syscall(unix.SYS_IOPRIO_SET, 1, 0, 1<<13); err != nil || e != 0 {
		t.Skip("needs root that may have realtime classes:", err, e)
	}
	for child, want := range map[string]string{"give up": "ordinary ordinary", "keep": "realtime realtime"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOrdinary$")
		cmd.Env = append(os.Environ(), ordinary+"="+child)
		out, err := cmd.CombinedOutput()
		_, got, ok := strings.Cut(string(out), "classes: ")
		if err != nil || !ok {
			t.Fatalf("%v: %s", err, out)
		}
		got, _, _ = strings.Cut(got, "\n")
		for c := range strings.SplitSeq(got, ",") {
			if c != want {
				t.Errorf("%s: a thread's classes are %s, want %s", child, c, want)
			}
		}
	}
}

// classes returns what each thread has at processors and disks.
func classes(t *testing.T) (out []string) {
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) < 2 {
		t.Fatalf("%d threads: %v", len(tasks), err)
	}
	name := map[bool]string{true: "realtime", false: "ordinary"}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		policy, _, e := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(tid), 0, 0)
		disk, _, e2 := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(tid), 0)
		if e != 0 || e2 != 0 {
			t.Fatal(e, e2)
		}
		out = append(out, name[policy == unix.SCHED_FIFO]+" "+name[disk>>13 == 1])
	}
	return out
}

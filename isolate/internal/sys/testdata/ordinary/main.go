// Command ordinary prints what each of its threads has at processors and disks. With the argument
// "give-up" it gives up what it inherited before.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"palyra/isolate/internal/sys"
)

func main() {
	if os.Args[1] == "give-up" {
		if err := sys.OrdinaryAllThreads(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) < 2 {
		fmt.Println(len(tasks), "threads:", err)
		os.Exit(1)
	}
	name := map[bool]string{true: "realtime", false: "ordinary"}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		policy, _, e := unix.Syscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(tid), 0, 0)
		disk, _, e2 := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(tid), 0)
		if err != nil || e != 0 || e2 != 0 {
			fmt.Println(task, err, e, e2)
			os.Exit(1)
		}
		fmt.Println(name[policy == unix.SCHED_FIFO], name[disk>>13 == 1])
	}
}

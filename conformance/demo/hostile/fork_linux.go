package main

import (
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"syscall"
)

// rawFork is fork(2) without exec. The child has one thread and a Go runtime
// that may not be used; all it may do is park, which never returns.
func rawFork() (int, error) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(pid), nil
}

// park waits for ever: ppoll(2) of nothing without a timeout.
func park() {
	for {
		syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

func fork(arg string) (string, error) {
	want, err := strconv.Atoi(arg)
	if err != nil {
		return "", err
	}
	var pids []int
	for len(pids) < want && err == nil {
		var pid int
		if pid, err = rawFork(); err == nil {
			if pid == 0 {
				park()
			}
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
		syscall.Wait4(pid, nil, 0, nil)
	}
	if err != nil {
		return "", fmt.Errorf("%d of %d children, then %w", len(pids), want, err)
	}
	return fmt.Sprintf("had %d children at once", want), nil
}

func allocate(arg string) (string, error) {
	want, err := strconv.Atoi(arg)
	if err != nil {
		return "", err
	}
	const chunk = 1 << 20
	for have := 0; have < want; have += chunk {
		b, err := syscall.Mmap(-1, 0, chunk, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return "", fmt.Errorf("%d of %d MiB, then %w", have>>20, want>>20, err)
		}
		for i := 0; i < chunk; i += 4096 {
			b[i] = 1
		}
	}
	return fmt.Sprintf("touched %d MiB", want>>20), nil
}

// outlive leaves a grandchild in a session of its own that ignores every signal
// it can, and then waits for ever itself. The mark is in the command line of
// all of them, so that the demo can look for survivors from the host.
func outlive(string) (string, error) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGXCPU)
	pid, err := rawFork()
	if err != nil {
		return "", err
	}
	if pid == 0 {
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0); errno != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 1, 0, 0)
		}
		park() // child and grandchild: whoever kills one has not killed the other
	}
	fmt.Println("waiting")
	park()
	return "", errors.New("unreachable")
}

package main

import (
	"fmt"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitProbes are cases 84 to 87: living longer, running first, and raising
// what was lowered.
var limitProbes = map[string]probe{
	"daemon":   daemon,
	"realtime": realtime,
	"spin":     spin,
	"rlimit":   raiseLimit,
	"soft":     softLimit,
	"prlimit":  limitVictim,
	"evade":    evade,
}

// daemon leaves a grandchild in a session of its own and exits, or waits for
// the deadline. The grandchild shares this process's command line, by which the
// battery finds it.
func daemon(a args) (string, error) {
	signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGXCPU)
	detached := a.word["output"] == "closed"
	pid, errno := rawFork(0)
	if errno != 0 {
		return "", failed("fork", errno)
	}
	if pid == 0 {
		call(unix.SYS_SETSID, 0, 0, 0, 0, 0)
		pid, errno := rawFork(0)
		if errno != 0 || pid != 0 {
			exit(errno)
		}
		if detached {
			for fd := range 3 {
				call(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0, 0)
			}
		}
		park()
	}
	if err := reap(pid); err != nil {
		return "", err
	}
	if a.str("parent") == "waits" {
		emit(result{Case: "daemon", Outcome: "OPEN", Detail: "waiting"})
		park()
	}
	return "left a grandchild", nil
}

// realtime asks to run before everybody else.
func realtime(a args) (string, error) {
	switch how := a.str("how"); how {
	case "fifo", "rr":
		policy := uint32(unix.SCHED_FIFO)
		if how == "rr" {
			policy = unix.SCHED_RR
		}
		return "", failed("sched_setattr", unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: 1}, 0))
	case "setscheduler":
		param := []byte{1, 0, 0, 0}
		_, err := raw("sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, address(param))
		keep(param)
		return "", err
	case "nice":
		return "", failed("setpriority", unix.Setpriority(unix.PRIO_PROCESS, 0, -10))
	default:
		return "", fmt.Errorf("no class named %q", how)
	}
}

// spin burns processors in count processes, without end.
func spin(a args) (string, error) {
	signal.Ignore(unix.SIGTERM, unix.SIGXCPU)
	for range a.num("count") - 1 {
		pid, errno := rawFork(0)
		if errno != 0 {
			return "", failed("fork", errno)
		}
		if pid == 0 {
			break
		}
	}
	for {
		call(unix.SYS_GETPID, 0, 0, 0, 0, 0)
	}
}

// raiseLimit raises the hard limit of a resource.
func raiseLimit(a args) (string, error) {
	which := map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "as": unix.RLIMIT_AS,
		"fsize": unix.RLIMIT_FSIZE, "cpu": unix.RLIMIT_CPU, "core": unix.RLIMIT_CORE, "data": unix.RLIMIT_DATA}
	res, ok := which[a.str("limit")]
	if !ok {
		return "", fmt.Errorf("no limit named %q", a.str("limit"))
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(res, &lim); err != nil {
		return "", failed("getrlimit", err)
	}
	if lim.Max == unix.RLIM_INFINITY {
		// Nothing to raise. Outside that is how it is; inside the limit itself is missing.
		return "unlimited already", nil
	}
	lim.Max++
	if err := unix.Prlimit(0, res, &lim, nil); err != nil {
		return "", failed("setrlimit", err)
	}
	// The filter says that a core file's was set, and lets nothing set it.
	var got unix.Rlimit
	if err := unix.Getrlimit(res, &got); err != nil {
		return "", failed("getrlimit", err)
	}
	if got.Max != lim.Max {
		return "", failed("setrlimit, which says it is done", unix.EPERM)
	}
	return fmt.Sprintf("hard limit %d", lim.Max), nil
}

// softLimit raises the soft limit of a file's size to the hard one and writes mib MiB into
// one file. lower sets the soft limit first: outside there is none.
func softLimit(a args) (string, error) {
	signal.Ignore(unix.SIGXFSZ)
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &lim); err != nil {
		return "", failed("getrlimit", err)
	}
	if a.word["lower"] != "" {
		lim.Cur = uint64(a.num("lower")) * mib
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &lim); err != nil {
			return "", failed("setrlimit", err)
		}
	}
	lim.Cur = lim.Max
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &lim); err != nil {
		return "", failed("setrlimit", err)
	}
	return fill(args{word: map[string]string{"dir": ".", "mib": a.str("mib"), "file": a.str("mib")}})
}

// limitVictim sets a limit of another process, else of the parent: of core files, or of
// processor time.
func limitVictim(a args) (string, error) {
	what, to, pid := unix.RLIMIT_CORE, uint64(4096), unix.Getppid()
	if _, ok := a.word["cpu"]; ok {
		what, to = unix.RLIMIT_CPU, 30 // lower than what a call has
	}
	if _, ok := a.word["pid"]; ok {
		pid = a.num("pid")
	}
	return "", failed("prlimit", unix.Prlimit(pid, what, &unix.Rlimit{Cur: to, Max: to}, nil))
}

// evade outlives a deadline: stopped, deaf to SIGTERM, or waiting in vfork.
func evade(a args) (string, error) {
	signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGXCPU, unix.SIGALRM)
	emit(result{Case: "evade", Outcome: "OPEN", Detail: "waiting"})
	switch how := a.str("how"); how {
	case "stop":
		return "", failed("kill SIGSTOP", unix.Kill(unix.Getpid(), unix.SIGSTOP))
	case "ignore":
		park()
	case "vfork":
		// With CLONE_VFORK the parent sleeps in the kernel until the child ends.
		// Without CLONE_VM the two share nothing, so the child may use its stack.
		pid, errno := rawFork(syscall.CLONE_VFORK)
		if errno != 0 {
			return "", failed("vfork", errno)
		}
		if pid == 0 {
			park()
		}
	default:
		return "", fmt.Errorf("no way to evade named %q", how)
	}
	return "", nil
}

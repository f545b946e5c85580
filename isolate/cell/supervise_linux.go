package cell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

// process is a launched run: the reaper (pid, pidfd) and, once it was cloned,
// the program.
type process struct {
	*run
	call    *run // whose deadline and caller count: run, or that of the call that a waiting cell got
	arena   *sys.Arena
	pid     int // the reaper, as palyra-cell sees it
	pidfd   int
	program int // the program, as palyra-cell sees it; 0 before the gate
	start   time.Time

	reaped bool   // by finish; otherwise free does it
	hit    string // the limit that we killed it for, "" if none
	info   int64  // the longest text of fdinfo that a sample met
	mu     sync.Mutex
	over   bool // guarded by mu: pid and pidfd may soon be somebody else's
}

// free gives up what is needed while the process lives. It is dead, or being killed.
func (p *process) free() {
	if !p.reaped {
		sys.Reap(p.pid)
	}
	sys.Close(p.pidfd)
	p.arena.Free()
}

// supervise takes the child through its rendezvous and waits for the end of
// the tree. It never returns while a process of the run is alive.
func (p *process) supervise() (*isolate.Result, error) {
	p.call.attach(p)
	err := p.toGate()
	if err != nil {
		p.kill()
	}
	return p.finish(err)
}

// finish waits for the end of the tree. early is why the program will not start,
// if that is known; the tree is being killed then.
func (p *process) finish(early error) (*isolate.Result, error) {
	err := early
	if err == nil {
		err = p.await()
	}
	cause := p.call.cause()
	p.mu.Lock()
	p.over = true
	if err != nil || p.reap {
		p.killTree()
	}
	p.mu.Unlock()
	user, system, rerr := p.usage()
	if rerr != nil {
		rerr = fault.New(fault.Internal, "cell_reap", "reap cell", rerr)
		if early == nil {
			return &isolate.Result{Outcome: isolate.Unknown}, rerr // it was let go, and nobody saw its end
		}
		p.ev.Exit.Code = -1
		return &isolate.Result{Outcome: isolate.Failed, Evidence: &p.ev}, rerr // the gate stays shut
	}
	p.ev.Exit.TreeDead, p.ev.Exit.TreeBasis = p.treeGone()
	if p.leaf != nil {
		p.leafUsage()
	}
	p.ev.Exit.Basis = evidence.Observed
	started := early == nil
	if serr := p.arena.Failed(); started && serr != nil {
		started, err = false, serr // the last steps of a warm cell
	}
	return p.conclude(cause, started, err, user, system)
}

// usage waits for the end of the reaper and returns what the run used. At tier C
// all others are dead and reaped when it has ended (zap_pid_ns_processes), and it
// needs no reaping for the answer; a group can be removed, and at tier B an orphan
// be looked for, only after that.
func (p *process) usage() (user, system time.Duration, err error) {
	if !p.reap && p.leaf == nil {
		return sys.Usage(p.pidfd)
	}
	p.reaped = true
	_, ru, err := sys.Reap(p.pid)
	return time.Duration(ru.Utime.Nano()), time.Duration(ru.Stime.Nano()), err
}

// toGate serves the child's marks until it may execute the program. It returns an
// error if the child ended before that.
func (p *process) toGate() error {
	for {
		left := p.call.left(time.Hour)
		mark, err := sys.ReadMark(p.status, p.pidfd, left)
		if err != nil {
			return err
		}
		switch mark {
		case 0:
			if p.call.left(time.Hour) == 0 {
				p.call.late = true
				return errors.New("the deadline passed before the gate")
			}
			if serr := p.arena.Failed(); serr != nil {
				return serr
			}
			return errors.New("the child ended before the gate")
		case steps.MarkIDs:
			if err := p.s.writeIDMaps(p.pid, native.InnerID, p.uid, native.InnerID, p.gid); err != nil {
				return fmt.Errorf("write id maps: %w", err)
			}
		case steps.MarkGate:
			if err := knob.Gate(p.observe()); err != nil {
				return fmt.Errorf("read evidence: %w", err)
			}
		default:
			return fmt.Errorf("unknown mark %q", mark)
		}
		if _, err := syscall.Write(p.gate, []byte{1}); err != nil {
			return fmt.Errorf("open gate: %w", err)
		}
		if mark == steps.MarkGate {
			p.call.tell(&p.ev)
			p.describe()
			return nil // whether it could be executed shows at its end
		}
	}
}

// describe adds to the evidence what does not depend on the process, while the
// program starts.
func (p *process) describe() {
	if im := p.image; im != nil {
		p.ev.Tape = evidence.Tape{Basis: evidence.Reported, Digest: im.Digest, Steps: im.Steps}
	} else {
		p.ev.Tape = evidence.Tape{Basis: evidence.Reported, Digest: p.tape.Digest(), Steps: p.tape.Steps()}
	}
	p.ev.Executable = executable(p.spec)
}

// kill ends the tree unless it has ended. Anybody may call it.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.killTree()
	}
}

// await waits until the program has ended, the deadline has passed or the
// caller has given up, and the tree is dead or about to be.
func (p *process) await() error {
	watch := p.pidfd
	if p.reap {
		// The reaper stays for what the program leaves behind, which we must kill.
		fd, err := sys.PidfdOpen(p.program)
		if err != nil {
			return nil // it has ended and was reaped already, but not what it left behind
		}
		defer sys.Close(fd)
		watch = fd
	}
	var due pace
	for {
		every := time.Hour
		if p.leaf == nil || p.room != nil {
			every = due.wait()
		}
		left := -1
		if !p.call.late {
			left = p.call.left(every)
		}
		guard := p.covers.fd()
		if p.covers.events != 0 {
			guard = -1 // it is being killed
		}
		switch ended, told, err := sys.WaitPidfdOr(watch, guard, left); {
		case err != nil:
			return err
		case ended:
			return nil
		case told:
			if p.covers.told() != nil { // which check says again
				p.kill()
			}
		case left >= 0 && p.call.left(every) == 0:
			p.call.late = true
			p.kill()
		case left >= 0:
			start := time.Now()
			left := p.sample()
			due.took(time.Since(start), left)
		}
	}
}

// sample kills a run that uses more than its limits where nothing else bounds
// it: memory without a cgroup, the private directory without a quota. It returns how much
// of the memory limit is left, from 0 to 1.
func (p *process) sample() (left float64) {
	left = 1
	if p.leaf == nil {
		t := p.tally()
		p.ev.Usage.PeakMemory = max(p.ev.Usage.PeakMemory, t.sum)
		left = 1 - min(float64(t.sum)/float64(t.limit), 1)
		if t.over() && p.hit == "" {
			p.hit = "memory"
			p.kill()
		}
	}
	if p.room != nil && p.hit == "" && overQuota(int(p.room.Fd()), p.spec.Limits.Disk, p.spec.Limits.Inodes) {
		p.hit = "disk"
		p.kill()
	}
	return left
}

// killTree kills every process of the run and returns when the reaper is about
// to be reaped. Killing the first process of a PID namespace kills all of them.
// Without one (tier B) every descendant is looked up and killed until none is
// left: of ours and not only of the reaper, because the program has the same
// user and may have killed or stopped the reaper. There is one run at a time.
func (p *process) killTree() {
	if !p.reap {
		sys.KillPidfd(p.pidfd)
		return
	}
	for rounds := 0; ; rounds++ {
		left := 0
		for _, pid := range descendants(os.Getpid()) {
			if pid == p.pid {
				continue
			}
			left++
			sys.Kill(pid, int(syscall.SIGKILL))
		}
		for _, pid := range children(os.Getpid()) {
			if pid != p.pid {
				sys.TryReap(pid)
			}
		}
		if left == 0 && (p.program == 0 || rounds > 1000) {
			// It has nothing to report, or does not get to it.
			sys.KillPidfd(p.pidfd)
		}
		sys.Kill(p.pid, int(syscall.SIGCONT))
		// The reaper ends by itself once it has no child left.
		if ended, err := sys.WaitPidfd(p.pidfd, 1); left == 0 && (ended || err != nil) {
			return
		}
	}
}

// treeGone says whether a process of the run is left after the reaper has ended, and
// how we know. At tier C the kernel kills and reaps all others of a PID namespace before
// its first process ends (pid_namespaces(7)), and we only saw that end; at tier B an
// orphan would have become our child.
func (p *process) treeGone() (bool, evidence.Basis) {
	if p.reap {
		return len(descendants(os.Getpid())) == 0, evidence.Observed
	}
	return true, evidence.Reported
}

// leafUsage reads what the cgroup saw.
func (p *process) leafUsage() {
	if peak, err := p.leaf.Peak(); err == nil {
		p.ev.Usage.PeakMemory = peak
	}
	if ev, err := p.leaf.Events(); err == nil && ev.OOMKill > 0 && p.hit == "" {
		p.hit = "memory"
	}
}

// observe reads the evidence of the program's process while it waits at the
// gate: after the last step of confinement, before the program's first
// instruction.
func (p *process) observe() error {
	var err error
	if p.program, err = p.s.onlyChild(p.pid); err != nil {
		return fmt.Errorf("look for the program's process: %w", err)
	}
	pidfd, err := sys.PidfdOpen(p.program)
	if err != nil {
		return err
	}
	defer sys.Close(pidfd)
	read := p.s.reader.Read
	if p.ahead {
		read = p.s.reader.ReadWaiting
	}
	if err := read(&p.ev, p.program, pidfd); err != nil {
		return err
	}
	dir, err := p.s.reader.Process(p.program)
	if err != nil {
		return err
	}
	defer sys.Close(dir)
	if err := p.unreadable(dir); err != nil {
		return err
	}
	if p.s.tier == tier.C {
		if err := p.checkOwner(pidfd, dir); err != nil {
			return shut("identity", err)
		}
	}
	// While somebody holds it the end of the cell need not wait until its mounts
	// are gone, which takes an RCU grace period.
	p.mounts = sys.MountNamespace(pidfd)
	if err := p.covers.watch(p.program); err != nil {
		return err
	}
	p.ev.Cell = evidence.Cell{Basis: evidence.Reported, Mode: evidence.CellCold}
	p.ev.Tier = tier.B.String()
	if p.s.tier == tier.C {
		p.ev.Tier = tier.C.String()
	}
	p.ev.Seccomp = evidence.Seccomp{Basis: evidence.Reported, Program: p.filter.digest, Policy: p.filter.policy,
		Instructions: p.filter.filter.Len(), DefaultErrno: int(syscall.EPERM)}
	if err := p.readBackFilter(); err != nil {
		return err
	}
	return p.asOrdered()
}

func executable(s *isolate.Spec) evidence.Executable {
	return evidence.Executable{Basis: evidence.Reported, Path: s.Exec.Path, Digest: s.Exec.Digest, Pinned: s.Exec.Pinned}
}

// readBackFilter compares the filter in force with the one we meant, where we
// may ask the kernel for it: as the host's root. Elsewhere it stays reported.
func (p *process) readBackFilter() error {
	if !p.s.root {
		return nil
	}
	got, err := sys.InstalledFilter(p.program, p.filter.filter.Len())
	if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		return nil // a kernel without CONFIG_CHECKPOINT_RESTORE, or ptrace forbidden by another policy
	}
	if err != nil {
		return err
	}
	if canon.Sum(got) != p.ev.Seccomp.Program {
		return shut("seccomp", errors.New("the seccomp filter in force is not the one that was installed"))
	}
	p.ev.Seccomp.Basis = evidence.Verified
	return nil
}

// check refuses to open the gate for a process that is not confined as it must
// be. It never is otherwise, unless the kernel or we are wrong. bounded says
// that the bounding set had to be emptied, too: all but tier B of a plain user.
func check(e *evidence.Evidence, bounded bool) error {
	pr := &e.Process
	switch {
	case pr.NoNewPrivs != 1:
		return shut("no_new_privs", errors.New("no_new_privs is not set"))
	case pr.Seccomp != 2 || pr.Filters < 1:
		return shut("seccomp", errors.New("no seccomp filter is in force"))
	case strings.Trim(pr.CapInh+pr.CapPrm+pr.CapEff+pr.CapAmb, "0") != "":
		return shut("capabilities", errors.New("a capability set is not empty"))
	case bounded && strings.Trim(pr.CapBnd, "0") != "":
		return shut("capabilities", errors.New("the bounding set is not empty"))
	case pr.TTY != 0:
		return shut("terminal", errors.New("there is a controlling terminal"))
	case pr.Session != 1:
		return shut("session", errors.New("it has no session of its own"))
	}
	return nil
}

// conclude turns what happened into a Result.
func (p *process) conclude(cause error, started bool, runErr error, user, system time.Duration) (*isolate.Result, error) {
	e := &p.ev
	e.Exit.Code = -1
	e.Usage.Basis, e.Usage.WallNS = evidence.Observed, time.Since(p.start).Nanoseconds()
	e.Usage.UserNS, e.Usage.SystemNS = user.Nanoseconds(), system.Nanoseconds()
	res := &isolate.Result{Outcome: isolate.Failed, Evidence: e}
	deadline := errors.Is(cause, context.DeadlineExceeded)
	if !started {
		if deadline {
			res.Outcome, e.Exit.LimitHit = isolate.TimedOut, "wall"
			return res, nil
		}
		if cause != nil {
			res.Outcome, e.Exit.LimitHit = isolate.Killed, "canceled"
			return res, nil
		}
		err := startFault(p.spec, runErr)
		if fault.KindOf(err) == fault.Refused {
			res.Outcome = isolate.Refused // the host would not confine it, so it did not run
		}
		return res, err
	}
	ws, ru, ok := p.arena.Program()
	if ok {
		e.Usage.MaxRSS = ru.Maxrss << 10
		switch {
		case ws.Exited():
			e.Exit.Code = ws.ExitStatus()
		case ws.Signaled():
			e.Exit.Signal = int(ws.Signal())
		}
	} else {
		e.Exit.Signal = int(syscall.SIGKILL) // the reaper was killed with all the rest
	}
	switch {
	case p.hit != "":
		res.Outcome, e.Exit.LimitHit = isolate.Killed, p.hit
	case deadline:
		res.Outcome, e.Exit.LimitHit = isolate.TimedOut, "wall"
	case cause != nil:
		res.Outcome, e.Exit.LimitHit = isolate.Killed, "canceled"
	case !ok:
		res.Outcome = isolate.Killed
	case ws.Signaled() && ws.Signal() == syscall.SIGXCPU:
		res.Outcome, e.Exit.LimitHit = isolate.Killed, "cpu"
	case ws.Signaled() && ws.Signal() == syscall.SIGXFSZ:
		res.Outcome, e.Exit.LimitHit = isolate.Killed, "file_size"
	default:
		res.Outcome = isolate.Exited
	}
	if err := p.covers.check(); err != nil {
		res.Outcome = isolate.Failed
		return res, err
	}
	return res, nil
}

// startFault says why a program could not be started.
func startFault(s *isolate.Spec, err error) error {
	op := fmt.Sprintf("start %q", s.Exec.Path)
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	se, ok := errors.AsType[*sys.StepError](err)
	if !ok {
		return fault.New(fault.Internal, "cell_start", op, err)
	}
	if se.Step == "execveat" {
		switch {
		case errors.Is(se.Errno, syscall.ENOEXEC):
			return fault.New(fault.NotExec, "exec_format", op, se)
		case errors.Is(se.Errno, syscall.E2BIG):
			return fault.New(fault.Usage, "arguments_too_long", op, se)
		}
		return fault.New(fault.NotExec, "exec", op, se)
	}
	if se.Step == "unshare" && (errors.Is(se.Errno, syscall.ENOSPC) || errors.Is(se.Errno, syscall.EPERM)) {
		return usernsFault(op, fmt.Errorf("%s: %w", se.Step, se.Errno)) // whichever step it is
	}
	return fault.New(fault.Refused, "cell_step_"+se.Step, op, fmt.Errorf("step %d: %s: %w", se.Number, se.Line, se.Errno))
}

// processesOf counts the processes of a host user.
func processesOf(uid uint32) (int64, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	var n int64
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		tasks, err := os.ReadDir("/proc/" + e.Name() + "/task")
		if err != nil {
			continue
		}
		if fi, err := e.Info(); err == nil && fi.Sys().(*syscall.Stat_t).Uid == uid {
			n += int64(len(tasks))
		}
	}
	return n, nil
}

package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/spawn"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/steps"
	"palyra/isolate/internal/sys"
	"palyra/isolate/internal/tree"
	"palyra/isolate/knob"
	"palyra/isolate/native"
	"palyra/isolate/tier"
)

// process is a launched run: the reaper (pid, pidfd) and, once cloned, the program.
type process struct {
	*run
	call    *run // run, or the call that a waiting cell got; its deadline and caller count
	arena   *sys.Arena
	pid     int // the reaper, as palyra-cell sees it
	pidfd   int
	program int // the program, as palyra-cell sees it; 0 before the gate
	start   time.Time

	reaped bool      // by finish; otherwise by free
	hit    string    // the limit that we killed it for; "" for none
	info   int64     // the longest text of fdinfo in a sample
	unread time.Time // since when each sample found hidden descriptors; zero for never
	mu     sync.Mutex
	over   bool // guarded by mu: another process may soon have pid and pidfd
}

func (p *process) free() {
	if !p.reaped {
		sys.Reap(p.pid)
	}
	sys.Close(p.pidfd)
	p.arena.Free()
}

// supervise takes the child through its rendezvous and waits for the end of the tree. It never
// returns while a process of the run is alive.
func (p *process) supervise() (*isolate.Result, error) {
	p.call.attach(p)
	err := p.toGate()
	if err == nil {
		err = p.handOver()
	}
	if err != nil {
		p.kill()
	}
	return p.finish(err)
}

// finish waits for the end of the tree. early, if not nil, is why the program won't start; the
// tree is then being killed.
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
		rerr = fault.New(fault.Internal, "cell_died", "reap cell", rerr)
		if early == nil {
			// The program was let go, and we did not see its end.
			return &isolate.Result{Outcome: isolate.Unknown}, rerr
		}
		p.ev.Exit.Code = -1
		return &isolate.Result{Outcome: isolate.Failed, Evidence: &p.ev}, rerr // the gate stays shut
	}
	p.ev.Exit.TreeDead, p.ev.Exit.TreeBasis = p.treeGone()
	p.ev.Usage.Basis = evidence.Reported // without children that no process waited for
	if p.leaf != nil {
		p.leafUsage()
		if u, s, terr := p.leaf.Times(); terr == nil {
			user, system, p.ev.Usage.Basis = u, s, evidence.Observed
		}
	}
	p.ev.Exit.Basis = evidence.Observed
	if p.session != nil {
		most := p.leaveSession()
		p.ev.Network.Sharers = &most
	}
	if p.layer != nil {
		p.ev.Mounts.LayerCalls = p.leaveLayer()
	}
	started := early == nil
	if serr := p.arena.Failed(); started && serr != nil {
		started, err = false, serr // the last steps of a warm cell
	}
	return p.conclude(cause, started, err, user, system)
}

// usage waits for the end of the reaper and returns the run's processor times. At tier C all
// other processes are dead and reaped by then (zap_pid_ns_processes), and the answer needn't
// wait for the reaper to be reaped. Removing a cgroup, and looking for orphans at tier B, must.
func (p *process) usage() (user, system time.Duration, err error) {
	if !p.reap && p.leaf == nil {
		return sys.Usage(p.pidfd)
	}
	p.reaped = true
	_, ru, err := sys.Reap(p.pid)
	return time.Duration(ru.Utime.Nano()), time.Duration(ru.Stime.Nano()), err
}

// toGate serves the child's marks until it may execute the program. It returns an error if the
// child ended before that.
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
			if err := p.awaitEgress(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unknown mark %q", mark)
		}
		if _, err := syscall.Write(p.gate, []byte{1}); err != nil {
			return fmt.Errorf("open gate: %w", err)
		}
		if mark == steps.MarkGate {
			p.describe()
			return nil // its end shows whether it could be executed
		}
	}
}

// describe adds the evidence that doesn't depend on the process, while the program starts.
func (p *process) describe() {
	p.ev.Tape = evidence.Tape{Basis: evidence.Reported, Digest: p.tape.Digest(), Steps: p.tape.Steps()}
	p.ev.Executable = executable(p.spec)
}

// kill ends the tree unless it has ended. Any goroutine may call it.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.killTree()
	}
}

// await waits until the program has ended, the deadline has passed or the caller has given up,
// and the tree is dead or about to be.
func (p *process) await() error {
	watch := p.pidfd
	if p.reap {
		// The reaper stays for the program's leftovers, which we must kill.
		fd, err := sys.PidfdOpen(p.program)
		if err != nil {
			return nil // it has ended and was reaped already, but its leftovers haven't
		}
		defer sys.Close(fd)
		watch = fd
	}
	defer p.keepTime(watch)()
	var due pace
	last := time.Now()
	for {
		every := due.wait()
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
			if p.covers.told() != nil { // check reports it again
				p.kill()
			}
		case left >= 0 && p.call.left(every) == 0:
			p.call.late = true
			p.kill()
		case left >= 0:
			runtime.LockOSThread()
			began := sys.ThreadTime()
			left := p.sample()
			took := sys.ThreadTime() - began // what it waited for a processor costs the program nothing
			runtime.UnlockOSThread()
			end := time.Now()
			due.took(took, end.Sub(last), left...)
			last = end
		}
	}
}

// keepTime kills the run at its deadline unless the process behind watch has ended, although await
// is in a sample, which a program or a file system can make last. Call the function that it returns
// at the end of await.
func (p *process) keepTime(watch int) func() {
	late := make(chan bool, 1)
	timer := time.AfterFunc(time.Until(p.call.deadline), func() {
		ended, err := sys.WaitPidfd(watch, 0)
		late <- !ended && err == nil
		if !ended {
			p.kill()
		}
	})
	return func() {
		if !timer.Stop() && <-late {
			p.call.late = true
		}
	}
}

// sample kills a run that exceeds a limit that only sampling enforces: memory that no cgroup is
// charged for, the private directory without a quota. It returns the unused part of each limit,
// from 0 to 1.
func (p *process) sample() (left []float64) {
	t := p.tally()
	if p.leaf == nil {
		p.ev.Usage.PeakMemory = max(p.ev.Usage.PeakMemory, t.sum)
	}
	left = append(left, 1-min(float64(t.sum)/float64(t.limit), 1))
	p.stopBy(t.hit())
	if len(p.rooms) > 0 && p.hit == "" {
		hit, rooms := p.diskHit(t)
		p.stopBy(hit)
		left = append(left, rooms...)
	}
	return left
}

// hitUncounted is the limit of a call whose program keeps from us what counts toward one. It
// could hold any amount, so the call ends; that it held too much would be more than we saw.
const hitUncounted = "uncounted"

// stopBy kills a run that exceeds a limit; "" is none.
func (p *process) stopBy(limit string) {
	if limit != "" && p.hit == "" {
		p.hit = limit
		p.kill()
	}
}

// diskHit returns "disk" if a private workspace without a quota, the layer or a cache holds too
// much: in its folders, or in files that only the processes in t have open, and for the layer those
// of its other calls. Which call filled the layer can't be told: the first to find it so ends, and
// as long as it's full the others. A process that hides its descriptors could have any number of
// open files. What is left of each, as overQuota has it, is returned, too.
func (p *process) diskHit(t *tally) (hit string, left []float64) {
	held := t.withheld(p.spec.Limits.FileSize)
	for _, r := range p.rooms {
		held := held
		if r.layer {
			held = p.withhold(held)
		}
		if hit == "" {
			var room [2]float64
			hit, room = overQuota(int(r.dir.Fd()), r.bytes-held.bytes, r.inodes-held.inodes)
			left = append(left, room[:]...)
		}
	}
	if hit == "" && (t.concealed || p.hides(t.unread, time.Now())) {
		hit = hitUncounted
	}
	return hit, left
}

// unreadFor is how long messages and system calls may wait that hold files which can't be looked
// at. Those may be any number, removed from all folders. Programs that pass descriptors read them
// soon.
const unreadFor = time.Second

// hides reports whether each sample for unreadFor found such ones.
func (p *process) hides(unread bool, now time.Time) bool {
	switch {
	case !unread:
		p.unread = time.Time{}
	case p.unread.IsZero():
		p.unread = now
	}
	return unread && now.Sub(p.unread) >= unreadFor
}

// killTree kills every process of the run and returns when the reaper is about to be reaped.
// Killing the first process of a PID namespace kills all of them. Without one (tier B) killTree
// looks up and kills our descendants until none is left, in each round as many as a walk meets.
// It looks for ours and not only for the reaper's, because the program has the same user and
// may have killed or stopped the reaper. There is one run at a time.
func (p *process) killTree() {
	if !p.reap {
		sys.KillPidfd(p.pidfd)
		return
	}
	for rounds := 0; ; rounds++ {
		left := 0
		for _, pid := range tree.NewWalk(p.nproc).Descendants(os.Getpid()) {
			if pid == p.pid {
				continue
			}
			left++
			sys.Kill(pid, int(syscall.SIGKILL))
		}
		for _, pid := range tree.NewWalk(p.nproc).Children(os.Getpid()) {
			if pid != p.pid {
				sys.TryReap(pid)
			}
		}
		if left == 0 && (p.program == 0 || rounds > 1000) {
			// The reaper has nothing to report, or doesn't get to it.
			sys.KillPidfd(p.pidfd)
		}
		sys.Kill(p.pid, int(syscall.SIGCONT))
		if ended, err := sys.WaitPidfd(p.pidfd, 1); left == 0 && (ended || err != nil) {
			return
		}
	}
}

// treeGone reports whether the whole run is gone after the reaper has ended, and how we know.
// At tier C the kernel kills and reaps all others of a PID namespace before its first process
// ends (pid_namespaces(7)), and we saw only that end. At tier B an orphan would have become our
// child.
func (p *process) treeGone() (bool, evidence.Basis) {
	if p.reap {
		w := tree.NewWalk(p.nproc)
		return len(w.Descendants(os.Getpid())) == 0 && !w.Cut, evidence.Observed
	}
	return true, evidence.Reported
}

func (p *process) leafUsage() {
	if peak, err := p.leaf.Peak(); err == nil {
		p.ev.Usage.PeakMemory = peak
	}
	if ev, err := p.leaf.Events(); err == nil && ev.OOMKill > 0 && p.hit == "" {
		p.hit = "memory"
	}
}

// observe reads the evidence of the program's process at the gate: after the last step of
// confinement, before the program's first instruction.
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
	if isolate.Connects(p.spec.Network) {
		if err := p.s.reader.ReadNetwork(&p.ev, p.program); err != nil {
			return err
		}
		if isolate.AllowsHostNetwork(p.spec.Network) { // however many interfaces the host has
			p.ev.Network.Interfaces, p.ev.Network.Addresses = nil, nil
		}
	}
	dir, err := p.s.reader.Process(p.program)
	if err != nil {
		return err
	}
	defer sys.Close(dir)
	if err := p.unreadable(dir); err != nil {
		return err
	}
	if err := p.checkCwd(dir); err != nil {
		return shut("cwd", err)
	}
	if err := p.checkTerminal(dir); err != nil {
		return shut("terminal", err)
	}
	if p.s.tier == tier.C {
		if err := p.checkOwner(pidfd, dir); err != nil {
			return shut("identity", err)
		}
	}
	// While a process holds the namespace, the end of the cell doesn't wait until its mounts
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
	if err := p.asOrdered(); err != nil {
		return err
	}
	p.s.outsideIDs(&p.ev.Process)
	return nil
}

func executable(s *isolate.Spec) evidence.Executable {
	return evidence.Executable{Basis: evidence.Reported, Path: s.Exec.Path, Digest: s.Exec.Digest, Pinned: s.Exec.Pinned}
}

// readBackFilter compares the filter in force with the intended one, if we may ask the kernel
// for it: as the host's root. Elsewhere it stays reported.
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

// check refuses to open the gate for a process that isn't fully confined. bounded says that the
// bounding set had to be emptied too: all but tier B of a plain user.
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
	case pr.Session != 1:
		return shut("session", errors.New("it has no session of its own"))
	}
	return nil
}

func (p *process) conclude(cause error, started bool, runErr error, user, system time.Duration) (*isolate.Result, error) {
	e := &p.ev
	e.Exit.Code = -1
	e.Usage.WallNS = time.Since(p.start).Nanoseconds()
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
	case ws.Signaled() && p.outOfTime(ws.Signal(), time.Duration(ru.Utime.Nano()+ru.Stime.Nano())):
		res.Outcome, e.Exit.LimitHit = isolate.Killed, "cpu"
	default:
		res.Outcome = isolate.Exited
	}
	if err := p.covers.check(); err != nil {
		res.Outcome = isolate.Failed
		return res, err
	}
	return res, nil
}

// outOfTime reports whether a signal came from the limit of processor time: SIGXCPU, and a
// second later SIGKILL. A program may send itself either, so it must also have used three
// quarters of that time, with the children that it waited for. It's not the whole because the
// kernel counts whole ticks for the limit; on a busy host it counted 9 % too many. No such test
// tells whether a SIGXFSZ was the kernel's.
func (p *process) outOfTime(s syscall.Signal, used time.Duration) bool {
	limit := time.Duration(steps.CPUSeconds(p.spec.Limits.CPU)) * time.Second
	switch s {
	case syscall.SIGXCPU:
	case syscall.SIGKILL:
		limit += time.Second
	default:
		return false
	}
	return used >= limit*3/4
}

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
			return fault.New(fault.NotExec, "program_not_executable", op, se)
		case errors.Is(se.Errno, syscall.E2BIG):
			return fault.New(fault.Usage, "too_large", op, se)
		}
		return fault.New(fault.NotExec, "program_not_executable", op, se)
	}
	if se.Step == "unshare" && (errors.Is(se.Errno, syscall.ENOSPC) || errors.Is(se.Errno, syscall.EPERM)) {
		return spawn.UsernsFault(op, fmt.Errorf("%s: %w", se.Step, se.Errno)) // whichever step it is
	}
	return fault.New(fault.Refused, "cell_start", op, fmt.Errorf("step %d: %s: %w", se.Number, se.Line, se.Errno))
}

// processesOf counts the threads of a host user, as RLIMIT_NPROC does.
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

// onlyChild returns the one child of a single-threaded process.
func (s *server) onlyChild(pid int) (int, error) {
	dir, err := s.reader.Process(pid)
	if err != nil {
		return 0, err
	}
	defer sys.Close(dir)
	buf := make([]byte, 64) // replaced if it is too small
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

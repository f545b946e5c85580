package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result is a line that a probe printed.
type result struct {
	Case    string `json:"case"`
	Outcome string `json:"outcome"`
	Errno   int    `json:"errno"`
	Detail  string `json:"detail"`
}

// outcome is what one run left: its output, its end, its survivors.
type outcome struct {
	lines     []result
	stdout    capped
	stderr    capped
	exit      int
	signaled  string // signal that ended the launcher itself
	hung      bool
	survivors []int         // processes of the probe that were left, killed by now
	most      int           // processes of the probe at once, where watched
	memory    int64         // bytes resident of all of them at once, where watched
	spent     time.Duration // processor time of the one that had most, where it matters
	took      time.Duration
	args      []string
}

// contains reports whether text came out anywhere.
func (o *outcome) contains(text string) bool {
	if bytes.Contains(o.stdout.kept, []byte(text)) || bytes.Contains(o.stderr.kept, []byte(text)) {
		return true
	}
	return slices.ContainsFunc(o.lines, func(r result) bool { return strings.Contains(r.Detail, text) })
}

// main returns the probe's last word: not that it started, nor a helper's.
func (o *outcome) main() (result, bool) {
	for i := len(o.lines) - 1; i >= 0; i-- {
		switch o.lines[i].Outcome {
		case "STARTED", "READY", "TYPED", "PALYRA":
		default:
			if o.lines[i].Case != "on-tty" && o.lines[i].Case != "without" && o.lines[i].Case != sitting && o.lines[i].Case != neighbour {
				return o.lines[i], true
			}
		}
	}
	return result{}, false
}

// capped keeps the beginning of a stream and counts the rest.
type capped struct {
	mu    sync.Mutex
	kept  []byte // guarded by mu while the run lasts
	total int64  // likewise
}

const keepBytes = 1 << 20

func (c *capped) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += int64(len(b))
	c.kept = append(c.kept, b[:min(len(b), keepBytes-len(c.kept))]...)
	return len(b), nil
}

// Exit statuses that palyra exec gives of itself.
const (
	exitTimedOut = 124
	exitRefused  = 125
	exitDenied   = 126
)

// perform runs an attempt on its stage, outside or inside, and looks.
func (s *stage) perform(sc scene) *observation {
	start := time.Now()
	o, err := s.start(sc)
	if err != nil {
		return &observation{broken: err}
	}
	obs := o.observe(sc)
	obs.took = time.Since(start)
	if sc.canary != nil {
		obs.canary = true
		obs.tripped, obs.seen = sc.canary(o)
	}
	if s.b.verbose {
		where := "outside"
		if s.inside {
			where = "inside " + s.tier
		}
		fmt.Printf("  %s as %s, %v: %s\n    %s\n", where, s.user.name, o.took.Round(time.Millisecond), obs, strings.Join(o.args, " "))
		if len(o.stderr.kept) > 0 {
			fmt.Printf("    stderr: %s\n", clip(string(o.stderr.kept)))
		}
	}
	return obs
}

func (o *outcome) observe(sc scene) *observation {
	obs := &observation{hung: o.hung, exit: o.exit}
	obs.started = slices.ContainsFunc(o.lines, func(r result) bool { return r.Outcome == "STARTED" && r.Case == sc.probe })
	last, ok := o.main()
	switch {
	case sc.lasting:
		// Its own word that it waits is not an outcome; how it ended is.
		obs.outcome, obs.detail = o.ending(), last.Detail
		if o.hung {
			obs.outcome = "OPEN"
		}
	case ok:
		obs.outcome, obs.detail = last.Outcome, last.Detail
	default:
		obs.outcome = o.ending()
	}
	// Palyra ended it for a limit: the program has no status of its own.
	if obs.started && !ok && o.exit == exitRefused && bytes.Contains(o.stderr.kept, []byte("palyra: killed")) {
		obs.outcome = "LIMIT"
	}
	switch {
	// Palyra ended it for a placeholder that it brought where none belongs: it ran, whether or not
	// its word that it has started came out.
	case o.exit == exitRefused && bytes.Contains(o.stderr.kept, []byte("the placeholder of TOKEN was seen in ")):
		obs.started, obs.outcome = true, tripped
	// Refusing is more than not running: there has to be a reason.
	case !obs.started && !o.hung && (o.exit == exitRefused || o.exit == exitDenied) && len(o.stderr.kept) > 0:
		obs.outcome = refused
		if !strings.Contains(strings.ToLower(string(o.stderr.kept)), sc.because) {
			obs.outcome = "REFUSED_OTHERWISE"
		}
	}
	if obs.outcome != "OPEN" && !ok {
		obs.detail = strings.TrimSpace(obs.detail + " " + clip(string(o.stderr.kept)))
	}
	return obs
}

// tripped is the outcome of a run that a tripwire ended.
const tripped = "TRIPPED"

// sigsysText is the last word of a Go program whose system call the filter killed.
var sigsysText = []byte("SIGSYS: bad system call")

// ending names how the run ended, for a probe that had no last word.
func (o *outcome) ending() string {
	switch {
	case o.signaled != "":
		return o.signaled
	case o.exit == exitTimedOut:
		return "TIMEOUT"
	case bytes.Contains(o.stderr.kept, sigsysText), bytes.Contains(o.stdout.kept, sigsysText): // on a terminal both are one
		return "SIGSYS"
	case o.exit > 128 && o.exit < 128+65:
		return signalName(syscall.Signal(o.exit - 128))
	}
	return "NONE"
}

func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGSYS:
		return "SIGSYS"
	case syscall.SIGKILL:
		return "SIGKILL"
	case syscall.SIGXCPU:
		return "SIGXCPU"
	case syscall.SIGXFSZ:
		return "SIGXFSZ"
	case syscall.SIGPIPE:
		return "SIGPIPE"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGSEGV:
		return "SIGSEGV"
	}
	return "SIG" + strconv.Itoa(int(s))
}

// waitDelay is how long a run's output may take to arrive after its end. It takes that long
// only if another process keeps the run's descriptors.
const waitDelay = 2 * time.Second

// busy is how much longer a busy machine may take than a sandbox that keeps its
// deadline: what is over by then has not hung.
const busy = 15 * time.Second

// start runs the command to its end, or to the deadline.
func (s *stage) start(sc scene) (*outcome, error) {
	o := sc.opt
	if o.timeout == 0 {
		o.timeout = 10 * time.Second
	}
	if o.deadline == 0 {
		o.deadline = o.timeout + 5*time.Second
	}
	if s.inside {
		o.deadline += busy
	}
	attack := s.b.attack
	if o.attack != "" {
		attack = o.attack
	}
	argv := append([]string{attack, sc.probe}, sc.args...)
	argv = append(argv, "tag="+s.nonce)
	if s.inside && s.mode == modeTTY {
		argv = append(argv, "terminal=1")
	}
	out := new(outcome)
	cwd := o.dir
	if s.inside || sc.confined {
		var err error
		if argv, err = s.b.sandbox.command(s, &o, argv); err != nil {
			return nil, err
		}
	} else {
		if cwd == "" && o.workspace != "" {
			cwd = o.workspace
		}
		o.hostEnv = append(slices.Clip(o.hostEnv), o.env...)
	}
	argv = append(slices.Clip(o.wrap), argv...)
	if cwd == "" {
		var err error
		if cwd, err = s.folder("cwd", 0o755); err != nil {
			return nil, err
		}
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Credential: s.user.credential()}
	if o.reaches() {
		w, err := s.b.inWorld()
		if err != nil {
			return nil, err
		}
		argv, attr.Credential = w.Enter(cwd, s.user.uid, s.user.gid, argv), nil
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = cwd
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + s.user.home}, o.hostEnv...)
	cmd.Stdout, cmd.Stderr = &out.stdout, &out.stderr
	cmd.WaitDelay = waitDelay
	cmd.SysProcAttr = attr
	if o.userns {
		asRootOfUserns(cmd.SysProcAttr, s.user)
	}
	closeFiles, err := inherit(cmd, o.fds)
	defer closeFiles()
	if err != nil {
		return nil, err
	}
	out.args = argv
	return out, s.wait(cmd, out, o)
}

// asRootOfUserns has the child start in a user namespace in which it is root,
// mapped to the user.
func asRootOfUserns(a *syscall.SysProcAttr, u *user) {
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: u.uid, Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: u.gid, Size: 1}}
	a.GidMappingsEnableSetgroups = false
	a.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}
}

// inherit opens paths so that the child has them at the given descriptors.
func inherit(cmd *exec.Cmd, fds map[int]string) (func(), error) {
	var opened []*os.File
	done := func() {
		for _, f := range opened {
			f.Close()
		}
	}
	for fd, path := range fds {
		f, err := os.Open(path)
		if err != nil {
			return done, err
		}
		opened = append(opened, f)
		for len(cmd.ExtraFiles) <= fd-3 {
			cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
		}
		cmd.ExtraFiles[fd-3] = f
	}
	return done, nil
}

func (s *stage) wait(cmd *exec.Cmd, out *outcome, o options) error {
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(o.deadline)
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-done:
			waiting = false
		case <-tick.C:
			if o.watch {
				out.sample(s.processes())
			}
			if o.spend > 0 && out.spent < o.spend {
				if out.spend(s.processes()); out.spent >= o.spend {
					s.end(cmd)
				}
			}
		case <-deadline:
			out.hung = true
			s.end(cmd)
			err, waiting = <-done, false
		}
	}
	out.took = time.Since(begin)
	if cmd.ProcessState == nil {
		return fmt.Errorf("wait: %w", err)
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		out.signaled, out.exit = signalName(ws.Signal()), 128+int(ws.Signal())
	} else {
		out.exit = ws.ExitStatus()
	}
	out.survivors = s.survivors()
	out.parse()
	return nil
}

// end kills the run: its process group and whatever of it moved away. Only
// processes that carry this stage's nonce are touched.
func (s *stage) end(cmd *exec.Cmd) {
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Process.Kill()
	for _, p := range s.processes() {
		syscall.Kill(p, syscall.SIGKILL)
	}
}

// survivors returns the processes that outlived the run, and kills them. One
// that is just dying is given a moment.
func (s *stage) survivors() []int {
	pids := s.processes()
	for range 20 {
		if len(pids) == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
		pids = s.processes()
	}
	for _, p := range pids {
		syscall.Kill(p, syscall.SIGKILL)
	}
	return pids
}

// processes returns the live processes of this stage's probe, as the host sees
// them: their command line begins with the attack program and holds the nonce.
// The launcher's holds the nonce too, but begins otherwise.
func (s *stage) processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil || !bytes.Contains(line, []byte("tag="+s.nonce)) {
			continue
		}
		first, _, _ := bytes.Cut(line, []byte{0})
		if name := filepath.Base(string(first)); name == "attack" || name == "copy" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sample notes how many processes there are and what they hold.
func (o *outcome) sample(pids []int) {
	var sum int64
	for _, p := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/statm")
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b)); len(f) > 1 {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			sum += n * int64(os.Getpagesize())
		}
	}
	o.most, o.memory = max(o.most, len(pids)), max(o.memory, sum)
}

// spend notes the processor time of the process that had most.
func (o *outcome) spend(pids []int) {
	for _, p := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/stat")
		if err != nil {
			continue
		}
		// proc_pid_stat(5): behind the name, utime and stime are the 12th and 13th,
		// in ticks of 10 ms.
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 12 {
			u, _ := strconv.ParseInt(f[11], 10, 64)
			k, _ := strconv.ParseInt(f[12], 10, 64)
			o.spent = max(o.spent, time.Duration(u+k)*10*time.Millisecond)
		}
	}
}

// parse finds the probe's lines in what came out. Of a terminal they end with "\r\n"; it changes
// nothing else of them, since JSON escapes what else it would act on.
func (o *outcome) parse() {
	for line := range bytes.Lines(o.stdout.kept) {
		if !bytes.HasPrefix(line, []byte(`{"case":`)) {
			continue
		}
		var r result
		if json.Unmarshal(bytes.TrimSpace(line), &r) == nil {
			o.lines = append(o.lines, r)
		}
	}
}

// exec runs a command in the sandbox on this stage: what is done with the
// workspace after the attempt.
func (s *stage) exec(o options, argv ...string) (*outcome, error) {
	if o.timeout == 0 {
		o.timeout = 10 * time.Second
	}
	o.deadline = o.timeout + 5*time.Second + busy
	line, err := s.b.sandbox.command(s, &o, argv)
	if err != nil {
		return nil, err
	}
	out := &outcome{args: line}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + s.user.home}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out.stdout, &out.stderr, waitDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.user.credential()}
	if err := s.wait(cmd, out, o); err != nil {
		return nil, errors.Join(err, fmt.Errorf("run %q", line))
	}
	return out, nil
}

// cut splits NAME=VALUE.
func cut(e string) (name, value string) {
	name, value, _ = strings.Cut(e, "=")
	return name, value
}

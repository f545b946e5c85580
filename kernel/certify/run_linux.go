package certify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/certify"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/pin"
)

const (
	openFiles = 128                    // the limit of attempts
	wall      = 300 * time.Millisecond // of the attempt to outlive it; the others have patience
	patience  = 20 * time.Second       // for an attempt that must end
	late      = 8 * time.Second        // after wall: it was not killed
	drain     = 5 * time.Second
	maxBinary = 256 << 20
)

// kind is how to make one of Kinds.
type kind struct {
	name    string
	tier    tier.Tier
	network string
	pool    cell.Pool
}

func kinds() []kind {
	return []kind{
		{KindB, tier.B, isolate.NetworkFresh, cell.Pool{}},
		{KindCold, tier.C, isolate.NetworkFresh, cell.Pool{}},
		{KindWarm, tier.C, isolate.NetworkFresh, cell.Pool{Cells: 1, MaxAge: 10 * time.Minute}},
		{KindVoid, tier.C, isolate.NetworkVoid, cell.Pool{}},
		{KindLoop, tier.C, isolate.NetworkLoopback, cell.Pool{}},
	}
}

// test is one Run. It is owned by one goroutine.
type test struct {
	o        *Options
	stage    *stage
	set      *policy.Set
	null     *os.File
	file     isolate.File // palyra-cell, as the program of attempts
	sealed   *os.File
	report   *Report
	controls map[string]certify.Result // by claim and tier
}

// Run tests every claim in every kind of cell. An error is one of the test itself; the
// report has the things that the host can't do.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	start := time.Now()
	t := &test{o: &o, report: newReport(), controls: make(map[string]certify.Result)}
	t.report.UID, t.report.Kernel, t.report.BootID = os.Getuid(), line("osrelease"), line("random/boot_id")
	t.report.Process = process()
	if t.stage, err = newStage(); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "prepare the test of the sandbox", err)
	}
	defer t.stage.close()
	if t.set, err = policy.Load(t.stage.dir + "/policy"); err != nil {
		return nil, err
	}
	if t.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "prepare the test of the sandbox", err)
	}
	defer t.null.Close()
	if err := t.open(); err != nil {
		return nil, err
	}
	defer t.sealed.Close()
	for _, k := range kinds() {
		if !wanted(o.Kinds, k.name) {
			continue
		}
		o.Progress("testing " + k.name)
		if err := t.kind(ctx, k); err != nil {
			return nil, err
		}
	}
	t.report.TookNS = time.Since(start).Nanoseconds()
	return t.report, nil
}

// line reads a setting of the kernel, "" if there is none.
func line(name string) string {
	b, err := os.ReadFile("/proc/sys/kernel/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// process lists the powers of this process that palyra-cells inherit from it. It leaves out
// those that the kernel doesn't tell.
func process() map[string]string {
	p := make(map[string]string)
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if as := map[string]string{"CapEff": "cap_eff", "CapBnd": "cap_bnd", "NoNewPrivs": "no_new_privs", "Seccomp": "seccomp"}[name]; as != "" {
			p[as] = strings.TrimSpace(value)
		}
	}
	if b, err := os.ReadFile("/proc/self/attr/apparmor/current"); err == nil {
		p["apparmor"] = strings.TrimRight(string(b), "\n\x00")
	}
	return p
}

// open seals palyra-cell, so that the attempting program is the hashed one.
func (t *test) open() error {
	f, err := os.Open(t.o.Cell)
	if err != nil {
		return fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("open %q", t.o.Cell), err).WithHint("install palyra-cell beside palyra")
	}
	defer f.Close()
	s, err := pin.Seal(context.Background(), "palyra-cell", f, maxBinary, 0o555)
	if err != nil {
		return fault.New(fault.Unavailable, "io_error", fmt.Sprintf("seal %q", t.o.Cell), err)
	}
	t.sealed = s.File
	t.file = isolate.File{Path: t.o.Cell, Digest: s.Digest, Size: s.Size, Pinned: capsule.PinnedSealed}
	t.report.Cell = s.Digest
	if t.o.Program == "" {
		return nil
	}
	p, err := os.Open(t.o.Program)
	if err != nil {
		return fault.New(fault.Unavailable, "io_error", fmt.Sprintf("open %q", t.o.Program), err)
	}
	defer p.Close()
	t.report.Program, _, err = pin.Digest(context.Background(), p, maxBinary)
	return err
}

// runner is a palyra-cell of one kind.
type runner struct {
	*cell.Client
	kind
	auth *authz.Authority
}

// kind tests every claim in one kind of cell.
func (t *test) kind(ctx context.Context, k kind) error {
	out := Kind{Kind: k.name, Tier: k.tier.String(), Degraded: []string{}, Results: []Result{}}
	key := grant.NewKey()
	client, err := cell.Start(ctx, cell.Config{Path: t.o.Cell, Tier: k.tier, Key: key, Pool: k.pool})
	if err != nil {
		if ctx.Err() != nil || fault.KindOf(err) != fault.Refused {
			return err
		}
		out.Refused = err.Error()
		t.report.Kinds = append(t.report.Kinds, out)
		return nil
	}
	defer client.Close()
	r := &runner{Client: client, kind: k, auth: authz.New(t.set, key)}
	for _, c := range certify.Claims() {
		if !strings.Contains(c.Tiers, out.Tier) || !wanted(t.o.Claims, c.Name) {
			continue
		}
		if sc := t.stage.scene(c.Name, out.Tier); sc.given != 0 && k.network == isolate.NetworkLoopback {
			continue // such a cell is given no socket to attempt it with
		}
		res, err := t.claim(ctx, r, &c, &out)
		if err != nil {
			return err
		}
		if out.Unmade != "" {
			break
		}
		out.Results = append(out.Results, res)
		if out.Refused != "" {
			break
		}
	}
	t.report.Kinds = append(t.report.Kinds, out)
	return nil
}

// claim tests one claim and notes its view of the cell.
func (t *test) claim(ctx context.Context, r *runner, c *certify.Claim, out *Kind) (Result, error) {
	control := t.control(ctx, c, out.Tier)
	sc := t.stage.scene(c.Name, out.Tier)
	inside, ev, err := t.inside(ctx, r, &sc)
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, fault.New(fault.Canceled, "canceled", "test "+c.Name, context.Cause(ctx))
		}
		if errors.Is(err, errNoneWait) {
			out.Unmade = err.Error()
			return Result{}, nil
		}
		if fault.KindOf(err) == fault.Refused {
			// The host can't give the tier, as its first call shows.
			out.Refused = err.Error()
		}
		return Result{Claim: c.Name, Reason: "inside: " + err.Error()}, nil
	}
	out.note(ev)
	return verdict(c, control, inside, out.Landlock), nil
}

// note keeps the evidence about the kind.
func (k *Kind) note(ev *evidence.Evidence) {
	if k.Tape == "" {
		k.Cgroup = ev.Cgroup.State
		k.Tape, k.Seccomp, k.Landlock = ev.Tape.Digest.String(), ev.Seccomp.Policy.String(), ev.Landlock.ABI
	}
	for _, d := range ev.Degraded {
		if !slices.Contains(k.Degraded, d) {
			k.Degraded = append(k.Degraded, d)
		}
	}
	slices.Sort(k.Degraded)
}

// verdict compares the control with the attempt inside.
func verdict(c *certify.Claim, control, inside certify.Result, abi int) Result {
	res := Result{Claim: c.Name, Outcome: inside.Outcome, Reason: inside.Detail}
	switch {
	case abi < c.ABI:
		res.Verdict, res.Reason = Absent, fmt.Sprintf("this kernel has Landlock ABI %d, and the mechanism came with %d", abi, c.ABI)
	case inside.Outcome == certify.Open:
		res.Verdict = Refuted
	case control.Outcome == certify.Set && inside.Outcome == certify.Set && slices.Contains(c.Stopped, certify.Set):
		res.Verdict, res.Reason = Inherited, "outside it is set, too"
	case control.Outcome != certify.Open:
		res.Reason = fmt.Sprintf("outside it is stopped, too: %s: %s", control.Outcome, control.Detail)
	case !slices.Contains(c.Stopped, inside.Outcome):
		res.Reason = fmt.Sprintf("stopped by %s, which proves nothing: %s", inside.Outcome, inside.Detail)
	default:
		res.Verdict = Proven
	}
	return res
}

// control makes the attempt outside, once for each tier that has another one.
func (t *test) control(ctx context.Context, c *certify.Claim, at string) certify.Result {
	key := c.Name + at
	if res, ok := t.controls[key]; ok {
		return res
	}
	sc := t.stage.scene(c.Name, at)
	res := t.outside(ctx, &sc, nil)
	if sc.mighty && res.Outcome != certify.Open {
		if again := t.outside(ctx, &sc, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}); again.Outcome == certify.Open {
			res = again
		}
	}
	t.controls[key] = res
	t.report.Controls = append(t.report.Controls, Control{Claim: c.Name, Tier: at, Outcome: res.Outcome, Detail: res.Detail})
	return res
}

// given returns the socket that a scene gives as standard input, nil if none.
func (sc *scene) stdin() (*os.File, error) {
	if sc.given == 0 {
		return nil, nil
	}
	kind := syscall.SOCK_DGRAM
	if sc.given == syscall.AF_INET {
		kind = syscall.SOCK_STREAM
	}
	fd, err := syscall.Socket(sc.given, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(fd), "given"), nil
}

func untold(err error) certify.Result {
	return certify.Result{Outcome: certify.Untold, Detail: err.Error()}
}

// outside makes an attempt as this user.
func (t *test) outside(ctx context.Context, sc *scene, attr *syscall.SysProcAttr) certify.Result {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	attr.Setsid = true
	stdin, err := sc.stdin()
	if err != nil {
		return untold(err)
	}
	cmd := exec.CommandContext(ctx, t.o.Cell, certify.Word, sc.attempt, sc.a, sc.b)
	cmd.Dir, cmd.Env, cmd.SysProcAttr, cmd.WaitDelay = t.stage.dir, environment(), attr, patience
	if stdin != nil {
		defer stdin.Close()
		cmd.Stdin = stdin
	}
	if sc.lasts {
		return stays(cmd)
	}
	b, err := cmd.Output()
	if err != nil {
		return untold(err)
	}
	return t.word(sc, b, 5*time.Second)
}

// stays starts a program and looks whether it is still there after wall.
func stays(cmd *exec.Cmd) certify.Result {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return untold(err)
	}
	var first certify.Result
	err = json.NewDecoder(out).Decode(&first)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err == nil {
		select {
		case err = <-done:
			done <- err
			first = untold(fmt.Errorf("it ended by itself: %v", err))
		case <-time.After(wall):
		}
	} else {
		first = untold(err)
	}
	cmd.Process.Kill()
	<-done
	return first
}

// word returns an attempt's own words, or the host's view.
func (t *test) word(sc *scene, out []byte, within time.Duration) certify.Result {
	var res certify.Result
	if err := json.Unmarshal(bytes.TrimSpace(out), &res); err != nil || res.Outcome == "" {
		return certify.Result{Outcome: certify.Untold, Detail: "the attempt gave no answer"}
	}
	if sc.socket < 0 {
		return res
	}
	if res.Outcome != certify.Open {
		within = 0 // it says itself that nothing was sent
	}
	switch arrived := heard(sc.socket, sc.b, within); {
	case arrived:
		return certify.Result{Outcome: certify.Open, Detail: "the host's socket heard it"}
	case res.Outcome == certify.Open:
		return certify.Result{Outcome: certify.Other, Detail: "sent, and not heard by the host"}
	}
	return res
}

// environment returns the environment of attempts, outside as inside.
func environment() []string { return []string{"HOME=/tmp", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"} }

func limits() isolate.Limits {
	l := kernel.DefaultLimits()
	l.Wall, l.OpenFiles = patience, openFiles
	return l
}

// inside makes an attempt in a cell.
func (t *test) inside(ctx context.Context, r *runner, sc *scene) (certify.Result, *evidence.Evidence, error) {
	stdin, err := sc.stdin()
	if err != nil {
		return certify.Result{}, nil, err
	}
	spec := &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(r.name + sc.attempt)), Tier: r.tier, Env: environment(), Cwd: "/workspace",
		Argv: []string{"palyra-cell", certify.Word, sc.attempt, sc.a, sc.b}, Limits: limits(), Stdin: capsule.StdinNone, Network: r.network, Exec: t.file}
	if stdin != nil {
		defer stdin.Close()
		spec.Stdin = capsule.StdinStream
	}
	if sc.lasts {
		spec.Limits.Wall = wall
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, late)
		defer cancel()
	}
	res, out, err := t.call(ctx, r, spec, stdin)
	switch {
	case err != nil:
		return certify.Result{}, nil, err
	case res == nil || res.Evidence == nil:
		return certify.Result{}, nil, errors.New("there is no evidence of it")
	case sc.lasts && res.Outcome == isolate.TimedOut:
		return certify.Result{Outcome: certify.Ended, Detail: "killed at its deadline"}, res.Evidence, nil
	case sc.lasts && res.Outcome == isolate.Killed:
		return certify.Result{Outcome: certify.Open, Detail: fmt.Sprintf("still there %v after its deadline", late)}, res.Evidence, nil
	case res.Outcome != isolate.Exited || res.Evidence.Exit.Code != 0:
		return certify.Result{Outcome: certify.Untold, Detail: fmt.Sprintf("the attempt ended as %s, status %d, signal %d",
			res.Outcome, res.Evidence.Exit.Code, res.Evidence.Exit.Signal)}, res.Evidence, nil
	}
	return t.word(sc, out, 50*time.Millisecond), res.Evidence, nil
}

// errNoneWait is why no attempt is made in a waiting cell: there are none.
var errNoneWait = errors.New("palyra-cell makes none ahead")

// tries is how often a call is made again that found no waiting cell.
const tries = 20

// call runs a Spec in a cell of the runner's kind, and returns what it printed.
func (t *test) call(ctx context.Context, r *runner, spec *isolate.Spec, stdin *os.File) (*isolate.Result, []byte, error) {
	digest, err := spec.Digest()
	if err != nil {
		return nil, nil, err
	}
	for range tries {
		if r.pool.Cells > 0 {
			have, err := r.Expect(ctx, r.network, spec.Limits)
			if err == nil && have.Waiting == 0 {
				err = fault.New(fault.Refused, "cell_start", "wait for a cell", errNoneWait)
			}
			if err != nil {
				return nil, nil, err
			}
		}
		d := r.auth.Decide(policy.Request{Principal: policy.LocalUser("certify"), Action: policy.ToolExecute, Resource: policy.Tool(kernel.ToolRun),
			Context: policy.Context{CapsuleDigest: spec.Capsule}})
		g, err := r.auth.Grant(d, nil, spec.Capsule, digest, time.Minute)
		if err != nil {
			return nil, nil, err
		}
		res, out, err := run(ctx, r, g, spec, &isolate.Files{Exec: t.sealed, Stdin: stdin, Stderr: t.null})
		if err != nil || r.pool.Cells == 0 || res.Evidence.Cell.Mode == evidence.CellWarm {
			return res, out, err
		}
	}
	return nil, nil, errors.New("no call found a waiting cell")
}

func run(ctx context.Context, r *runner, g grant.Grant, spec *isolate.Spec, files *isolate.Files) (*isolate.Result, []byte, error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer pr.Close()
	files.Stdout = pw
	read := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(pr, 1<<16))
		read <- b
	}()
	res, err := r.Run(ctx, g, spec, files)
	pw.Close()
	pr.SetReadDeadline(time.Now().Add(drain)) // one that outlived its cell holds the other end
	return res, <-read, err
}

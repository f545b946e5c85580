package cell

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"palyra/authz/grant"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/native/cgroup"
	"palyra/isolate/tier"
)

// closeGrace is how long Close waits for palyra-cell to end by itself.
const closeGrace = 5 * time.Second

// answerGrace is how long palyra-cell has to kill, reap and answer after a
// run's deadline or its cancellation.
const answerGrace = 10 * time.Second

// Client is a connection to a running palyra-cell. It is safe for concurrent
// use. Close it to end the process and everything it runs.
type Client struct {
	cfg  Config
	conn *os.File // the socket; it blocks
	raw  syscall.RawConn
	proc killer
	gone <-chan struct{} // closed once the process was reaped

	hostNS map[string]uint64 // namespaces of this process, for the evidence

	begun, sent atomic.Uint64 // messages: handed to the kernel, and taken or refused by it

	// One of those who wait for an answer reads, for all of them: the thread that
	// the kernel wakes is mostly the one that the answer is for.
	buf []byte // of who reads

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]*question // guarded by mu
	reading bool                 // guarded by mu
	dead    error                // guarded by mu; set once
	unread  uint64               // guarded by mu: the last message, if palyra-cell died without taking it; or 0
	overdue *time.Timer          // guarded by mu; nil until the first question
	alarm   time.Time            // guarded by mu: when overdue fires; zero if it does not
}

// Start starts palyra-cell and waits until it can serve. Where the host cannot
// enforce the tier the error is of kind Refused with the missing control as
// its reason ("userns_unavailable", "cell_missing", ...).
func Start(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.Tier != tier.B && cfg.Tier != tier.C {
		return nil, fault.New(fault.Refused, "tier_unavailable", "start palyra-cell for tier "+cfg.Tier.String(), nil)
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "socketpair", "start palyra-cell", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "cell")
	conn := os.NewFile(uintptr(fds[0]), "palyra")
	c := &Client{cfg: cfg, conn: conn, buf: make([]byte, maxMessage), pending: make(map[uint64]*question)}
	if c.raw, err = conn.SyscallConn(); err != nil {
		conn.Close()
		theirs.Close()
		return nil, fault.New(fault.Internal, "socketpair", "start palyra-cell", err)
	}
	ns, err := evidence.ReadNamespaces("/proc", os.Getpid())
	if err != nil {
		conn.Close()
		theirs.Close()
		return nil, fault.New(fault.Refused, "proc_unavailable", "read own namespaces", err).WithHint("mount proc on /proc")
	}
	c.hostNS = ns
	if cfg.Starter != nil {
		c.proc, c.gone, err = cfg.Starter.start(ctx, cfg.Tier, theirs)
	} else {
		c.proc, c.gone, err = spawn(cfg.Path, cfg.Tier, theirs)
	}
	theirs.Close() // now, or its end would keep us from noticing a death
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.step("cell_started")
	if err := c.greet(ctx); err != nil {
		c.proc.Kill() // it runs nothing yet, and may be one that never answers
		c.Close()
		return nil, err
	}
	return c, nil
}

// killer is a palyra-cell that runs: our child, or that of a starter.
type killer interface {
	Kill() error
}

// spawn starts a palyra-cell from a thread that lives as long as it does: the
// parent-death signal is tied to the thread, not to the process. The channel is
// closed once the process was reaped.
func spawn(path string, t tier.Tier, theirs *os.File) (killer, <-chan struct{}, error) {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	root := sys.HasSysAdmin()
	if t == tier.C || root {
		// A PID namespace of its own: when palyra-cell dies, however, the kernel
		// kills all that it ran. At tier B that needs root, since there may be no
		// user namespaces.
		a.Cloneflags = knob.Outer(syscall.CLONE_NEWNS | syscall.CLONE_NEWPID)
		if !root {
			a.Cloneflags |= syscall.CLONE_NEWUSER
			a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
	}
	if a.Cloneflags == 0 {
		// The next best: orphans of a palyra-cell that died become our children.
		if err := sys.SetSubreaper(); err != nil {
			return nil, nil, fault.New(fault.Refused, "subreaper", "start palyra-cell", err)
		}
	}
	nest := newNest()
	if nest != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(nest.Dir().Fd())
	}
	var c *child
	started, gone := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, after the process
		remove := func() {
			if nest != nil {
				nest.Remove() // what is left then is a group without processes
			}
		}
		var err error
		if c, err = startChild(path, theirs, a); err != nil {
			remove() // before anybody knows, and may end
			started <- err
			return
		}
		started <- nil
		c.wait()
		if a.Cloneflags == 0 {
			killStrays()
		}
		remove()
		close(gone)
	}()
	if err := <-started; err != nil {
		return nil, nil, startError(path, err, a.Cloneflags&syscall.CLONE_NEWUSER != 0)
	}
	return c, gone, nil
}

// newNest makes a place in the cgroup tree for palyra-cell, or returns nil where
// none can be made: palyra-cell finds out why, and its evidence says it.
func newNest() *cgroup.Nest {
	tree, err := cgroup.Find("/proc")
	if err != nil || tree.Prepare() != nil {
		return nil
	}
	nest, err := tree.Nest()
	if err != nil {
		return nil
	}
	return nest
}

// startError says which control is missing when palyra-cell cannot be started,
// in a user namespace of its own or in ours.
func startError(path string, err error, userns bool) error {
	op := fmt.Sprintf("start palyra-cell %q", path)
	_, statErr := os.Stat(path)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return fault.New(fault.Refused, "cell_missing", op, err).WithHint("install palyra-cell beside palyra")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EPERM) && !sys.HasSysAdmin():
		return usernsFault(op, err)
	case errors.Is(err, syscall.EACCES) && userns && syscall.Access(path, accessExecute) == nil:
		return usernsFault(op, err) // by AppArmor (userns_create): the program itself may be executed
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fault.New(fault.Unavailable, "cell_start", op, err)
	}
	return fault.New(fault.Refused, "cell_start", op, err)
}

// accessExecute is X_OK of access(2).
const accessExecute = 1

// usernsFault says what to do on a host that gives no user namespaces.
func usernsFault(op string, err error) *fault.Error {
	hint := "this host forbids unprivileged user namespaces (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): allow them, or run as root"
	if errors.Is(err, syscall.ENOSPC) {
		hint = "raise user.max_user_namespaces (and max_mnt_namespaces, max_pid_namespaces) with sysctl; tier b needs none"
	}
	return fault.New(fault.Refused, "userns_unavailable", op, fmt.Errorf("this host gives no user namespace: %w", err)).WithHint(hint)
}

func (c *Client) step(name string) {
	if c.cfg.TestOnlyStep != nil {
		c.cfg.TestOnlyStep(name)
	}
}

func (c *Client) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, c.shutdown)
	defer stop()
	key := c.cfg.Key.Bytes()
	msg, err := json.Marshal(hello{Version: wireVersion, Tier: c.cfg.Tier, Key: key[:], Pool: c.cfg.Pool})
	if err != nil {
		return err
	}
	died := func(err error) error {
		if ctx.Err() != nil {
			return fault.New(fault.Canceled, "canceled", "start palyra-cell", context.Cause(ctx))
		}
		return fault.New(fault.Refused, "cell_died", fmt.Sprintf("greet palyra-cell %q", c.cfg.Path), err).
			WithHint("is it the palyra-cell that was built with this palyra?")
	}
	if _, err := c.send(msg, nil); err != nil {
		return died(err)
	}
	b, err := c.receive()
	if err != nil {
		return died(err)
	}
	var h hello
	if err := decode([]byte(b), &h); err != nil {
		return died(err)
	}
	if h.Error != nil {
		return h.Error.err()
	}
	if h.Build != knob.Build {
		return fault.New(fault.Refused, "cell_test_build", fmt.Sprintf("greet palyra-cell %q", c.cfg.Path), fmt.Errorf("its build is %q, ours %q", h.Build, knob.Build)).
			WithHint("install the palyra-cell that was built with this palyra; one built with " + knob.Tag + " confines nothing")
	}
	if h.Version != wireVersion || h.Tier != c.cfg.Tier {
		return died(fmt.Errorf("it speaks version %d for tier %v", h.Version, h.Tier))
	}
	return nil
}

// ask sends a run, or a request to explain one.
func (c *Client) ask(kind byte, due time.Duration, s *isolate.Spec, g []byte, f *isolate.Files) (id uint64, q *question, err error) {
	spec, err := s.Canonical()
	if err != nil {
		return 0, nil, fault.New(fault.Internal, "spec_encode", "encode spec", err)
	}
	if len(spec) > maxSpec {
		return 0, nil, fault.New(fault.Usage, "spec_too_large", fmt.Sprintf("send spec of %d bytes to palyra-cell", len(spec)), nil)
	}
	has, fds, err := descriptors(f)
	if err != nil {
		return 0, nil, err
	}
	if len(spec) > maxInline {
		memory, err := sys.SealedFile("palyra-spec", bytes.NewReader(spec))
		if err != nil {
			return 0, nil, fault.New(fault.Unavailable, "memfd", "seal spec", err)
		}
		defer memory.Close()
		has, fds, spec = has|hasSpec, slices.Insert(fds, 0, int(memory.Fd())), nil
	}
	id, q, err = c.put(due, fds, func(id uint64) ([]byte, error) {
		b := appendRun(make([]byte, 0, runHead+len(spec)), kind, id, has, len(f.Operands), g)
		return append(b, spec...), nil
	})
	runtime.KeepAlive(f)
	return id, q, err
}

// descriptors returns those of a run, in the order of the protocol.
func descriptors(f *isolate.Files) (has uint8, fds []int, err error) {
	fds = make([]int, 0, 8+len(f.Operands))
	add := func(name string, file *os.File) {
		if file == nil {
			err = fault.New(fault.Internal, "spec_files", "send to palyra-cell: no descriptor for "+name, nil)
			return
		}
		// Fd makes the description blocking, which is what a program expects.
		fds = append(fds, int(file.Fd()))
	}
	add("exec", f.Exec)
	add("stdout", f.Stdout)
	add("stderr", f.Stderr)
	for _, o := range [...]struct {
		bit  uint8
		file *os.File
	}{{hasScript, f.Script}, {hasWorkspace, f.Workspace}, {hasStdin, f.Stdin}} {
		if o.file != nil {
			has |= o.bit
			fds = append(fds, int(o.file.Fd()))
		}
	}
	for _, o := range f.Operands {
		add("operand", o)
	}
	if err == nil && len(fds) > maxFiles {
		err = fault.New(fault.Usage, "too_many_operands", fmt.Sprintf("send %d descriptors to palyra-cell, at most %d", len(fds), maxFiles), nil)
	}
	return has, fds, err
}

// Run implements isolate.Runner. An error with the reason "cell_died" and without
// a Result says that palyra-cell is gone and never took the call: what it was
// granted can be run by another one.
func (c *Client) Run(ctx context.Context, g grant.Grant, s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
	gb, err := g.MarshalBinary()
	if err != nil {
		return nil, err
	}
	// palyra-cell keeps the deadline. One that does not answer is killed.
	id, q, err := c.ask(opRun, s.Limits.Wall+answerGrace, s, gb, f)
	if err != nil {
		return nil, err
	}
	c.step("run_sent")
	if ctx.Done() != nil {
		// The answer still comes: palyra-cell kills the run and says so.
		stop := context.AfterFunc(ctx, func() {
			c.mu.Lock()
			c.expectLocked(q, answerGrace)
			c.mu.Unlock()
			c.send(binary.LittleEndian.AppendUint64([]byte{opCancel}, id), nil)
		})
		defer stop()
	}
	msg, err := c.await(q)
	c.step("run_answered")
	if errors.Is(err, errUnread) {
		return nil, err
	}
	if err != nil {
		return &isolate.Result{Outcome: isolate.Unknown}, err // palyra-cell has it, and may have run it
	}
	r, err := q.parseReply(msg)
	if err != nil {
		return &isolate.Result{Outcome: isolate.Unknown}, fault.New(fault.Internal, "cell_protocol", "run in palyra-cell", err)
	}
	if r.Result != nil && r.Result.Evidence != nil {
		e := r.Result.Evidence
		e.Namespaces.Host = c.hostNS
		e.Namespaces.Fresh = evidence.Fresh(e.Namespaces.Cell, c.hostNS)
		if e.Network.Mode == evidence.NetworkVoid {
			// It is not the host's, but other calls have it, too.
			e.Namespaces.Fresh = slices.DeleteFunc(e.Namespaces.Fresh, func(kind string) bool { return kind == "net" })
		}
	}
	return r.Result, r.Error.err()
}

// Close ends palyra-cell and with it every run, and waits until it is gone.
func (c *Client) Close() error {
	c.shutdown()
	// palyra-cell ends by itself when the connection does, having killed what it
	// ran; at tier C the kernel does that for it.
	t := time.AfterFunc(closeGrace, func() { c.proc.Kill() })
	defer t.Stop()
	<-c.gone
	c.mu.Lock()
	if c.overdue != nil {
		c.overdue.Stop()
	}
	c.mu.Unlock()
	return c.conn.Close()
}

// Died is closed when palyra-cell is gone.
func (c *Client) Died() <-chan struct{} { return c.gone }

// TestOnlyKill kills palyra-cell as a crash would.
func (c *Client) TestOnlyKill() error { return c.proc.Kill() }

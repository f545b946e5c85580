package cell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"palyra/authz/grant"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
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
	conn *net.UnixConn
	proc killer
	gone <-chan struct{} // closed once the process was reaped

	hostNS map[string]uint64 // namespaces of this process, for the evidence

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan reply         // guarded by mu; each takes one reply
	armed   map[uint64]*evidence.Evidence // guarded by mu; of cells that wait
	dead    error                         // guarded by mu; set once by the reader
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
	ours := os.NewFile(uintptr(fds[0]), "palyra")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, fault.New(fault.Internal, "socketpair", "start palyra-cell", err)
	}
	c := &Client{cfg: cfg, conn: conn.(*net.UnixConn), pending: make(map[uint64]chan reply), armed: make(map[uint64]*evidence.Evidence)}
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
	go c.read()
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
		a.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
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
		var err error
		c, err = startChild(path, theirs, a)
		started <- err
		if err == nil {
			c.wait()
			if a.Cloneflags == 0 {
				killStrays()
			}
		}
		if nest != nil {
			nest.Remove() // what is left then is a group without processes
		}
		if err == nil {
			close(gone)
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, startError(path, err)
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

// startError says which control is missing when palyra-cell cannot be started.
func startError(path string, err error) error {
	op := fmt.Sprintf("start palyra-cell %q", path)
	_, statErr := os.Stat(path)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return fault.New(fault.Refused, "cell_missing", op, err).WithHint("install palyra-cell beside palyra")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EPERM) && !sys.HasSysAdmin():
		return usernsFault(op, err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fault.New(fault.Unavailable, "cell_start", op, err)
	}
	return fault.New(fault.Refused, "cell_start", op, err)
}

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
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
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
	if _, err := c.conn.Write(msg); err != nil {
		return died(err)
	}
	buf := make([]byte, maxMessage)
	n, err := c.conn.Read(buf)
	if err != nil {
		return died(err)
	}
	var h hello
	if err := decode(buf[:n], &h); err != nil {
		return died(err)
	}
	if h.Error != nil {
		return h.Error.err()
	}
	if h.Version != wireVersion || h.Tier != c.cfg.Tier {
		return died(fmt.Errorf("it speaks version %d for tier %v", h.Version, h.Tier))
	}
	return nil
}

// read hands replies to the waiting runs until the connection ends.
func (c *Client) read() {
	buf := make([]byte, maxMessage)
	for {
		n, err := c.conn.Read(buf)
		var r reply
		if err == nil {
			err = decode(buf[:n], &r)
		}
		c.mu.Lock()
		if err != nil {
			c.dead = fault.New(fault.Internal, "cell_died", "read from palyra-cell", err)
			for id, ch := range c.pending {
				ch <- reply{Error: &wireErr{Kind: fault.Internal, Reason: "cell_died", Op: "run in palyra-cell", Text: "palyra-cell died during the run"}}
				delete(c.pending, id)
			}
			c.mu.Unlock()
			return
		}
		switch {
		case r.Armed != 0:
			if r.Result != nil && r.Result.Evidence != nil {
				c.armed[r.Armed] = r.Result.Evidence
			}
		case r.Gone != 0:
			delete(c.armed, r.Gone)
		case r.Warm != nil:
			if e := c.armed[r.Warm.Armed]; e != nil {
				r.Result = r.Warm.extend(e)
			} else {
				r.Error = &wireErr{Kind: fault.Internal, Reason: "cell_protocol", Op: "run in palyra-cell", Text: "the answer names a cell that was not announced"}
			}
			delete(c.armed, r.Warm.Armed)
		}
		if ch, ok := c.pending[r.ID]; ok {
			ch <- r
			delete(c.pending, r.ID)
		}
		c.mu.Unlock()
	}
}

// ask sends a request and returns where its answer will come.
func (c *Client) ask(op string, s *isolate.Spec, g []byte, f *isolate.Files) (id uint64, ch chan reply, err error) {
	r, fds, err := marshalRun(s, f)
	if err != nil {
		return 0, nil, err
	}
	r.Op, r.Grant = op, g
	id, ch, err = c.put(r, fds)
	runtime.KeepAlive(f)
	return id, ch, err
}

// put sends a request with descriptors.
func (c *Client) put(r *request, fds []int) (id uint64, ch chan reply, err error) {
	ch = make(chan reply, 1)
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		return 0, nil, c.dead
	}
	c.nextID++
	id = c.nextID
	c.pending[id] = ch
	c.mu.Unlock()

	r.ID = id
	msg, err := json.Marshal(r)
	if err == nil {
		if len(r.spec) > 0 {
			msg = append(append(msg, 0), r.spec...)
		}
		_, _, err = c.conn.WriteMsgUnix(msg, syscall.UnixRights(fds...), nil)
	}
	if r.memory != nil {
		r.memory.Close()
	}
	if err != nil {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
		return 0, nil, fault.New(fault.Internal, "cell_died", "send to palyra-cell", err)
	}
	return id, ch, nil
}

// Run implements isolate.Runner.
func (c *Client) Run(ctx context.Context, g grant.Grant, s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
	gb, err := g.MarshalBinary()
	if err != nil {
		return nil, err
	}
	id, ch, err := c.ask("run", s, gb, f)
	if err != nil {
		return nil, err
	}
	c.step("run_sent")
	// palyra-cell keeps the deadline. One that does not answer is killed, and with
	// it what it runs; the answer is then that it died.
	overdue := time.AfterFunc(s.Limits.Wall+answerGrace, func() { c.proc.Kill() })
	defer overdue.Stop()
	var r reply
	select {
	case r = <-ch:
	case <-ctx.Done():
		// The answer still comes: palyra-cell kills the run and says so.
		overdue.Reset(answerGrace)
		if msg, err := json.Marshal(request{Op: "cancel", ID: id}); err == nil {
			c.conn.Write(msg)
		}
		r = <-ch
	}
	c.step("run_answered")
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

// marshalRun makes a request of a Spec and its files.
func marshalRun(s *isolate.Spec, f *isolate.Files) (*request, []int, error) {
	b, err := canon.Marshal(s)
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "spec_encode", "encode spec", err)
	}
	if len(b) > maxSpec {
		return nil, nil, fault.New(fault.Usage, "spec_too_large", fmt.Sprintf("send spec of %d bytes to palyra-cell", len(b)), nil)
	}
	r := &request{spec: b}
	var fds []int
	if len(b) > maxInline {
		r.spec = nil
		if r.memory, err = sys.SealedFile("palyra-spec", bytes.NewReader(b)); err != nil {
			return nil, nil, fault.New(fault.Unavailable, "memfd", "seal spec", err)
		}
		fds = append(fds, int(r.memory.Fd()))
	}
	add := func(name string, file *os.File) {
		r.Files = append(r.Files, name)
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
	for _, o := range []struct {
		name string
		file *os.File
	}{{"script", f.Script}, {"workspace", f.Workspace}, {"stdin", f.Stdin}} {
		if o.file != nil {
			add(o.name, o.file)
		}
	}
	for _, o := range f.Operands {
		add("operand", o)
	}
	if err == nil && len(r.Files) > maxFiles {
		err = fault.New(fault.Usage, "too_many_operands", fmt.Sprintf("send %d descriptors to palyra-cell, at most %d", len(r.Files), maxFiles), nil)
	}
	if err != nil && r.memory != nil {
		r.memory.Close()
	}
	return r, fds, err
}

// Close ends palyra-cell and with it every run, and waits until it is gone.
func (c *Client) Close() error {
	err := c.conn.Close()
	// palyra-cell ends by itself when the connection does, having killed what it
	// ran; at tier C the kernel does that for it.
	t := time.AfterFunc(closeGrace, func() { c.proc.Kill() })
	defer t.Stop()
	<-c.gone
	return err
}

// Died is closed when palyra-cell is gone.
func (c *Client) Died() <-chan struct{} { return c.gone }

// TestOnlyKill kills palyra-cell as a crash would.
func (c *Client) TestOnlyKill() error { return c.proc.Kill() }

package cell

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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
	"palyra/isolate/cell/spawn"
	"palyra/isolate/cell/wire"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/tier"
)

// closeGrace is how long Close waits for palyra-cell to end by itself.
const closeGrace = 5 * time.Second

// answerGrace bounds palyra-cell's time to kill, reap and answer after a run's deadline or its
// cancellation.
const answerGrace = 10 * time.Second

// Client is a connection to a running palyra-cell. It is safe for concurrent use. Close ends
// the process and all that it runs.
type Client struct {
	cfg  Config
	conn *os.File // the socket; blocking
	raw  syscall.RawConn
	proc killer
	gone <-chan struct{} // closed when the process has been reaped

	hostNS map[string]uint64 // namespaces of this process, for the evidence
	mounts *mounts           // of this process; palyra-cell has a copy

	begun, sent atomic.Uint64 // messages handed to the kernel, and those that it took or refused

	// One waiting caller reads for all of them: the thread that the kernel wakes is mostly the
	// one that the answer is for.
	buf []byte // owned by the current reader

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]*question // guarded by mu
	reading bool                 // guarded by mu
	dead    error                // guarded by mu; set once
	// unread is the last message, if palyra-cell died without taking it, else 0; guarded by mu.
	unread uint64
	// past is set when the mounts have changed, and closed when nothing is pending after that;
	// guarded by mu.
	past    chan struct{}
	overdue *time.Timer // guarded by mu; nil until the first question
	alarm   time.Time   // guarded by mu: when overdue fires; zero if it isn't set
}

// Start starts palyra-cell and waits until it can serve. If the host can't enforce the tier,
// the error is of kind Refused and names the missing control in its reason
// ("userns_unavailable", "helper_unusable", ...).
func Start(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.Tier != tier.B && cfg.Tier != tier.C {
		return nil, fault.New(fault.Refused, "tier_unavailable", "start palyra-cell for tier "+cfg.Tier.String(), nil)
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "resource_exhausted", "start palyra-cell", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "cell")
	conn := os.NewFile(uintptr(fds[0]), "palyra")
	c := &Client{cfg: cfg, conn: conn, buf: make([]byte, wire.MaxMessage), pending: make(map[uint64]*question)}
	if c.raw, err = conn.SyscallConn(); err != nil {
		conn.Close()
		theirs.Close()
		return nil, fault.New(fault.Internal, "internal", "start palyra-cell", err)
	}
	ns, err := evidence.ReadNamespaces("/proc", os.Getpid())
	if err != nil {
		conn.Close()
		theirs.Close()
		return nil, fault.New(fault.Refused, "proc_unavailable", "read own namespaces", err).WithHint("mount proc on /proc")
	}
	c.hostNS = ns
	if c.mounts, err = newMounts(); err != nil {
		conn.Close()
		theirs.Close()
		return nil, fault.New(fault.Refused, "proc_unavailable", "read own mounts", err).WithHint("mount proc on /proc")
	}
	if cfg.Starter != nil {
		c.proc, c.gone, err = cfg.Starter.start(ctx, cfg.Tier, theirs)
	} else {
		c.proc, c.gone, err = spawn.Start(cfg.Path, cfg.Tier, theirs)
	}
	theirs.Close() // or we would not notice a death
	if err != nil {
		c.mounts.file.Close()
		conn.Close()
		return nil, err
	}
	c.step("cell_started")
	if err := c.greet(ctx); err != nil {
		c.proc.Kill() // it runs nothing yet, and may never answer
		c.Close()
		return nil, err
	}
	return c, nil
}

type killer interface {
	Kill() error
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
	msg, err := json.Marshal(wire.Hello{Version: wire.Version(), Tier: c.cfg.Tier, Key: key[:], Pool: c.cfg.Pool})
	if err != nil {
		return err
	}
	died := func(err error) error {
		if ctx.Err() != nil {
			return fault.New(fault.Canceled, "canceled", "start palyra-cell", context.Cause(ctx))
		}
		return errDied(fault.Refused, fmt.Sprintf("greet palyra-cell %q", c.cfg.Path), err).
			WithHint("is it the palyra-cell that was built with this palyra?")
	}
	if _, err := c.send(msg, nil); err != nil {
		return died(err)
	}
	b, err := c.receive()
	if err != nil {
		return died(err)
	}
	var h wire.Hello
	if err := wire.Decode([]byte(b), &h); err != nil {
		return died(err)
	}
	if h.Error != nil {
		return h.Error.Err()
	}
	if h.Build != knob.Build {
		return fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("greet palyra-cell %q", c.cfg.Path), fmt.Errorf("its build is %q, ours %q", h.Build, knob.Build)).
			WithHint("install the palyra-cell that was built with this palyra; one built with " + knob.Tag + " confines nothing")
	}
	if h.Version != wire.Version() || h.Tier != c.cfg.Tier {
		return died(fmt.Errorf("it speaks version %d for tier %v", h.Version, h.Tier))
	}
	return nil
}

// Past reports whether the host's mounts in the folders of a call, or in those that every cell
// shows, differ from palyra-cell's. If they do, palyra-cell takes no more
// calls; Close lets its running calls end.
func (c *Client) Past(folders ...string) bool { return c.current(folders) != nil }

// foldersOf returns the folders of the host that a call sees besides those of every cell.
func foldersOf(s *isolate.Spec) (folders []string) {
	if s.Workspace != nil {
		folders = append(folders, s.Workspace.Source)
	}
	for _, m := range s.Mounts {
		folders = append(folders, m.Source)
	}
	return folders
}

// current returns an error if the mounts that matter to a call have changed since palyra-cell
// started. From then on it takes no call.
func (c *Client) current(folders []string) error {
	point, err := c.mounts.since(folders)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.past != nil:
		err = errors.New("the mounts of the host are not those that it started with")
	case err != nil:
		return fault.New(fault.Internal, "internal", "read own mounts", err)
	case point == "":
		return nil
	default:
		err = fmt.Errorf("what is mounted at %q has changed since it started", point)
		c.past = make(chan struct{})
		c.emptyLocked()
	}
	return errDied(fault.Internal, "run in palyra-cell", err)
}

// emptyLocked is called after a question has left pending.
func (c *Client) emptyLocked() {
	if c.past != nil && len(c.pending) == 0 {
		select {
		case <-c.past:
		default:
			close(c.past)
		}
	}
}

func (c *Client) ask(kind byte, due time.Duration, s *isolate.Spec, g []byte, f *isolate.Files) (id uint64, q *question, err error) {
	if err := c.current(foldersOf(s)); err != nil {
		return 0, nil, err
	}
	spec, err := s.Canonical()
	if err != nil {
		return 0, nil, fault.New(fault.Internal, "internal", "encode spec", err)
	}
	if len(spec) > wire.MaxSpec {
		return 0, nil, fault.New(fault.Usage, "too_large", fmt.Sprintf("send spec of %d bytes to palyra-cell", len(spec)), errors.New("it is too large"))
	}
	has, fds, err := descriptors(f)
	if err != nil {
		return 0, nil, err
	}
	if len(spec) > wire.MaxInline {
		memory, err := sys.SealedFile("palyra-spec", bytes.NewReader(spec))
		if err != nil {
			return 0, nil, fault.New(fault.Unavailable, "resource_exhausted", "seal spec", err)
		}
		defer memory.Close()
		has, fds, spec = has|wire.HasSpec, slices.Insert(fds, 0, int(memory.Fd())), nil
	}
	id, q, err = c.put(due, fds, func(id uint64) ([]byte, error) {
		b := wire.AppendRun(make([]byte, 0, wire.RunHead+len(spec)), kind, id, has, len(f.Operands)+len(f.Mounts)+len(f.Caches)+len(f.Secrets), g)
		return append(b, spec...), nil
	})
	runtime.KeepAlive(f)
	return id, q, err
}

func descriptors(f *isolate.Files) (has uint8, fds []int, err error) {
	fds = make([]int, 0, 10+len(f.Operands)+len(f.Mounts)+len(f.Caches)+len(f.Secrets))
	add := func(name string, file *os.File) {
		if file == nil {
			err = fault.New(fault.Internal, "internal", "send to palyra-cell: no descriptor for "+name, errors.New("the descriptor is missing"))
			return
		}
		// Fd makes the description blocking, which is what a program expects.
		fds = append(fds, int(file.Fd()))
	}
	add("exec", f.Exec)
	if f.Terminal == nil {
		add("stdout", f.Stdout)
		add("stderr", f.Stderr)
	}
	for _, o := range [...]struct {
		bit  uint8
		file *os.File
	}{{wire.HasScript, f.Script}, {wire.HasWorkspace, f.Workspace}, {wire.HasStdin, f.Stdin}, {wire.HasLayer, f.Layer}, {wire.HasTerminal, f.Terminal}, {wire.HasEgress, f.Egress}, {wire.HasRoots, f.Roots}} {
		if o.file != nil {
			has |= o.bit
			fds = append(fds, int(o.file.Fd()))
		}
	}
	for _, o := range f.Operands {
		add("operand", o)
	}
	for _, m := range f.Mounts {
		add("mount", m)
	}
	for _, c := range f.Caches {
		add("cache", c)
	}
	for _, s := range f.Secrets {
		add("secret", s)
	}
	if err == nil && len(fds) > wire.MaxFiles {
		err = fault.New(fault.Usage, "too_large", fmt.Sprintf("send %d descriptors to palyra-cell, at most %d", len(fds), wire.MaxFiles), errors.New("too many"))
	}
	return has, fds, err
}

// Run implements isolate.Runner. An error that is ErrDied, without a Result, says that
// palyra-cell never took the call: it's gone, or its mounts are outdated. The call can be
// proposed again; the grant is good for no other palyra-cell.
func (c *Client) Run(ctx context.Context, g grant.Grant, s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
	gb, err := g.MarshalBinary()
	if err != nil {
		return nil, err
	}
	// palyra-cell keeps the deadline. If it doesn't answer, it is killed.
	id, q, err := c.ask(wire.OpRun, s.Limits.Wall+answerGrace, s, gb, f)
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
			c.send(binary.LittleEndian.AppendUint64([]byte{wire.OpCancel}, id), nil)
		})
		defer stop()
	}
	msg, err := c.await(q)
	c.step("run_answered")
	if errors.Is(err, errUnread) {
		return nil, err
	}
	if err != nil {
		return &isolate.Result{Outcome: isolate.Unknown}, err // palyra-cell has the call, and may have run it
	}
	r, err := parseReply(msg)
	if err != nil {
		return &isolate.Result{Outcome: isolate.Unknown}, fault.New(fault.Internal, "cell_protocol", "run in palyra-cell", err)
	}
	if r.Result != nil && r.Result.Evidence != nil {
		e := r.Result.Evidence
		e.Namespaces.Host = c.hostNS
		e.Namespaces.Fresh = evidence.Fresh(e.Namespaces.Cell, c.hostNS)
		switch e.Network.Mode {
		case evidence.NetworkVoid, evidence.NetworkSession, evidence.NetworkHost, evidence.NetworkPreflight:
			// Other calls share it, or may, or it is the host's, though palyra may have another.
			e.Namespaces.Fresh = slices.DeleteFunc(e.Namespaces.Fresh, func(kind string) bool { return kind == "net" })
		}
	}
	return r.Result, r.Error.Err()
}

// Close ends palyra-cell and all its runs, and waits until it is gone. If the mounts have
// changed, it first waits for the running calls.
func (c *Client) Close() error {
	c.mu.Lock()
	past := c.past
	c.mu.Unlock()
	if past != nil {
		select {
		case <-past:
		case <-c.gone:
		}
	}
	c.shutdown()
	// palyra-cell kills its runs and ends when the connection does; at tier C the kernel kills
	// them.
	t := time.AfterFunc(closeGrace, func() { c.proc.Kill() })
	defer t.Stop()
	<-c.gone
	c.mu.Lock()
	if c.overdue != nil {
		c.overdue.Stop()
	}
	c.mu.Unlock()
	c.mounts.file.Close()
	return c.conn.Close()
}

// Died is closed when palyra-cell is gone.
func (c *Client) Died() <-chan struct{} { return c.gone }

// TestOnlyKill kills palyra-cell as a crash would.
func (c *Client) TestOnlyKill() error { return c.proc.Kill() }

package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/egress/wire"
)

// Process is a palyra-egress that this process started.
type Process struct {
	link
	kept bool          // the child is Keep's
	gone chan struct{} // closed when the child has been reaped
}

// Start starts the palyra-egress at path, which dies with this process. If it ends, all sessions
// do, and Open fails.
func Start(path string) (*Process, error) { return start(path) }

// Keep starts the palyra-egress at path like Start, and has it start anew, by a process that does
// nothing else, whenever it ends. Sessions are lost with it; Open works again.
func Keep(path string) (*Process, error) { return start(path, "keep") }

func start(path string, args ...string) (*Process, error) {
	op := fmt.Sprintf("start palyra-egress %q", path)
	ours, theirs, err := pair(syscall.SOCK_SEQPACKET, op)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := connOf(ours)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	cmd := &exec.Cmd{
		Path: path, Args: append([]string{"palyra-egress"}, args...), Env: []string{}, Dir: "/", Stderr: os.Stderr,
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true},
	}
	p := &Process{kept: len(args) > 0, gone: make(chan struct{})}
	p.set(conn)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is tied to this thread, which ends with it
		defer close(p.gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		conn.Close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.Refused, "helper_unusable", op, err).WithHint("install palyra-egress beside palyra")
		}
		return nil, fault.New(fault.Refused, "egress_lost", op, fault.Mark(err, ErrLost))
	}
	return p, nil
}

// Open returns a session for a call.
func (p *Process) Open(ctx context.Context, o *Order) (*Session, error) {
	s, err := p.link.Open(ctx, o)
	if e, ok := errors.AsType[*fault.Error](err); ok && p.kept && errors.Is(err, ErrLost) {
		select {
		case <-p.gone: // nothing starts palyra-egress any more
			err = e.WithHint("restart palyrad: the process that keeps palyra-egress running has ended")
		default:
		}
	}
	return s, err
}

// Close ends palyra-egress, and with it all sessions, and waits for that.
func (p *Process) Close() error {
	err := p.link.close()
	<-p.gone
	return err
}

var _ Broker = (*Process)(nil)

// link is a control connection that may be replaced by a later palyra-egress's.
type link struct {
	mu     sync.Mutex
	conn   *net.UnixConn // nil until there is one
	change chan struct{} // closed and replaced when conn changes
	closed bool
}

func (l *link) changedLocked() chan struct{} {
	if l.change == nil {
		l.change = make(chan struct{})
	}
	return l.change
}

// set takes a connection over, and closes the one before.
func (l *link) set(conn *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close()
		return
	}
	if l.conn != nil {
		l.conn.Close()
	}
	l.conn = conn
	close(l.changedLocked())
	l.change = nil
}

// drop forgets conn, unless there is a newer one.
func (l *link) drop(conn *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn.Close()
	if l.conn == conn {
		l.conn = nil
		close(l.changedLocked())
		l.change = nil
	}
}

func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.changedLocked())
	l.change = nil
	if l.conn == nil {
		return nil
	}
	conn := l.conn
	l.conn = nil
	return conn.Close()
}

// current returns the connection, nil if there is none, and a channel that is closed when that
// changes.
func (l *link) current() (*net.UnixConn, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn, l.changedLocked()
}

// Open returns a session for a call.
func (l *link) Open(ctx context.Context, o *Order) (*Session, error) {
	conn, _ := l.current()
	if conn == nil {
		return nil, lost("open an egress session", errors.New("it isn't running"))
	}
	return open(ctx, conn, o)
}

// opening bounds the waits for a palyra-egress that is there but does nothing.
const opening = 10 * time.Second

func open(ctx context.Context, control *net.UnixConn, o *Order) (_ *Session, err error) {
	const op = "open an egress session"
	msg, err := wire.Encode(wire.Request{Version: wire.Version, Order: *o})
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	if len(msg) > wire.MaxRequest {
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("the order has %d bytes, at most %d pass", len(msg), wire.MaxRequest))
	}
	ours, theirs, err := pair(syscall.SOCK_STREAM, op)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := connOf(ours)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	cell, far, err := pair(syscall.SOCK_SEQPACKET, op)
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer far.Close()
	rights := syscall.UnixRights(int(theirs.Fd()), int(far.Fd()))
	err = sendOrder(ctx, control, msg, rights)
	runtime.KeepAlive(theirs)
	runtime.KeepAlive(far)
	if err != nil {
		conn.Close()
		cell.Close()
		if ctx.Err() != nil {
			return nil, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
		}
		return nil, lost(op, err)
	}
	theirs.Close() // or the end of palyra-egress's copy would go unseen
	far.Close()
	s := &Session{cell: cell, conn: conn, done: make(chan struct{})}
	if len(o.Uses) > 0 {
		s.given = make(chan error, 1)
	}
	answered := make(chan error, 1)
	late := time.NewTimer(opening)
	defer late.Stop()
	go s.receive(answered)
	select {
	case err = <-answered:
	case <-ctx.Done():
		err = fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case <-late.C:
		err = lost(op, errors.New("it doesn't answer"))
	}
	if err != nil {
		conn.Close() // palyra-egress ends what it may have begun
		<-s.done
		cell.Close()
		return nil, err
	}
	return s, nil
}

// orderAgain is how often an order is tried that palyra-egress has no room for.
const orderAgain = 5 * time.Millisecond

// sendOrder sends a message once there is room for it: a palyra-egress that doesn't read leaves
// some 280 orders waiting. Each caller waits for itself: in a write of the connection's they would
// wait for each other, and for nobody's ctx.
func sendOrder(ctx context.Context, control *net.UnixConn, msg, rights []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, opening, errors.New("it takes no orders"))
	defer cancel()
	raw, err := control.SyscallConn()
	if err != nil {
		return err
	}
	for {
		cerr := raw.Control(func(fd uintptr) {
			err = syscall.Sendmsg(int(fd), msg, rights, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
		})
		switch {
		case cerr != nil:
			return cerr
		case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR):
			return os.NewSyscallError("sendmsg", err)
		}
		select {
		case <-time.After(orderAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// receive reads the answer, then the evidence. It is the only reader, and ends with the session.
func (s *Session) receive(answered chan<- error) {
	defer close(s.done)
	defer s.conn.Close()
	r := bufio.NewReaderSize(s.conn, wire.MaxAnswer)
	a, err := readAnswer(r, "open an egress session")
	if err == nil && (len(a.Key) > 0) != (s.given != nil) {
		err = fault.New(fault.Internal, "internal", "open an egress session", errors.New("palyra-egress has a key and no use for it, or the other way round"))
	}
	s.key, s.authority = a.Key, a.Authority
	answered <- err
	if err != nil {
		return
	}
	if s.given != nil {
		_, err := readAnswer(r, "give palyra-egress its secrets")
		if err != nil {
			s.failed = err
		}
		s.given <- err
		if err != nil {
			return
		}
	}
	const op = "end an egress session"
	b, err := io.ReadAll(io.LimitReader(r, wire.MaxEvidence+1))
	if err == nil && len(b) == 0 {
		err = errors.New("palyra-egress ended before the call")
	}
	if err != nil {
		s.failed = lost(op, err)
		return
	}
	if s.last, err = wire.ParseEvidence(b); err != nil {
		s.failed = fault.New(fault.Internal, "internal", op, err)
	}
}

func readAnswer(r *bufio.Reader, op string) (a wire.Answer, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return a, lost(op, err)
	}
	if err := wire.Decode(line, &a, wire.MaxAnswer); err != nil || len(a.Authority) > wire.MaxAuthority {
		return a, fault.New(fault.Internal, "internal", op, cmp.Or(err, errors.New("an authority that is too long")))
	}
	return a, a.Error.Err()
}

// pair makes two connected unix sockets. The first doesn't block.
func pair(kind int, op string) (ours, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fault.New(fault.Unavailable, "resource_exhausted", op, err)
	}
	return os.NewFile(uintptr(fds[0]), "egress"), os.NewFile(uintptr(fds[1]), "egress"), nil
}

// connOf makes a connection of f, which it closes.
func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("is no unix socket")
	}
	return conn, nil
}

// Listener is where a palyra-egress that another service manager starts, and starts again,
// connects to this process. The newest connection is used.
type Listener struct {
	link
	l    *net.UnixListener
	done chan struct{} // closed when nothing is accepted any more
}

// returning is how long Open waits for a palyra-egress that is being started again.
const returning = 3 * time.Second

// Listen accepts connections of palyra-egress at l, a socket of type SOCK_SEQPACKET, which it takes
// over. Who may connect is a matter of the socket's mode.
func Listen(l *net.UnixListener) *Listener {
	b := &Listener{l: l, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		for {
			conn, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(10 * time.Millisecond) // out of descriptors; it's tried again
				continue
			}
			b.set(conn)
			go func() {
				conn.Read(make([]byte, 1)) // ends with the connection: palyra-egress never writes to it
				b.drop(conn)
			}()
		}
	}()
	return b
}

// Ready says by name if there is no palyra-egress. It waits for one that is being started again.
func (b *Listener) Ready(ctx context.Context) error {
	_, err := b.wait(ctx)
	return err
}

// Open returns a session for a call. It waits for a palyra-egress that is being started again.
func (b *Listener) Open(ctx context.Context, o *Order) (*Session, error) {
	conn, err := b.wait(ctx)
	if err != nil {
		return nil, err
	}
	return open(ctx, conn, o)
}

func (b *Listener) wait(ctx context.Context) (*net.UnixConn, error) {
	const op = "open an egress session"
	wait, cancel := context.WithTimeout(ctx, returning)
	defer cancel()
	for {
		conn, changed := b.current()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-changed:
		case <-b.done:
			return nil, lost(op, net.ErrClosed)
		case <-wait.Done():
			if ctx.Err() != nil {
				return nil, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
			}
			return nil, lost(op, errors.New("it isn't connected")).WithHint("systemctl status palyra-egress.service")
		}
	}
}

// Close accepts nothing more, and ends the connection with all sessions.
func (b *Listener) Close() error {
	err := b.l.Close()
	<-b.done
	b.link.close()
	return err
}

var _ Broker = (*Listener)(nil)

package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"palyra/internal/fault"
	"palyra/isolate/cell/spawn"
	"palyra/isolate/cell/wire"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
)

// Starter starts palyra-cells for a process that has given up the right to. It's a process of
// its own, "palyra-cell starter", made before that, and executes only its own binary. It is
// safe for concurrent use.
//
// It doesn't protect against a holder of the connection, who can have palyra-cells started and
// killed. They run nothing without a grant under the key that their client gave them, which is
// the holder's own.
type Starter struct {
	conn *net.UnixConn
	gone chan struct{} // closed when the other side has ended

	mu sync.Mutex // serialises requests
}

// NewStarter starts the palyra-cell at path as a starter. The starter and all that it started
// die with this process.
func NewStarter(path string) (*Starter, error) {
	ours, theirs, err := pair("start palyra-cell starter")
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: path, Args: []string{"palyra-cell", "starter"}, Env: []string{}, Dir: "/", Stderr: os.Stderr,
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true},
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is tied to this thread; see spawn
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
	}()
	err = <-started
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, spawn.StartError(path, err, false)
	}
	return newStarter(ours), nil
}

// DialStarter connects to another service's starter at a unix socket of type SOCK_SEQPACKET.
func DialStarter(socket string) (*Starter, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, fault.New(fault.Refused, "helper_unusable", fmt.Sprintf("connect to palyra-cell starter %q", socket), err).
			WithHint("systemctl status palyra-cell.service")
	}
	return newStarter(conn), nil
}

func newStarter(conn *net.UnixConn) *Starter {
	s := &Starter{conn: conn, gone: make(chan struct{})}
	// It ends with the connection: the starter never writes to it.
	go func() {
		defer close(s.gone)
		conn.Read(make([]byte, 1))
	}()
	return s
}

// Gone is closed when the starter has ended. It can start nothing then, and all that it started
// is dead.
func (s *Starter) Gone() <-chan struct{} { return s.gone }

// Close ends the starter and all that it started.
func (s *Starter) Close() error {
	err := s.conn.Close()
	<-s.gone
	return err
}

type lifeline struct{ conn *net.UnixConn }

// Kill asks the starter to kill the process.
func (l lifeline) Kill() error {
	_, err := l.conn.Write([]byte("kill"))
	return err
}

func (s *Starter) start(ctx context.Context, t tier.Tier, theirs *os.File) (killer, <-chan struct{}, error) {
	line, _, err := s.ask(ctx, "start palyra-cell through its starter", wire.StartRequest{Version: wire.Version(), Tier: t}, theirs)
	if err != nil {
		return nil, nil, err
	}
	gone := make(chan struct{})
	// It ends when the process was reaped or the starter died.
	go func() {
		defer close(gone)
		line.Read(make([]byte, 1))
		line.Close()
	}()
	return lifeline{line}, gone, nil
}

// Probe has the starter find out what the host can enforce; see package probe.
func (s *Starter) Probe(ctx context.Context) (*probe.Report, error) {
	const op = "probe the host through palyra-cell's starter"
	line, r, err := s.ask(ctx, op, wire.StartRequest{Version: wire.Version(), Probe: true})
	if err != nil {
		return nil, err
	}
	line.Close()
	if r.Report == nil {
		return nil, fault.New(fault.Internal, "internal", op, errors.New("the answer has no report"))
	}
	return r.Report, nil
}

// ask sends a request with files and a new lifeline, and waits for the answer.
func (s *Starter) ask(ctx context.Context, op string, r wire.StartRequest, files ...*os.File) (_ *net.UnixConn, _ *wire.StartReply, err error) {
	ours, far, err := pair(op)
	if err != nil {
		return nil, nil, err
	}
	defer far.Close()
	defer func() {
		if err != nil {
			ours.Close()
			if ctx.Err() != nil {
				err = fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
			}
		}
	}()
	gone := func(err error) error { return fault.New(fault.Unavailable, "helper_unusable", op, err) }
	msg, err := json.Marshal(r)
	if err != nil {
		return nil, nil, err
	}
	var fds []int
	for _, f := range append(files, far) {
		fds = append(fds, int(f.Fd()))
	}
	s.mu.Lock()
	_, _, err = s.conn.WriteMsgUnix(msg, syscall.UnixRights(fds...), nil)
	s.mu.Unlock()
	runtime.KeepAlive(files)
	if err != nil {
		return nil, nil, gone(err)
	}
	far.Close() // or we would not see the starter close its copy
	stop := context.AfterFunc(ctx, func() { ours.Close() })
	defer stop()
	buf := make([]byte, wire.MaxMessage)
	n, err := ours.Read(buf)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	var answer wire.StartReply
	if err == nil {
		err = wire.Decode(buf[:n], &answer)
	}
	if err != nil {
		return nil, nil, gone(err)
	}
	if err := answer.Error.Err(); err != nil {
		return nil, nil, err
	}
	return ours, &answer, nil
}

func pair(op string) (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fault.New(fault.Unavailable, "resource_exhausted", op, err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	ours, err := fileConn(os.NewFile(uintptr(fds[0]), "ours"))
	if err != nil {
		theirs.Close()
		return nil, nil, fault.New(fault.Internal, "internal", op, err)
	}
	return ours, theirs, nil
}

func fileConn(f *os.File) (*net.UnixConn, error) {
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

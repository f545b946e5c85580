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
	"palyra/isolate/probe"
	"palyra/isolate/tier"
)

// The protocol between palyrad and its starter: one SOCK_SEQPACKET connection.
// palyrad sends a startRequest with two descriptors, the socket that palyra-cell
// serves and one end of a lifeline. The starter starts itself anew as a
// palyra-cell, answers on the lifeline with one startReply and keeps it open
// until that process was reaped. A message or the end of file on the lifeline
// tells it to kill the process: a palyrad that dies closes them all.
//
// A request to probe has the lifeline only, and the answer a report: what can be
// enforced is for the process to say that makes the cells.

type startRequest struct {
	Version int       `json:"version"`
	Probe   bool      `json:"probe,omitempty"`
	Tier    tier.Tier `json:"tier"`
}

type startReply struct {
	Error  *wireErr      `json:"error,omitempty"`
	Report *probe.Report `json:"report,omitempty"` // to a probe
}

// Starter starts palyra-cells on behalf of a process that has given up the
// right to. It is a process of its own, "palyra-cell starter", made before that;
// it executes nothing but its own binary. It is safe for concurrent use.
//
// What it does not protect against: whoever holds the connection can have
// palyra-cells started and killed. They run nothing without a grant under the
// key that their client gave them, which is the holder's own.
type Starter struct {
	conn *net.UnixConn
	gone chan struct{} // closed when the other side has ended

	mu sync.Mutex // serialises requests
}

// NewStarter starts the palyra-cell at path as a starter. It dies with this
// process, and with it whatever it started.
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
		return nil, startError(path, err, false)
	}
	return newStarter(ours), nil
}

// DialStarter connects to the starter that another service runs at a unix
// socket of type SOCK_SEQPACKET.
func DialStarter(socket string) (*Starter, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, fault.New(fault.Refused, "starter_unreachable", fmt.Sprintf("connect to palyra-cell starter %q", socket), err).
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

// Gone is closed when the starter has ended: nothing can be started any more,
// and whatever it started is dead.
func (s *Starter) Gone() <-chan struct{} { return s.gone }

// Close ends the starter, and with it whatever it started.
func (s *Starter) Close() error {
	err := s.conn.Close()
	<-s.gone
	return err
}

// lifeline is a palyra-cell that a starter started.
type lifeline struct{ conn *net.UnixConn }

// Kill asks the starter to kill the process.
func (l lifeline) Kill() error {
	_, err := l.conn.Write([]byte("kill"))
	return err
}

func (s *Starter) start(ctx context.Context, t tier.Tier, theirs *os.File) (killer, <-chan struct{}, error) {
	line, _, err := s.ask(ctx, "start palyra-cell through its starter", startRequest{Version: wireVersion, Tier: t}, theirs)
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

// Probe finds out what the host can enforce, by having the starter try it; see
// package probe.
func (s *Starter) Probe(ctx context.Context) (*probe.Report, error) {
	const op = "probe the host through palyra-cell's starter"
	line, r, err := s.ask(ctx, op, startRequest{Version: wireVersion, Probe: true})
	if err != nil {
		return nil, err
	}
	line.Close()
	if r.Report == nil {
		return nil, fault.New(fault.Internal, "starter_protocol", op, errors.New("the answer has no report"))
	}
	return r.Report, nil
}

// ask sends a request with files and a new lifeline, and waits for the answer.
func (s *Starter) ask(ctx context.Context, op string, r startRequest, files ...*os.File) (_ *net.UnixConn, _ *startReply, err error) {
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
	gone := func(err error) error { return fault.New(fault.Unavailable, "starter_gone", op, err) }
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
	buf := make([]byte, maxMessage)
	n, err := ours.Read(buf)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	var answer startReply
	if err == nil {
		err = decode(buf[:n], &answer)
	}
	if err != nil {
		return nil, nil, gone(err)
	}
	if err := answer.Error.err(); err != nil {
		return nil, nil, err
	}
	return ours, &answer, nil
}

// pair makes a connection and returns our end and a file for the other one.
func pair(op string) (*net.UnixConn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fault.New(fault.Unavailable, "socketpair", op, err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	ours, err := fileConn(os.NewFile(uintptr(fds[0]), "ours"))
	if err != nil {
		theirs.Close()
		return nil, nil, fault.New(fault.Internal, "socketpair", op, err)
	}
	return ours, theirs, nil
}

// fileConn makes a connection of f, which it closes.
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

// ServeStarter is the main function of "palyra-cell starter". The descriptor is
// a connection, or a listening socket that a service manager opened: then each
// connection to it, by root or this user, is a palyrad. It returns when the
// connection has ended and all that it started is gone.
func ServeStarter(fd int) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	f := os.NewFile(uintptr(fd), "palyrad")
	if f == nil {
		return errors.New("palyra-cell starter is started by palyrad, which hands it a socket")
	}
	listening, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil {
		return fmt.Errorf("palyra-cell starter is started by palyrad, which hands it a socket: %w", err)
	}
	if listening == 0 {
		conn, err := fileConn(f)
		if err != nil {
			return fmt.Errorf("connection of palyrad: %w", err)
		}
		return serveStarter(conn, self)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("listening socket: %w", err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		conn, ok := c.(*net.UnixConn)
		if !ok || !trusted(conn) {
			c.Close()
			continue
		}
		// It ends with its connection; this process does not end before.
		go func() {
			if err := serveStarter(conn, self); err != nil {
				fmt.Fprintln(os.Stderr, "palyra-cell:", err)
			}
		}()
	}
}

// trusted reports whether root or this user is at the other end.
func trusted(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *syscall.Ucred
	raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	return err == nil && cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}

// rights returns the descriptors of a message, closed on exec.
func rights(oob []byte) ([]*os.File, error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return nil, fmt.Errorf("parse rights: %w", err)
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// serveStarter starts the binary at path for each request, until the connection
// ends; then it kills what is left and waits for it.
func serveStarter(conn *net.UnixConn, path string) error {
	var cells sync.WaitGroup
	defer cells.Wait()
	defer conn.Close()
	var lines sync.Map // *net.UnixConn of each that runs
	defer lines.Range(func(l, _ any) bool {
		l.(*net.UnixConn).CloseRead() // as if palyrad had closed its end
		return true
	})
	buf, oob := make([]byte, maxMessage), make([]byte, 1024)
	for {
		n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return nil // palyrad is gone or done
		}
		if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
			return errors.New("request of palyrad does not fit")
		}
		files, err := rights(oob[:oobn])
		if err != nil {
			return err
		}
		var r startRequest
		want := 2
		if err = decode(buf[:n], &r); r.Probe {
			want = 1
		}
		if err != nil || r.Version != wireVersion || len(files) != want {
			closeAll(files)
			return fmt.Errorf("request of palyrad: version %d with %d descriptors: %v", r.Version, len(files), err)
		}
		line, err := fileConn(files[want-1])
		if err != nil {
			closeAll(files[:want-1])
			return fmt.Errorf("lifeline: %w", err)
		}
		lines.Store(line, nil)
		cells.Go(func() {
			if r.Probe {
				look(line, path)
			} else {
				attend(line, path, r.Tier, files[0])
			}
			lines.Delete(line)
		})
	}
}

// look probes the host and answers.
func look(line *net.UnixConn, path string) {
	defer line.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// It ends with the line, which is closed here or by palyrad.
	go func() {
		line.Read(make([]byte, 16))
		cancel()
	}()
	r, err := probe.Run(ctx, path)
	b, merr := json.Marshal(startReply{Error: toWire(err), Report: r})
	if merr != nil {
		panic("cell: internal error: " + merr.Error())
	}
	line.Write(b) // a palyrad that is gone needs no answer
}

// attend starts one palyra-cell and stays with it until it was reaped.
func attend(line *net.UnixConn, path string, t tier.Tier, theirs *os.File) {
	defer line.Close()
	proc, gone, err := spawn(path, t, theirs)
	theirs.Close()
	b, merr := json.Marshal(startReply{Error: toWire(err)})
	if merr != nil {
		panic("cell: internal error: " + merr.Error())
	}
	_, werr := line.Write(b)
	if err != nil {
		return
	}
	if werr != nil {
		proc.Kill()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		line.Read(make([]byte, 16)) // "kill", or the end of palyrad
		proc.Kill()
	}()
	<-gone
	line.CloseRead()
	<-done
}

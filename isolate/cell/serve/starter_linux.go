package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/cell/spawn"
	"palyra/isolate/cell/wire"
	"palyra/isolate/internal/sys"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
)

// Starter is the main function of "palyra-cell starter". The descriptor is a connection, or a
// listening socket that a service manager opened; each connection to that, by root or this
// user, is a palyrad. Starter returns when the connection has ended and all that it started is
// gone.
func Starter(fd int) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	listening, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil {
		return fmt.Errorf("palyra-cell starter is started by palyrad, which hands it a socket: %w", err)
	}
	if listening == 0 {
		conn, err := newSocket(fd, "palyrad")
		if err != nil {
			return fmt.Errorf("connection of palyrad: %w", err)
		}
		return serveStarter(conn, self)
	}
	l, err := newSocket(fd, "listener")
	if err != nil {
		return fmt.Errorf("listening socket: %w", err)
	}
	defer l.Close()
	return acceptAll(l, func(conn *socket) {
		if err := serveStarter(conn, self); err != nil {
			fmt.Fprintln(os.Stderr, "palyra-cell:", err)
		}
	}, func(err error) { fmt.Fprintln(os.Stderr, "palyra-cell: accept, which goes on:", err) })
}

// The pauses after errors of accept.
const (
	pauseFirst = 5 * time.Millisecond
	pauseMost  = time.Second
)

// acceptAll gives each connection by root or this user to serve, in a goroutine that ends with the
// connection. Only the listener's end ends it: the cells of palyrads that are connected depend on
// this process. After any other error it tries again, later and later, and notes the first of a
// row.
func acceptAll(l *socket, serve func(*socket), note func(error)) error {
	var pause time.Duration
	for {
		conn, err := l.accept()
		if err != nil {
			if _, gone := l.Stat(); errors.Is(gone, os.ErrClosed) { // raw calls have an error of their own
				return fmt.Errorf("accept: %w", gone)
			}
			if pause == 0 {
				note(err)
			}
			pause = min(max(2*pause, pauseFirst), pauseMost)
			time.Sleep(pause)
			continue
		}
		pause = 0
		if !conn.trusted() {
			conn.Close()
			continue
		}
		go serve(conn)
	}
}

// socket is a unix socket as a file that Go's poller waits for. Package net would bring more
// than palyra-cell needs.
type socket struct {
	*os.File
	raw syscall.RawConn
}

// newSocket makes a socket of fd and takes fd over.
func newSocket(fd int, name string) (*socket, error) {
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("fcntl F_SETFL: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &socket{f, raw}, nil
}

// wait repeats a call for as long as it returns EAGAIN, waiting in between.
func (s *socket) wait(call func(fd int) error) error {
	var err error
	rerr := s.raw.Read(func(fd uintptr) bool {
		for err = call(int(fd)); err == syscall.EINTR; {
			err = call(int(fd))
		}
		return err != syscall.EAGAIN
	})
	return cmp.Or(rerr, err)
}

func (s *socket) accept() (*socket, error) {
	for {
		fd := -1
		err := s.wait(func(l int) (err error) {
			fd, _, err = syscall.Accept4(l, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			return err
		})
		if err == syscall.ECONNABORTED {
			continue
		}
		if err != nil {
			return nil, err
		}
		return newSocket(fd, "palyrad")
	}
}

// receive receives a message; n is 0 at the end.
func (s *socket) receive(buf, oob []byte) (n, oobn, flags int, err error) {
	err = s.wait(func(fd int) (err error) {
		n, oobn, flags, _, err = syscall.Recvmsg(fd, buf, oob, syscall.MSG_CMSG_CLOEXEC)
		return err
	})
	return n, oobn, flags, err
}

// closeRead makes readers here see the end, as if the other side had closed it.
func (s *socket) closeRead() {
	s.raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RD) })
}

// trusted reports whether root or this user is at the other end.
func (s *socket) trusted() bool {
	var cred *syscall.Ucred
	var err error
	cerr := s.raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	return cerr == nil && err == nil && cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}

// rights returns the descriptors of a message.
func rights(oob []byte) (all []int, err error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	for _, m := range msgs {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			sys.CloseAll(all)
			return nil, fmt.Errorf("parse rights: %w", err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

// serveStarter starts the binary at path for each request until the connection ends. Then it
// kills the remaining cells and waits for them.
func serveStarter(conn *socket, path string) error {
	var cells sync.WaitGroup
	defer cells.Wait()
	defer conn.Close()
	var lines sync.Map // *socket of each running cell
	defer lines.Range(func(l, _ any) bool {
		l.(*socket).closeRead() // as if palyrad had closed its end
		return true
	})
	buf, oob := make([]byte, wire.MaxMessage), make([]byte, 1024)
	for {
		n, oobn, flags, err := conn.receive(buf, oob)
		if err != nil || n == 0 {
			return nil // palyrad is gone or done
		}
		if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
			return errors.New("request of palyrad does not fit")
		}
		fds, err := rights(oob[:oobn])
		if err != nil {
			return err
		}
		var r wire.StartRequest
		want := 2
		if err = wire.Decode(buf[:n], &r); r.Probe {
			want = 1
		}
		if err != nil || r.Version != wire.Version() || len(fds) != want {
			sys.CloseAll(fds)
			return fmt.Errorf("request of palyrad: version %d with %d descriptors: %v", r.Version, len(fds), err)
		}
		line, err := newSocket(fds[want-1], "lifeline")
		if err != nil {
			sys.CloseAll(fds[:want-1])
			return fmt.Errorf("lifeline: %w", err)
		}
		lines.Store(line, nil)
		cells.Go(func() {
			if r.Probe {
				look(line, path)
			} else {
				attend(line, path, r.Tier, os.NewFile(uintptr(fds[0]), "palyrad"))
			}
			lines.Delete(line)
		})
	}
}

func look(line *socket, path string) {
	defer line.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// It ends with the line, which this function or palyrad closes.
	go func() {
		line.Read(make([]byte, 16))
		cancel()
	}()
	r, err := probe.Run(ctx, path)
	b, merr := json.Marshal(wire.StartReply{Error: fault.MessageOf(err), Report: r})
	if merr != nil {
		panic("cell: internal error: " + merr.Error())
	}
	line.Write(b) // a palyrad that is gone needs no answer
}

// attend starts one palyra-cell and stays with it until it has been reaped.
func attend(line *socket, path string, t tier.Tier, theirs *os.File) {
	defer line.Close()
	proc, gone, err := spawn.Start(path, t, theirs)
	theirs.Close()
	b, merr := json.Marshal(wire.StartReply{Error: fault.MessageOf(err)})
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
	line.closeRead()
	<-done
}

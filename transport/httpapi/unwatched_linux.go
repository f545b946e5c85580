package httpapi

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unixListener accepts connections to the unix socket. The kernel counts epoll's watches by
// user (fs.epoll.max_user_watches), and programs in the cells of a palyra-cell that isn't root
// are of its user. When they have taken all, package net refuses a connection (ENOSPC) and an
// owner's is served by threads that wait for it.
type unixListener struct {
	net.Listener
	file     *os.File // the same socket, to wait for
	raw      syscall.RawConn
	owner    func(uid uint32) bool
	patience time.Duration                    // with a client that doesn't read
	conn     func(*os.File) (net.Conn, error) // net.FileConn
	threads  chan struct{}                    // holds one for each connection without a watch

	mu      sync.Mutex
	closed  bool
	pending *os.File // accepted; it waits for a descriptor for package net
}

// unwatchedMost bounds the connections without a watch. Each has two threads.
const unwatchedMost = 4

// listenUnix returns l, or if it is a unix socket one that has threads for owners.
func listenUnix(l net.Listener, owner func(uid uint32) bool, patience time.Duration) (net.Listener, error) {
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return l, nil
	}
	f, err := ul.File()
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &unixListener{Listener: l, file: f, raw: raw, owner: owner, patience: patience, conn: net.FileConn, threads: make(chan struct{}, unwatchedMost)}, nil
}

// Close closes the socket and ends Accept.
func (l *unixListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.pending.Close() // nil is an error that doesn't matter
	return errors.Join(l.file.Close(), l.Listener.Close())
}

// Accept returns the next connection.
func (l *unixListener) Accept() (net.Conn, error) {
	f, err := l.take()
	if err != nil {
		return nil, err
	}
	c, err := l.conn(f)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		l.keep(f)
		return nil, err
	}
	if errors.Is(err, syscall.ENOSPC) {
		if uid, _, perr := peerCredentials(f); perr == nil && l.owner(uid) {
			select {
			case l.threads <- struct{}{}:
				return l.unwatched(f), nil
			default:
			}
		}
	}
	f.Close()
	if err != nil {
		return nil, dropped{err}
	}
	return c, nil
}

// keep keeps a connection for the next Accept.
func (l *unixListener) keep(f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		f.Close()
		return
	}
	l.pending = f
}

// take takes the connection that waits, or one from the queue.
func (l *unixListener) take() (*os.File, error) {
	l.mu.Lock()
	f := l.pending
	l.pending = nil
	l.mu.Unlock()
	if f != nil {
		return f, nil
	}
	fd := -1
	var err error
	rerr := l.raw.Read(func(s uintptr) bool {
		for err = syscall.EINTR; err == syscall.EINTR || err == syscall.ECONNABORTED; {
			fd, _, err = syscall.Accept4(int(s), syscall.SOCK_CLOEXEC)
		}
		return err != syscall.EAGAIN
	})
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if rerr != nil && closed { // the error of a file that is closed is internal/poll's
		return nil, net.ErrClosed
	}
	if err = errors.Join(rerr, err); err != nil {
		return nil, os.NewSyscallError("accept4", err)
	}
	return os.NewFile(uintptr(fd), "connection"), nil // it blocks: it takes no watch
}

// unwatched is a connection that net.Pipe and two threads join to its socket.
type unwatched struct {
	net.Conn
	socket syscall.RawConn
}

// SyscallConn is for peerCredentials.
func (c *unwatched) SyscallConn() (syscall.RawConn, error) { return c.socket, nil }

func (l *unixListener) unwatched(f *os.File) net.Conn {
	ours, theirs := net.Pipe()
	c := &unwatched{Conn: ours}
	c.socket, _ = f.SyscallConn() // f is not nil
	wait := unix.NsecToTimeval(l.patience.Nanoseconds())
	control := func(do func(fd int)) { _ = c.socket.Control(func(fd uintptr) { do(int(fd)) }) }
	control(func(fd int) {
		_ = syscall.SetNonblock(fd, false) // package net has tried
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)
	})
	read := make(chan struct{})
	// It ends with the connection, or when the other one shuts the socket down.
	go func() {
		defer close(read)
		_, _ = io.Copy(theirs, f)
		theirs.Close()
	}()
	// It ends when ours or theirs is closed, or the client doesn't read.
	go func() {
		_, _ = io.Copy(f, theirs)
		theirs.Close()
		control(func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
		<-read
		f.Close()
		<-l.threads
	}()
	return c
}

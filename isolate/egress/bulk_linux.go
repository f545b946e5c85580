package egress

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

// TLS reads and writes records of 16 KiB. A turn of the scheduler for each on either side makes
// 64 MiB of an inspected answer take three times as long as bulks do, on a machine with idle
// processors: each has to be woken. Bulks have what is encrypted, never what it says.

// bulk returns one of the bulks of all calls, nil if there is none for this one's owner.
func (s *session) bulk() *buffer {
	hold, err := s.srv.bulks.Take(s.owner, 1)
	if err != nil {
		return nil
	}
	b := bulksOf.Get().(*buffer)
	b.hold = hold
	return b
}

// record is the size from which on a read may have more behind it.
const record = 16 << 10

// ahead is what was read of a host's connection, and isn't asked for yet. It's one reader's, and
// close's.
type ahead struct {
	full bool // the last read had a record or more; of the reader

	mu     sync.Mutex
	buf    *buffer // guarded by mu; nil: nothing is ahead
	rest   []byte  // guarded by mu; of buf
	closed bool    // guarded by mu
}

// next takes what is ahead.
func (a *ahead) next(b []byte) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := copy(b, a.rest)
	if a.rest = a.rest[n:]; len(a.rest) == 0 && a.buf != nil {
		a.buf.release()
		a.buf = nil
	}
	return n
}

func (a *ahead) keep(buf *buffer, n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		buf.release()
		return net.ErrClosed
	}
	a.buf, a.rest = buf, buf.b[:n]
	return nil
}

func (a *ahead) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed, a.rest = true, nil
	if a.buf != nil {
		a.buf.release()
		a.buf = nil
	}
}

// Read reads a bulk ahead if there may be much to read. A bulk is taken when there is something: a
// silent host holds none.
func (c *hostConn) Read(b []byte) (n int, err error) {
	if n := c.next(b); n > 0 || len(b) == 0 {
		return n, nil
	}
	c.h.flush()
	if !c.full {
		n, err = c.TCPConn.Read(b)
		c.full = n == len(b) || n >= record
		return n, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var buf *buffer
	rerr := raw.Read(func(fd uintptr) bool {
		into := b
		if buf = c.h.s.bulk(); buf != nil {
			into = buf.b
		}
		for n, err = syscall.Read(int(fd), into); err == syscall.EINTR; {
			n, err = syscall.Read(int(fd), into)
		}
		if buf != nil && n <= 0 {
			buf.release()
			buf = nil
		}
		return err != syscall.EAGAIN
	})
	n = max(n, 0)
	c.full = n >= record
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
	case n == 0:
		return 0, io.EOF
	case buf == nil:
		return n, nil
	}
	if err := c.keep(buf, n); err != nil {
		return 0, err
	}
	return c.next(b), nil
}

// gathered is what waits to be written to a program, while an answer passes: what reads the host
// writes it before it waits, so that nothing stays.
type gathered struct {
	s *session

	out     sync.Mutex
	passing bool    // guarded by out
	buf     *buffer // guarded by out; nil: nothing waits
	n       int     // guarded by out; what waits in buf
	err     error   // guarded by out; why what waited wasn't written
}

// pass says that an answer begins or ends to pass.
func (m *metered) pass(on bool) {
	m.out.Lock()
	defer m.out.Unlock()
	m.passing = on
	if !on {
		m.flushLocked()
	}
}

func (m *metered) flush() {
	m.out.Lock()
	defer m.out.Unlock()
	m.flushLocked()
}

func (m *metered) flushLocked() {
	if m.buf == nil {
		return
	}
	_, m.err = m.send(m.buf.b[:m.n])
	m.buf.release()
	m.buf, m.n = nil, 0
}

// Write writes b, or has it wait while an answer passes.
func (m *metered) Write(b []byte) (int, error) {
	m.out.Lock()
	defer m.out.Unlock()
	if m.buf != nil && len(m.buf.b)-m.n < len(b) {
		m.flushLocked()
	}
	if m.err != nil {
		return 0, m.err
	}
	if m.passing && m.buf == nil && len(b) <= bulk {
		m.buf = m.s.bulk()
	}
	if m.buf == nil {
		return m.send(b)
	}
	m.n += copy(m.buf.b[m.n:], b)
	return len(b), nil
}

// stop gives back what no write comes for any more.
func (g *gathered) stop() {
	g.out.Lock()
	defer g.out.Unlock()
	if g.buf != nil {
		g.buf.release()
		g.buf, g.n = nil, 0
	}
	g.err = errors.New("the connection has ended")
}

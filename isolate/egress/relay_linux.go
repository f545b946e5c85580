package egress

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"palyra/internal/budget"
	"palyra/isolate/egress/inspect"
	"palyra/isolate/evidence"
)

// How much of one direction is on its way, in bytes. A direction whose last read filled a chunk
// gets a bulk while there are some: on a busy machine each read costs a turn of the scheduler, and
// 64 MiB took 1.7 times as long as without palyra-egress by bulks of 1 MiB, 2.5 by chunks. Copying
// is a tenth of what palyra-egress does for them.
const (
	chunk = 64 << 10
	bulk  = 1 << 20
	bulks = 32 // of all calls
)

var chunksOf, bulksOf = poolOf(chunk), poolOf(bulk)

func poolOf(size int) *sync.Pool {
	return &sync.Pool{New: func() any { return &buffer{b: make([]byte, size)} }}
}

// buffer is what one read goes into.
type buffer struct {
	b    []byte
	hold *budget.Hold // nil: it's a chunk
}

func (b *buffer) release() {
	if b.hold == nil {
		chunksOf.Put(b)
		return
	}
	b.hold.Release()
	b.hold = nil
	bulksOf.Put(b)
}

// The buffers of the host's socket. Both would otherwise grow to megabytes for a side that doesn't
// read.
const (
	window  = 1 << 20   // that the host may fill ahead of the program
	notSent = 256 << 10 // that may wait for the host
)

// side is one of a relay's two sockets.
type side struct {
	conn  *net.TCPConn
	raw   syscall.RawConn
	reset string // the outcome if this side breaks off
}

func newSide(c *net.TCPConn, reset string) (*side, error) {
	raw, err := c.SyscallConn()
	return &side{c, raw, reset}, err
}

// relay passes bytes between the program's socket and the host's.
type relay struct {
	program, host *side
	idle          time.Duration
	early         []byte // of the program, to be passed first
	sent          direction
	received      direction
	bulks         *budget.Pool
	owner         budget.Owner // of bulks

	active atomic.Int64 // when a byte last passed, in the time of began
	began  time.Time
	all    atomic.Int32 // sides that had said all, before the other heard of it

	once    sync.Once
	outcome string // set once, before both sockets are closed, as is limit
	limit   string // that cut it off, "" for none
}

// direction counts what passes one way.
type direction struct {
	left  []allowance   // what may still pass this way
	total *atomic.Int64 // what the call has passed
	n     atomic.Int64  // what this connection has passed
	tap   func([]byte)  // sees what passed until it is nil; of the direction's goroutine
	full  bool          // the last read had a chunk or more; of the direction's goroutine

	watch  *inspect.Stream   // of the direction's goroutine; nil: finds nothing
	leaked func(name string) // is told what watch finds
}

// take returns how much of n may pass, and the limit that keeps the rest.
func (d *direction) take(n int) (may int, limit string) {
	may = n
	for i, a := range d.left {
		if got := a.take(may); got < may {
			d.give(d.left[:i], may-got)
			may, limit = got, a.limit
		}
	}
	return may, limit
}

func (d *direction) give(back []allowance, n int) {
	for _, a := range back {
		a.left.Add(int64(n))
	}
}

// pay counts n of what was taken as passed, and gives back the rest.
func (d *direction) pay(taken, n int) {
	d.n.Add(int64(n))
	d.total.Add(int64(n))
	if taken > n {
		d.give(d.left, taken-n)
	}
}

// newRelay takes both connections over.
func newRelay(program, host *net.TCPConn, idle time.Duration) (*relay, error) {
	p, err := newSide(program, evidence.ConnReset)
	if err != nil {
		return nil, err
	}
	h, err := newSide(host, evidence.ConnResetByPeer)
	if err != nil {
		return nil, err
	}
	return &relay{program: p, host: h, idle: idle, began: time.Now()}, nil
}

// run passes bytes until both directions have ended or one is broken off, and closes both
// connections.
func (r *relay) run(ctx context.Context) string {
	stop := context.AfterFunc(ctx, func() {
		if r.all.Load() < 2 { // else run is about to end
			r.abort(evidence.ConnEnded, "")
		}
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		if r.forward(r.early, r.host, &r.sent) {
			r.pass(r.program, r.host, &r.sent)
		}
	})
	r.pass(r.host, r.program, &r.received)
	wg.Wait()
	r.once.Do(func() {
		r.outcome = evidence.ConnClosed
		r.program.conn.Close()
		r.host.conn.Close()
	})
	return r.outcome
}

// abort breaks both connections off, for a limit if the outcome is that.
func (r *relay) abort(outcome, limit string) {
	r.once.Do(func() {
		r.outcome, r.limit = outcome, limit
		breakOff(r.program.conn)
		breakOff(r.host.conn)
	})
}

// breakOff closes a connection with a reset.
func breakOff(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// pass passes bytes from one side to the other until the first ends, which it tells the other.
func (r *relay) pass(from, to *side, d *direction) {
	for {
		buf, n, err := r.read(from, d)
		switch {
		case err != nil:
			r.abort(r.why(err, from), "")
			return
		case n == 0:
			r.all.Add(1)
			if err := to.conn.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
				r.abort(r.why(err, to), "")
			}
			return
		}
		ok := r.forward(buf.b[:n], to, d)
		buf.release()
		if !ok {
			return
		}
	}
}

// forward passes b on, as much as may pass. Otherwise it breaks the connection off.
func (r *relay) forward(b []byte, to *side, d *direction) bool {
	if name := d.watch.Next(b); name != "" {
		d.leaked(name)
		r.abort(evidence.ConnEnded, "")
		return false
	}
	may, limit := d.take(len(b))
	passed, err := r.write(to, b[:may])
	d.pay(may, passed)
	if d.tap != nil {
		d.tap(b[:passed])
	}
	switch {
	case err != nil:
		r.abort(r.why(err, to), "")
	case may < len(b):
		r.abort(evidence.ConnLimit, limit)
	default:
		return true
	}
	return false
}

// why names an error of a side.
func (r *relay) why(err error, s *side) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return evidence.ConnIdle
	}
	return s.reset
}

// read waits for bytes of a side, and takes a buffer only when there are some: a silent connection
// holds none. n is 0 at the end.
func (r *relay) read(s *side, d *direction) (buf *buffer, n int, err error) {
	for {
		s.conn.SetReadDeadline(r.deadline())
		rerr := s.raw.Read(func(fd uintptr) bool {
			b := r.buffer(d)
			for n, err = syscall.Read(int(fd), b.b); err == syscall.EINTR; {
				n, err = syscall.Read(int(fd), b.b)
			}
			if err == nil && n > 0 {
				buf = b
				return true
			}
			b.release()
			return err != syscall.EAGAIN
		})
		if err == nil || rerr != nil {
			err = rerr
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Until(r.deadline()) > 0 {
			continue // the other direction isn't silent
		}
		if n > 0 {
			r.touch()
		}
		d.full = n >= chunk
		return buf, max(n, 0), err
	}
}

// buffer returns one for the next read of a direction.
func (r *relay) buffer(d *direction) *buffer {
	if d.full {
		if hold, err := r.bulks.Take(r.owner, 1); err == nil {
			b := bulksOf.Get().(*buffer)
			b.hold = hold
			return b
		}
	}
	return chunksOf.Get().(*buffer)
}

// write passes all of b on, unless nothing passes in either direction for too long.
func (r *relay) write(s *side, b []byte) (n int, err error) {
	for n < len(b) {
		s.conn.SetWriteDeadline(r.deadline())
		var m int
		m, err = s.conn.Write(b[n:])
		n += m
		if m > 0 {
			r.touch()
		}
		if err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && time.Until(r.deadline()) > 0) {
			return n, err
		}
	}
	return n, nil
}

func (r *relay) touch() { r.active.Store(int64(time.Since(r.began))) }

// deadline is when the connection has been silent for too long.
func (r *relay) deadline() time.Time { return r.began.Add(time.Duration(r.active.Load()) + r.idle) }

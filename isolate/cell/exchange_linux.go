package cell

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/cell/wire"
	"palyra/isolate/internal/sys"
)

// question is a request that was sent. Client.mu guards its fields, except mark.
type question struct {
	id       uint64
	due      time.Time     // when the answer is overdue; zero is never
	late     int           // times that it was overdue
	asksFor  *question     // if not nil, this only asks whether palyra-cell responds, on behalf of that one
	lost     error         // why no answer will come
	turn     chan struct{} // holds one: look again
	answered bool
	answer   string // the message

	// mark is the asking message's mark; 0 if others were being sent at the time. Only the
	// caller of await uses it.
	mark uint64
}

// errUnread says that palyra-cell died with the request still in its queue.
var errUnread = errors.New("palyra-cell died before it took the call")

// send sends a message and returns its mark. Messages with higher marks are behind it in the
// queue, all others before it. A mark of 0 says that others were being sent and may be on
// either side. After an error nothing was sent: the kernel queues a message whole or not at
// all.
func (c *Client) send(msg []byte, fds []int) (mark uint64, err error) {
	return c.sendBy(func(fd int) error { return sys.SendPacket(fd, msg, fds) })
}

// trySend is send for callers that must not wait until palyra-cell reads.
func (c *Client) trySend(msg []byte) error {
	_, err := c.sendBy(func(fd int) error { return sys.TrySendPacket(fd, msg, nil) })
	return err
}

func (c *Client) sendBy(do func(fd int) error) (mark uint64, err error) {
	mark = c.begun.Add(1)
	alone := c.sent.Load() == mark-1
	cerr := c.raw.Control(func(fd uintptr) { err = do(int(fd)) })
	c.sent.Add(1)
	if !alone {
		mark = 0
	}
	if cerr != nil {
		return 0, cerr
	}
	return mark, err
}

func (c *Client) receive() (msg string, err error) {
	cerr := c.raw.Control(func(fd uintptr) {
		var n int
		if n, _, err = sys.ReceivePacket(int(fd), c.buf, nil); err == nil && n == 0 {
			err = io.EOF
		}
		msg = string(c.buf[:n])
	})
	if cerr != nil {
		return "", cerr
	}
	return msg, err
}

// shutdown ends the connection, also for callers that wait in it.
func (c *Client) shutdown() {
	c.raw.Control(func(fd uintptr) { sys.Shutdown(int(fd)) })
}

// put sends the message that msg makes of its id. due bounds palyra-cell's time to answer; zero
// is no bound.
func (c *Client) put(due time.Duration, fds []int, msg func(id uint64) ([]byte, error)) (id uint64, q *question, err error) {
	q = &question{turn: make(chan struct{}, 1)}
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		return 0, nil, c.dead
	}
	c.nextID++
	id = c.nextID
	q.id = id
	c.pending[id] = q
	if due > 0 {
		c.expectLocked(q, due)
	}
	c.mu.Unlock()

	b, err := msg(id)
	if err == nil {
		q.mark, err = c.send(b, fds)
	}
	if err != nil {
		c.mu.Lock()
		delete(c.pending, id)
		c.emptyLocked()
		c.passOnLocked() // the reading, if it was this one's turn
		c.mu.Unlock()
		return 0, nil, errDied(fault.Internal, "send to palyra-cell", err)
	}
	return id, q, nil
}

// expectLocked bounds the time until q's answer.
func (c *Client) expectLocked(q *question, within time.Duration) {
	q.due = time.Now().Add(within)
	// An alarm that is set stays: when it fires, it looks for overdue questions. So an answered
	// call costs no timer.
	if c.alarm.IsZero() || q.due.Before(c.alarm) {
		c.alarm = q.due
		if c.overdue == nil {
			c.overdue = time.AfterFunc(within, c.ring)
		} else {
			c.overdue.Reset(within)
		}
	}
}

// ring is called when an answer is overdue. It first cancels the run that owes it. If that
// brings no answer, it asks palyra-cell for any. A palyra-cell that answers is well but can't
// end that one run, as when a file system hangs: the run's caller gets an error, and nothing
// else is touched. One that doesn't answer is killed with all that it runs, and every question
// then fails with ErrDied.
func (c *Client) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, next := time.Now(), time.Time{}
	var asks []*question
	for _, q := range c.pending {
		if q.due.IsZero() {
			continue
		}
		if !q.due.After(now) {
			if q.asksFor != nil {
				c.proc.Kill()
				continue
			}
			// If it can't be sent it isn't answered, and the next step follows.
			if q.late++; q.late == 1 {
				q.due = now.Add(answerGrace)
				_ = c.trySend(binary.LittleEndian.AppendUint64([]byte{wire.OpCancel}, q.id))
			} else {
				q.due = time.Time{}
				asks = append(asks, q)
				continue
			}
		}
		if next.IsZero() || q.due.Before(next) {
			next = q.due
		}
	}
	for _, q := range asks {
		c.nextID++
		c.pending[c.nextID] = &question{id: c.nextID, asksFor: q, due: now.Add(answerGrace), turn: make(chan struct{}, 1)}
		if next.IsZero() {
			next = now.Add(answerGrace)
		}
		if b, err := json.Marshal(wire.Request{Op: "stats", ID: c.nextID}); err == nil {
			_ = c.trySend(append([]byte{wire.OpQuery}, b...))
		}
	}
	if c.alarm = next; !next.IsZero() {
		c.overdue.Reset(time.Until(next))
	}
}

// await waits for the answer to q. Meanwhile it reads for the others, if no other caller does.
func (c *Client) await(q *question) (string, error) {
	for {
		c.mu.Lock()
		switch {
		case q.answered:
			c.mu.Unlock()
			return q.answer, nil
		case q.lost != nil:
			c.passOnLocked()
			c.mu.Unlock()
			return "", q.lost
		case c.dead != nil:
			err := errors.New("palyra-cell died during the run")
			if q.mark != 0 && q.mark == c.unread {
				err = errUnread
			}
			c.mu.Unlock()
			return "", errDied(fault.Internal, "run in palyra-cell", err)
		case c.reading:
			c.mu.Unlock()
			<-q.turn
			continue
		}
		c.reading = true
		c.mu.Unlock()
		msg, err := c.receive()
		id, bad := answerID(msg)
		if err == nil {
			err = bad
		}
		c.mu.Lock()
		c.reading = false
		if err != nil {
			c.dead = errDied(fault.Internal, "read from palyra-cell", err)
			if errors.Is(err, syscall.ECONNRESET) {
				// The kernel closed its socket with messages in its queue (unix_release_sock in
				// net/unix/af_unix.c), the last of which is the last sent.
				c.unread = c.begun.Load()
			}
			for _, other := range c.pending {
				other.wake()
			}
		} else if a := c.pending[id]; a != nil {
			delete(c.pending, id)
			a.answered, a.answer = true, msg
			a.wake()
			c.settleLocked(a)
			c.emptyLocked()
		}
		if q.answered || q.lost != nil {
			c.passOnLocked()
		}
		c.mu.Unlock()
	}
}

// settleLocked ends the questions that depend on an answered one. If that asked whether
// palyra-cell responds, the run that it asked for can't be ended; if it's a run, the questions
// asked on its behalf are moot.
func (c *Client) settleLocked(a *question) {
	if x := a.asksFor; x != nil {
		delete(c.pending, x.id)
		x.lost = fault.New(fault.Internal, "cell_died", "run in palyra-cell", errors.New("the call does not end, though it was killed"))
		x.wake()
		return
	}
	for id, other := range c.pending {
		if other.asksFor == a {
			delete(c.pending, id)
		}
	}
}

// passOnLocked wakes a waiting caller to read from here on, if there is one.
func (c *Client) passOnLocked() {
	for _, other := range c.pending {
		if other.asksFor == nil { // else no caller waits for it
			other.wake()
			return
		}
	}
}

func (q *question) wake() {
	select {
	case q.turn <- struct{}{}:
	default:
	}
}

func answerID(msg string) (uint64, error) {
	switch {
	case len(msg) >= 9 && msg[0] == wire.OpResult:
		return binary.LittleEndian.Uint64([]byte(msg[1:9])), nil
	case len(msg) > 0 && msg[0] == wire.OpReply:
		var r struct {
			ID uint64 `json:"id"`
		}
		err := wire.Decode([]byte(msg[1:]), &r)
		return r.ID, err
	}
	return 0, wire.ErrCodec
}

func parseReply(msg string) (r wire.Reply, err error) {
	if msg[0] == wire.OpResult {
		r.Result, err = wire.ParseResult(msg[9:])
		return r, err
	}
	err = wire.Decode([]byte(msg[1:]), &r)
	return r, err
}

// later waits for an answer, or for ctx to be done. A late answer is dropped.
func (c *Client) later(ctx context.Context, op string, q *question) (wire.Reply, error) {
	type result struct {
		r   wire.Reply
		err error
	}
	done := make(chan result, 1)
	go func() {
		msg, err := c.await(q)
		var r wire.Reply
		if err == nil {
			r, err = parseReply(msg)
		}
		done <- result{r, err}
	}()
	select {
	case x := <-done:
		return x.r, x.err
	case <-ctx.Done():
		return wire.Reply{}, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	}
}

package cell

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"time"

	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
)

// question is a request that was sent. Its fields are guarded by Client.mu but
// where they say otherwise.
type question struct {
	due      time.Time     // when palyra-cell is killed for want of an answer
	turn     chan struct{} // holds one: look again
	answered bool
	answer   string // the message
	cell     string // the message that came before it; may be empty

	// Of who awaits the answer alone.
	mark  uint64             // of the message that asks; 0: others were under way when it was sent
	known *evidence.Evidence // of cell
}

// errUnread says that a request never reached palyra-cell: it died with that in its
// queue.
var errUnread = errors.New("palyra-cell died before it took the call")

// send sends a message, and returns its mark: messages of higher marks are behind it
// in the queue, and all others before it. 0 says that others were being sent, which
// may be on either side. After an error nothing was sent: a message is queued as
// a whole or not at all.
func (c *Client) send(msg []byte, fds []int) (mark uint64, err error) {
	mark = c.begun.Add(1)
	alone := c.sent.Load() == mark-1
	cerr := c.raw.Control(func(fd uintptr) { err = sys.SendPacket(int(fd), msg, fds) })
	c.sent.Add(1)
	if !alone {
		mark = 0
	}
	if cerr != nil {
		return 0, cerr
	}
	return mark, err
}

// receive receives the next message. The end of the connection is an error.
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

// shutdown ends the connection for whoever waits in it.
func (c *Client) shutdown() {
	c.raw.Control(func(fd uintptr) { sys.Shutdown(int(fd)) })
}

// put sends a message that msg makes of its id. due is how long palyra-cell may
// take to answer; zero is for ever.
func (c *Client) put(due time.Duration, fds []int, msg func(id uint64) ([]byte, error)) (id uint64, q *question, err error) {
	q = &question{turn: make(chan struct{}, 1)}
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		return 0, nil, c.dead
	}
	c.nextID++
	id = c.nextID
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
		c.passOnLocked() // the reading, if it has come to this one
		c.mu.Unlock()
		return 0, nil, fault.New(fault.Internal, "cell_died", "send to palyra-cell", err)
	}
	return id, q, nil
}

// expectLocked sets how long the answer to q may take.
func (c *Client) expectLocked(q *question, within time.Duration) {
	q.due = time.Now().Add(within)
	// An alarm that is set stays: it looks what is due when it fires. So a call
	// that is answered costs no timer.
	if c.alarm.IsZero() || q.due.Before(c.alarm) {
		c.alarm = q.due
		if c.overdue == nil {
			c.overdue = time.AfterFunc(within, c.ring)
		} else {
			c.overdue.Reset(within)
		}
	}
}

// ring kills a palyra-cell that owes an answer, and with it what it runs; the
// answer is then that it died.
func (c *Client) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, next := time.Now(), time.Time{}
	for _, q := range c.pending {
		switch {
		case q.due.IsZero():
		case !q.due.After(now):
			c.proc.Kill()
		case next.IsZero() || q.due.Before(next):
			next = q.due
		}
	}
	if c.alarm = next; !next.IsZero() {
		c.overdue.Reset(time.Until(next))
	}
}

// await waits for the answer to q, and reads for others meanwhile if nobody else
// does.
func (c *Client) await(q *question) (string, error) {
	for {
		c.mu.Lock()
		switch {
		case q.answered:
			c.mu.Unlock()
			return q.answer, nil
		case c.dead != nil:
			err := errors.New("palyra-cell died during the run")
			if q.mark != 0 && q.mark == c.unread {
				err = errUnread
			}
			c.mu.Unlock()
			return "", fault.New(fault.Internal, "cell_died", "run in palyra-cell", err)
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
		if err == nil && msg[0] == opCell {
			err = c.tellLocked(id, msg)
			if q.cell != "" && q.known == nil && err == nil && len(c.pending) == 1 {
				// Nobody waits for who reads but the program itself.
				c.mu.Unlock()
				q.known, err = parseCell(q.cell[9:])
				c.mu.Lock()
			}
			msg = ""
		}
		c.reading = false
		if err != nil {
			c.dead = fault.New(fault.Internal, "cell_died", "read from palyra-cell", err)
			if errors.Is(err, syscall.ECONNRESET) {
				// Its socket was closed with messages in its queue (unix_release_sock in
				// net/unix/af_unix.c), of which the last is the last that was sent.
				c.unread = c.begun.Load()
			}
			for _, other := range c.pending {
				other.wake()
			}
		} else if a := c.pending[id]; a != nil && msg != "" {
			delete(c.pending, id)
			a.answered, a.answer = true, msg
			a.wake()
		}
		if q.answered {
			c.passOnLocked()
		}
		c.mu.Unlock()
	}
}

// tellLocked notes what is known of a run's cell. One that was given up is none of
// ours any more.
func (c *Client) tellLocked(id uint64, msg string) error {
	a := c.pending[id]
	if a == nil {
		return nil
	}
	if a.cell != "" {
		return errCodec
	}
	a.cell = msg
	return nil
}

// passOnLocked wakes somebody who reads from here on, unless somebody does.
func (c *Client) passOnLocked() {
	for _, other := range c.pending {
		other.wake()
		return
	}
}

func (q *question) wake() {
	select {
	case q.turn <- struct{}{}:
	default:
	}
}

// answerID returns the id of the request that a message answers.
func answerID(msg string) (uint64, error) {
	switch {
	case len(msg) >= 9 && (msg[0] == opResult || msg[0] == opCell):
		return binary.LittleEndian.Uint64([]byte(msg[1:9])), nil
	case len(msg) > 0 && msg[0] == opReply:
		var r struct {
			ID uint64 `json:"id"`
		}
		err := decode([]byte(msg[1:]), &r)
		return r.ID, err
	}
	return 0, errCodec
}

// parseReply reads the answer to q.
func (q *question) parseReply(msg string) (r reply, err error) {
	if msg[0] == opResult {
		if q.known == nil {
			if q.cell == "" {
				return r, errCodec
			}
			if q.known, err = parseCell(q.cell[9:]); err != nil {
				return r, err
			}
		}
		r.Result, err = parseCall(msg[9:], q.known)
		return r, err
	}
	err = decode([]byte(msg[1:]), &r)
	return r, err
}

// later waits for an answer that may be given up: it comes all the same and is
// dropped then.
func (c *Client) later(ctx context.Context, op string, q *question) (reply, error) {
	type result struct {
		r   reply
		err error
	}
	done := make(chan result, 1)
	go func() {
		msg, err := c.await(q)
		var r reply
		if err == nil {
			r, err = q.parseReply(msg)
		}
		done <- result{r, err}
	}()
	select {
	case x := <-done:
		return x.r, x.err
	case <-ctx.Done():
		return reply{}, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	}
}

package serve

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/internal/sys"
	"palyra/isolate/knob"
	"palyra/isolate/tier"
)

// workers is the number of threads that wait for messages at first. When all are busy another
// one starts.
const workers = 3

// maxEarly bounds how many later runs may become known before an earlier one does.
const maxEarly = 1024

// worker is a thread that reads a request, does all of it and answers, so that no other thread
// of palyra-cell has to run between a message and its program. The thread waits only in system
// calls, which keeps Go's scheduler out as far as possible.
type worker struct {
	thread
	buf, oob []byte
	out      []byte
}

// serve answers requests until the connection ends and everything it ran is dead.
func (s *server) serve() error {
	s.reading.Add(workers)
	for range workers {
		go s.work()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		s.ended.Wait()
	}
	for len(s.runs) > 0 {
		for _, r := range s.runs {
			r.cancel()
		}
		s.ended.Wait()
	}
	return s.failed
}

func (s *server) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed, s.failed = true, err
	}
	s.ended.Broadcast()
}

func (s *server) work() {
	runtime.LockOSThread() // never unlocked
	w := &worker{thread: thread{s: s}, buf: make([]byte, wire.MaxRequest), oob: make([]byte, sys.RightsSpace(wire.MaxFiles+1))}
	for {
		n, fds, err := sys.ReceivePacket(s.conn, w.buf, w.oob)
		if s.reading.Add(-1) == 0 {
			s.reading.Add(1)
			go s.work()
		}
		if err != nil {
			s.end(fmt.Errorf("read request: %w", err))
			return
		}
		if n == 0 {
			s.end(nil)
			return
		}
		if err := w.message(w.buf[:n], fds); err != nil {
			sys.CloseAll(fds)
			s.end(fmt.Errorf("read request: %w", err))
			return
		}
		s.reading.Add(1)
	}
}

// message does what one message asks for. An error ends the connection.
func (w *worker) message(b []byte, fds []int) error {
	s := w.s
	switch b[0] {
	case wire.OpCancel:
		if len(b) != 9 || len(fds) != 0 {
			return wire.ErrCodec
		}
		s.cancel(binary.LittleEndian.Uint64(b[1:]))
		return nil
	case wire.OpQuery:
		var r wire.Request
		if err := wire.Decode(b[1:], &r); err != nil {
			return err
		}
		sys.CloseAll(fds)
		var err error
		if r.Op == "expect" {
			err = s.expect(&r)
		}
		st := s.pool.stats()
		s.answer(wire.Reply{ID: r.ID, Stats: &st, Error: fault.MessageOf(err)})
		return nil
	}
	r, err := wire.ParseRun(b)
	if err != nil {
		return err
	}
	if r.Kind == wire.OpExplain {
		defer sys.CloseAll(fds)
		plan, err := s.explain(&r, fds)
		s.answer(wire.Reply{ID: r.ID, Plan: plan, Error: fault.MessageOf(err)})
		return nil
	}
	s.pool.begin()
	x := &run{s: s, id: r.ID, at: &w.thread, files: noFiles(), status: -1, gate: -1, mounts: -1, stop: make(chan struct{})}
	if s.begin(r.ID, x) {
		res, err := w.call(&r, x, fds)
		s.finish(r.ID)
		sys.CloseAll(fds) // before the answer: then a reader of the output finds its end
		w.reply(x, res, err)
		x.clean()
		s.keepMemory()
	} else {
		sys.CloseAll(fds)
	}
	s.pool.end()
	return nil
}

// begin registers a run, and reports whether it may begin.
func (s *server) begin(id uint64, r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.runs[id] != nil {
		return false
	}
	s.runs[id] = r
	s.latest = max(s.latest, id)
	if _, ok := s.early[id]; ok {
		delete(s.early, id)
		r.gone = true
		close(r.stop)
	}
	return true
}

func (s *server) finish(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, id)
	if s.closed {
		s.ended.Broadcast()
	}
}

// cancel ends a run. Another thread may have received the run without registering it yet, so
// cancel leaves a note for it. Notes on runs that have ended stay, but few: ids rise.
func (s *server) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		r.cancel()
		return
	}
	s.early[id] = struct{}{}
	if len(s.early) > 2*maxEarly {
		for old := range s.early {
			if old+maxEarly < s.latest {
				delete(s.early, old)
			}
		}
	}
}

func (w *worker) call(r *wire.Request, x *run, fds []int) (*isolate.Result, error) {
	const op = "run in palyra-cell"
	spec, digest, f, err := w.s.admit(op, r, fds)
	if err != nil {
		return nil, err
	}
	if err := w.s.permitted(op, r, spec, digest); err != nil {
		return nil, err
	}
	x.spec, x.files = spec, f
	// The time begins here, where the client's has just begun: a call that waits for its turn
	// is late at both ends at once.
	x.deadline = time.Now().Add(knob.Wall(spec.Limits.Wall))
	if w.s.tier == tier.B {
		late := time.NewTimer(time.Until(x.deadline))
		defer late.Stop()
		select {
		case w.s.serial <- struct{}{}:
			defer func() { <-w.s.serial }()
		case <-x.stop:
			return nil, fault.New(fault.Canceled, "canceled", op, nil)
		case <-late.C:
			return nil, fault.New(fault.Timeout, "timeout", op, errors.New("its time passed before it started: tier B runs one call at a time"))
		}
	}
	return x.do()
}

func (w *worker) reply(x *run, res *isolate.Result, err error) {
	if err != nil || res == nil {
		w.s.answer(wire.Reply{ID: x.id, Result: res, Error: fault.MessageOf(err)})
		return
	}
	w.out = wire.AppendResult(binary.LittleEndian.AppendUint64(append(w.out[:0], wire.OpResult), x.id), res)
	sys.SendPacket(w.s.conn, w.out, nil) // a client that is gone needs no answer
}

func (s *server) answer(r wire.Reply) {
	b, err := json.Marshal(r)
	if err != nil {
		panic("cell: internal error: encode reply: " + err.Error())
	}
	sys.SendPacket(s.conn, append([]byte{wire.OpReply}, b...), nil)
}

// cancel ends the run, now or when it begins: its caller has given up.
func (r *run) cancel() {
	r.mu.Lock()
	if !r.gone {
		close(r.stop)
	}
	r.gone = true
	p := r.proc
	r.mu.Unlock()
	if p != nil {
		p.kill()
	}
}

func (r *run) attach(p *process) {
	r.mu.Lock()
	r.proc = p
	gone := r.gone
	r.mu.Unlock()
	if gone {
		p.kill()
	}
}

// left is the run's remaining time in milliseconds, at most limit; 0 after its deadline.
func (r *run) left(limit time.Duration) int {
	d := min(time.Until(r.deadline), limit)
	return int(max(0, (d+time.Millisecond-1)/time.Millisecond))
}

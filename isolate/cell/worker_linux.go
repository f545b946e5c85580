package cell

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/tier"
)

// workers is how many threads wait for messages at first. Where all are busy
// there is always one more.
const workers = 3

// maxEarly is how many runs may be received, and known, before one that was
// received earlier is.
const maxEarly = 1024

// worker is a thread that reads a request, does all of it and answers: between a
// message and its program no other thread of palyra-cell has to run. Go's
// scheduler stays out of it as far as it can, since the thread waits in system
// calls and nowhere else.
type worker struct {
	thread
	buf, oob []byte
	out      []byte
}

// serve answers requests until the connection ends and what it ran is dead.
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

// end notes that the connection has ended.
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
	w := &worker{thread: thread{s: s}, buf: make([]byte, maxRequest), oob: make([]byte, sys.RightsSpace(maxFiles+1))}
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

// message does what one message asks for. An error is the end of the connection.
func (w *worker) message(b []byte, fds []int) error {
	s := w.s
	switch b[0] {
	case opCancel:
		if len(b) != 9 || len(fds) != 0 {
			return errCodec
		}
		s.cancel(binary.LittleEndian.Uint64(b[1:]))
		return nil
	case opQuery:
		var r request
		if err := decode(b[1:], &r); err != nil {
			return err
		}
		sys.CloseAll(fds)
		var err error
		if r.Op == "expect" {
			err = s.expect(&r)
		}
		st := s.pool.stats()
		s.answer(reply{ID: r.ID, Stats: &st, Error: toWire(err)})
		return nil
	}
	r, err := parseRun(b)
	if err != nil {
		return err
	}
	if r.kind == opExplain {
		defer sys.CloseAll(fds)
		plan, err := s.explain(&r, fds)
		s.answer(reply{ID: r.ID, Plan: plan, Error: toWire(err)})
		return nil
	}
	s.pool.begin()
	x := &run{s: s, id: r.ID, at: &w.thread, files: noFiles(), status: -1, gate: -1, mounts: -1}
	if s.tier == tier.B {
		x.stop = make(chan struct{})
	}
	if s.begin(r.ID, x) {
		res, err := w.call(&r, x, fds)
		s.finish(r.ID)
		sys.CloseAll(fds) // before the answer: whoever reads the output finds its end
		w.reply(x, res, err)
		x.clean()
		x.replace()
		s.keepMemory()
	} else {
		sys.CloseAll(fds)
	}
	s.pool.end()
	return nil
}

// begin makes a run known by its id, and reports whether it may begin.
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
		if r.stop != nil {
			close(r.stop)
		}
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

// cancel ends a run. Another thread may have received the run and not begun it:
// then it is to find this. One that has ended already leaves a word here, of which
// few are kept: ids rise.
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

// call checks a run's request and runs it.
func (w *worker) call(r *request, x *run, fds []int) (*isolate.Result, error) {
	const op = "run in palyra-cell"
	spec, digest, f, err := w.s.admit(op, r, fds)
	if err != nil {
		return nil, err
	}
	if err := w.s.permitted(op, r, spec, digest); err != nil {
		return nil, err
	}
	x.spec, x.files = spec, f
	if w.s.tier == tier.B {
		select {
		case w.s.serial <- struct{}{}:
			defer func() { <-w.s.serial }()
		case <-x.stop:
			return nil, fault.New(fault.Canceled, "canceled", op, nil)
		}
	}
	return x.do()
}

// reply answers a run.
func (w *worker) reply(x *run, res *isolate.Result, err error) {
	if err == nil && res != nil {
		if !x.told {
			w.out = appendCell(x.head(w.out[:0], opCell), res.Evidence, x.form)
			sys.SendPacket(w.s.conn, w.out, nil)
		}
		w.out = appendCall(x.head(w.out[:0], opResult), res)
		sys.SendPacket(w.s.conn, w.out, nil) // a client that is gone needs no answer
		return
	}
	if res != nil && res.Evidence != nil && x.form != nil {
		if ferr := x.form.fill(res.Evidence); ferr != nil {
			panic("cell: internal error: " + ferr.Error())
		}
	}
	w.s.answer(reply{ID: x.id, Result: res, Error: toWire(err)})
}

// tell says what is known of the cell, while the program starts. It does not wait:
// a client that does not read keeps no deadline from being kept, and is told with
// the answer.
func (r *run) tell(e *evidence.Evidence) {
	r.told = sys.TrySendPacket(r.s.conn, appendCell(r.head(make([]byte, 0, 4096), opCell), e, r.form)) == nil
}

// head begins a message about the run.
func (r *run) head(out []byte, kind byte) []byte {
	return binary.LittleEndian.AppendUint64(append(out, kind), r.id)
}

func (s *server) answer(r reply) {
	b, err := json.Marshal(r)
	if err != nil {
		panic("cell: internal error: encode reply: " + err.Error())
	}
	sys.SendPacket(s.conn, append([]byte{opReply}, b...), nil)
}

// formOf encodes what is known of a cell that waits. What cells have in common is
// kept once.
func (s *server) formOf(e *evidence.Evidence) *cellForm {
	own, common := formOf(e)
	return &cellForm{own: slices.Clone(own), common: s.share(string(common))}
}

// share returns the same string for equal ones: most of what a waiting cell keeps
// is what others keep, too.
func (s *server) share(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	shared, ok := s.forms[text]
	if !ok {
		if len(s.forms) >= 4*maxKinds {
			clear(s.forms)
		}
		shared = text
		s.forms[text] = text
	}
	return shared
}

// cancel ends the run, now or when it begins: its caller has given up.
func (r *run) cancel() {
	r.mu.Lock()
	if !r.gone && r.stop != nil {
		close(r.stop)
	}
	r.gone = true
	p := r.proc
	r.mu.Unlock()
	if p != nil {
		p.kill()
	}
}

// attach says which process is the run's from here on.
func (r *run) attach(p *process) {
	r.mu.Lock()
	r.proc = p
	gone := r.gone
	r.mu.Unlock()
	if gone {
		p.kill()
	}
}

// left is how long the run may still take, in milliseconds, at most limit; 0 once
// its deadline has passed.
func (r *run) left(limit time.Duration) int {
	d := min(time.Until(r.deadline), limit)
	return int(max(0, (d+time.Millisecond-1)/time.Millisecond))
}

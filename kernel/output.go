package kernel

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
)

// drainGrace is how long output that a dead program left in its pipes may take
// to reach our readers if the deadline is past or near.
const drainGrace = 250 * time.Millisecond

// patience is how long a program runs before somebody reads what it prints. Most
// have ended by then, and what they left in their pipes is read at once, by the
// call itself: to have others wait for it costs more than all the reading. One
// that fills a pipe before has to wait for the rest of that time, once.
const patience = 2 * time.Millisecond

// streams are the pipes of one run. Bytes are kept up to the limit, which
// stdout and stderr share, hashed and passed on as they come; the rest is
// counted and dropped. The program is never killed for what it prints.
//
// Who reads one of the two leaves room for what waits in the other, up to half of
// what there is: a program that says one line and then floods the other stream
// is heard, whichever is read first.
//
// Our reader may be slow: the program then waits, as it would on any pipe, until
// its deadline. It may be stuck or gone: bytes are then hashed and counted all
// the same and its missing them is reported, but no call waits for it past the
// deadline.
type streams struct {
	stdin *feed // nil unless streamed
	out   [2]*output

	giveUp  chan struct{} // closed when nobody waits for our readers any more
	reading sync.WaitGroup
	later   *time.Timer // calls attend; set by start

	mu       sync.Mutex
	attended bool  // guarded by mu
	left     int64 // guarded by mu: bytes that may still be kept
}

// output is one of stdout and stderr.
type output struct {
	in    *intake
	w     *os.File      // the program's end, until it was started
	to    io.Writer     // nil: nobody
	queue chan []byte   // reader to writer; closed by the reader
	done  chan struct{} // closed by the writer, or by the reader if there is none

	// Owned by who reads: the caller of drain, or from attend on a goroutine until
	// reading.Wait returns.
	buf     []byte
	writing bool // there is a writer
	ended   bool
	kept    hash.Hash
	n       int64 // bytes kept
	cut     int64 // bytes beyond the limit
	lost    bool  // some of what was kept was not passed on
	held    bool  // reading did not end with the pipe: somebody still had it

	due  int64 // guarded by streams.mu: of what is left, for what waits in this pipe; both together never more
	full bool  // likewise: something was over the limit, and so is all behind it

	// Owned by the writer, which may outlive the call, until done is closed.
	failed bool // to did not take everything
}

const (
	chunk      = 64 << 10 // the size of a pipe
	queueDepth = 8        // chunks between reader and writer
)

// openStreams makes the pipes. The caller closes what it returns.
func openStreams(stdout, stderr io.Writer, stdin io.Reader, limit int64) (_ *streams, err error) {
	s := &streams{giveUp: make(chan struct{}), left: limit}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for i, to := range []io.Writer{stdout, stderr} {
		o := &output{to: to, kept: sha256.New(), queue: make(chan []byte, queueDepth), done: make(chan struct{})}
		if o.in, o.w, err = newIntake(); err != nil {
			return nil, fault.New(fault.Unavailable, "pipe", "make pipes", err)
		}
		s.out[i] = o
	}
	if stdin != nil {
		s.stdin = &feed{from: stdin}
		if s.stdin.r, s.stdin.w, err = feedPipe(); err != nil {
			return nil, fault.New(fault.Unavailable, "pipe", "make pipes", err)
		}
	}
	return s, nil
}

// start has the program's output read, should it run for longer than patience. It
// is called before the run, since a program may write before the runner has
// answered.
func (s *streams) start() {
	s.later = time.AfterFunc(patience, s.attend)
	if s.stdin != nil {
		go s.stdin.copy() // ends with the pipe, or when a stuck reader lets it
	}
}

// attend reads what comes until the pipes end. It may be called again.
func (s *streams) attend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attended {
		return
	}
	s.attended = true
	for i, o := range s.out {
		if o.ended {
			continue
		}
		other := s.out[1-i]
		if err := o.in.poll(); err != nil {
			o.end(err)
			continue
		}
		s.reading.Go(func() {
			for !o.ended {
				var r read
				if err := o.in.Wait(func() bool { r = s.read(o, other); return r.err != errNothingYet }); err != nil {
					r.err = err
				}
				o.take(s, r)
			}
		})
	}
}

// collect reads what a program left that is gone, and reports whether that was
// all. It does not wait: of a pipe that somebody still holds the rest is for
// attend. Nor does it fill the queue, which takes more than a pipe does.
func (s *streams) collect() (all bool) {
	all = true
	for i, o := range s.out {
		for range queueDepth {
			r := s.read(o, s.out[1-i])
			if r.err == errNothingYet {
				break
			}
			if o.take(s, r); o.ended {
				break
			}
		}
		all = all && o.ended
	}
	return all
}

// read is what came of a pipe at once.
type read struct {
	n    int   // bytes, in buf
	keep int64 // of them are within the limit
	err  error // errNothingYet, io.EOF
}

// read reads once, without waiting, and takes of the limit what that needs. Both
// in one step: what is neither in its pipe nor counted is not seen by the other.
func (s *streams) read(o, other *output) (r read) {
	if o.buf == nil {
		o.buf = make([]byte, chunk/16) // most programs print little
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.n, r.err = o.in.ReadNow(o.buf); r.n == 0 {
		if r.err != errNothingYet {
			o.due = 0
		}
		return r
	}
	if o.full {
		return r
	}
	n := int64(r.n)
	if !other.full {
		other.due = max(other.due, min(other.in.Unread(), (s.left-o.due)/2))
	}
	r.keep = min(n, s.left-other.due)
	s.left -= r.keep
	o.due -= min(o.due, n)
	if r.keep < n {
		o.full, o.due = true, 0
	}
	return r
}

// take passes on what was read.
func (o *output) take(s *streams, r read) {
	o.pass(s, o.buf[:r.n], r.keep)
	switch {
	case r.err != nil:
		o.end(r.err)
	case r.n == len(o.buf) && r.n < chunk:
		o.buf = make([]byte, chunk)
	}
}

// end notes that nothing more will be read, and why.
func (o *output) end(err error) {
	o.ended, o.held = true, err != io.EOF
	close(o.queue)
	if !o.writing {
		close(o.done)
	}
}

// pass hands on what is kept of b.
func (o *output) pass(s *streams, b []byte, keep int64) {
	o.cut += int64(len(b)) - keep
	if keep == 0 {
		return
	}
	o.n += keep
	o.kept.Write(b[:keep])
	if o.to == nil {
		return
	}
	if !o.writing { // most streams of most calls stay empty
		o.writing = true
		go o.write() // ends with the queue, or when a stuck writer lets it
	}
	b = bytes.Clone(b[:keep]) // the writer's, which may be slow
	select {
	case o.queue <- b:
	case <-s.giveUp:
		select { // there may be room all the same
		case o.queue <- b:
		default:
			o.lost = true
		}
	}
}

func (o *output) write() {
	defer close(o.done)
	for b := range o.queue {
		if o.failed {
			continue // our reader is gone; the program goes on
		}
		n, err := o.to.Write(b)
		o.failed = err != nil || n < len(b)
	}
}

// release closes our copies of the program's ends, without which the pipes
// would never end. It is called when the runner is done with them.
func (s *streams) release() {
	for _, o := range s.out {
		o.w.Close()
	}
	if s.stdin != nil {
		s.stdin.r.Close()
	}
}

// drain waits until everything the program wrote has been read and passed on,
// or until the time is up. It reports what came out, and whether our readers
// got all of it that was kept.
func (s *streams) drain(deadline time.Time) (out evidence.Output, delivered bool) {
	if soon := time.Now().Add(drainGrace); deadline.Before(soon) {
		deadline = soon
	}
	if s.stdin != nil {
		s.stdin.w.Close()
	}
	ended := s.later.Stop() && s.collect()
	if ended && s.finished() {
		return s.report()
	}
	giveUp := time.AfterFunc(time.Until(deadline), func() { close(s.giveUp) })
	// No process of the run is left, so the pipes end. Should somebody hold one
	// all the same, reading ends here.
	if !ended {
		s.attend()
		for _, o := range s.out {
			o.in.SetReadDeadline(deadline.Add(drainGrace))
		}
		s.reading.Wait()
	}
	for _, o := range s.out {
		select {
		case <-o.done:
		case <-s.giveUp:
		}
	}
	if giveUp.Stop() {
		close(s.giveUp)
	}
	return s.report()
}

// finished reports whether all was read and passed on.
func (s *streams) finished() bool {
	for _, o := range s.out {
		select {
		case <-o.done:
		default:
			return false
		}
	}
	return true
}

func (s *streams) report() (r evidence.Output, delivered bool) {
	r.Basis, delivered = evidence.Observed, true
	for _, o := range s.out {
		r.Cut += o.cut
		if o.held {
			r.Basis = evidence.Reported
		}
		select {
		case <-o.done:
			delivered = delivered && !o.lost && !o.failed
		default:
			delivered = false
		}
	}
	r.StdoutBytes, r.StdoutDigest = s.out[0].n, canon.Digest(s.out[0].kept.Sum(nil))
	r.StderrBytes, r.StderrDigest = s.out[1].n, canon.Digest(s.out[1].kept.Sum(nil))
	return r, delivered
}

// close closes every end that is still open.
func (s *streams) close() {
	for _, o := range s.out {
		if o != nil {
			o.in.Close()
			o.w.Close()
		}
	}
	if s.stdin != nil && s.stdin.r != nil {
		s.stdin.r.Close()
		s.stdin.w.Close()
	}
}

// feed copies a reader of ours into the program's stdin. The program never gets
// a descriptor of ours: through /proc it could open the file behind it anew,
// with more rights than we meant to give.
type feed struct {
	from io.Reader
	r, w *os.File
}

func (f *feed) copy() {
	io.Copy(f.w, f.from) // the end of either ends it; a program need not read its input
	f.w.Close()
}

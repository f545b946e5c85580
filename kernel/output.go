package kernel

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"palyra/call/diagnosis"
	"palyra/crypt/scrub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
)

// drainGrace is the extra time for a dead program's output to reach our readers if the deadline
// is past or near.
const drainGrace = 250 * time.Millisecond

// streams are the pipes of one run. Values of secrets are removed first; what is said of output
// holds for what is left. Bytes up to the limit, which stdout and stderr share, are
// kept, hashed and passed on as they come. The rest is counted and dropped. The program is
// never killed for its output.
//
// Each stream has a part of the limit to itself, so a program that prints one line and then
// floods the other stream is heard, whichever is read first. In the end one stream gets the
// unused part of the other.
//
// If our reader is slow the program waits, as it would on any pipe, until its deadline. If our
// reader is stuck or gone, bytes are still hashed and counted, and the loss is reported; no
// call waits for the reader past the deadline.
type streams struct {
	stdin *feed     // nil unless streamed
	tty   *terminal // nil: pipes
	out   [2]*output
	limit int64 // bytes that are kept
	own   int64 // of them, each stream's own part

	giveUp  chan struct{} // closed when no call waits for our readers any more
	reading sync.WaitGroup
	mu      sync.Mutex
}

type output struct {
	r     *os.File      // guarded by streams.mu where it's a terminal's; nil before there is one
	w     *os.File      // the program's end, until the program has started
	to    io.Writer     // nil: no reader
	scrub *scrub.Stream // of the reading goroutine; nil removes nothing
	marks *scrub.Stream // likewise: placeholders, of which the first ends the run
	queue chan []byte   // reader to writer; closed by finish
	done  chan struct{} // closed by the writer; by finish if there is none

	n     int64     // guarded by streams.mu: bytes kept
	until time.Time // guarded by streams.mu: the deadline of reading, from drain to the reader

	// Owned by the reading goroutine; by drain once streams.reading is done.
	writing bool   // there is a writer
	last    []byte // at most streams.own bytes, kept if the other stream leaves room
	kept    hash.Hash
	cut     int64  // bytes beyond the limit
	lost    bool   // some kept bytes were not passed on
	held    bool   // reading ended before the pipe: a process still had it
	tail    []byte // the end of what was read, dropped or not; of stderr or a terminal alone

	// Owned by the writer, which may outlive the call, until done is closed.
	failed bool // to didn't take everything
}

const (
	chunk      = 64 << 10 // the size of a pipe
	queueDepth = 8        // chunks between reader and writer
)

// openStreams makes the pipes. The caller closes the result.
func openStreams(stdout, stderr io.Writer, stdin io.Reader, limit int64) (_ *streams, err error) {
	s := &streams{giveUp: make(chan struct{}), limit: limit, own: min(chunk, limit/2)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for i, to := range []io.Writer{stdout, stderr} {
		o := newOutput(to)
		if o.r, o.w, err = pipe(0); err != nil {
			return nil, fault.New(fault.Unavailable, "resource_exhausted", "make pipes", err)
		}
		s.out[i] = o
	}
	if stdin != nil {
		s.stdin = &feed{from: stdin}
		if s.stdin.r, s.stdin.w, err = pipe(1); err != nil {
			return nil, fault.New(fault.Unavailable, "resource_exhausted", "make pipes", err)
		}
	}
	return s, nil
}

func newOutput(to io.Writer) *output {
	return &output{to: to, kept: sha256.New(), queue: make(chan []byte, queueDepth), done: make(chan struct{})}
}

// remove has the values of secrets, and placeholders, removed from what is read. Call it before
// start.
func (s *streams) remove(values scrub.Values, trip *tripwire) {
	for i, o := range s.out {
		o.scrub = values.Stream()
		where := []string{evidence.LeakStdout, evidence.LeakStderr}[i]
		if s.tty != nil {
			where = evidence.LeakTerminal
		}
		o.marks = trip.stream(where)
	}
}

// start reads the program's output until its pipes end. Call it before the run, since a program
// may write before the runner answers.
func (s *streams) start() {
	if s.tty != nil {
		s.reading.Go(s.readTerminal)
		return
	}
	for i, o := range s.out {
		s.reading.Go(func() { s.read(o, s.out[1-i]) })
	}
	if s.stdin != nil {
		go s.stdin.copy() // ends with the pipe, or when a stuck reader lets it
	}
}

func (s *streams) read(o, other *output) {
	buf := make([]byte, chunk/16) // most programs print little
	for {
		n, err := o.r.Read(buf)
		s.take(o, other, o.marks.Next(o.scrub.Next(buf[:n])))
		if errors.Is(err, os.ErrDeadlineExceeded) && s.extend(o) {
			continue
		}
		if err != nil && s.tty != nil && s.tty.goesOn(err) {
			continue
		}
		if err != nil {
			s.take(o, other, o.marks.Next(o.scrub.End()))
			s.take(o, other, o.marks.End())
			o.held = err != io.EOF && (s.tty == nil || !errors.Is(err, errEnded))
			return
		}
		if n == len(buf) && n < chunk {
			buf = make([]byte, chunk)
		}
	}
}

// extend sets the deadline that drain left for o, once, and reports whether there was one.
func (s *streams) extend(o *output) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.until.IsZero() {
		return false
	}
	_ = o.r.SetReadDeadline(o.until) // pipes have deadlines
	o.until = time.Time{}
	return true
}

// take passes on the part of b that o may certainly keep. The part that depends on the other
// stream's use waits in o.last.
func (s *streams) take(o, other *output, b []byte) {
	if o == s.out[1] || s.tty != nil {
		o.keepTail(b)
	}
	s.mu.Lock()
	n := min(int64(len(b)), s.limit-o.n-max(other.n, s.own)) // no more later than now: other.n only grows
	o.n += n
	s.mu.Unlock()
	o.pass(s, b[:n])
	b = b[n:]
	wait := min(len(b), int(s.own)-len(o.last))
	o.last = append(o.last, b[:wait]...)
	o.cut += int64(len(b) - wait)
}

// keepTail keeps the last diagnosis.TailSize bytes, where a failing program says why.
func (o *output) keepTail(b []byte) {
	b = b[max(0, len(b)-diagnosis.TailSize):]
	o.tail = append(o.tail[max(0, len(o.tail)+len(b)-diagnosis.TailSize):], b...)
}

func (s *streams) finish(o, other *output) {
	n := min(int64(len(o.last)), s.limit-o.n-other.n)
	o.n += n
	o.cut += int64(len(o.last)) - n
	o.pass(s, o.last[:n])
	close(o.queue)
	if !o.writing {
		close(o.done)
	}
}

func (o *output) pass(s *streams, b []byte) {
	if len(b) == 0 {
		return
	}
	o.kept.Write(b)
	if o.to == nil {
		return
	}
	if !o.writing { // most streams of most calls stay empty
		o.writing = true
		go o.write() // ends with the queue, or when a stuck writer lets it
	}
	b = bytes.Clone(b) // for the writer, which may be slow
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

// release closes our copies of the program's ends, without which the pipes would never end.
// Call it when the runner is done with them.
func (s *streams) release() {
	if s.tty != nil {
		s.tty.theirs.Close()
		close(s.tty.gone)
		return
	}
	for _, o := range s.out {
		o.w.Close()
	}
	if s.stdin != nil {
		s.stdin.r.Close()
	}
}

// drain waits until the program's whole output has been read and passed on, or until the
// deadline. It reports the output, and whether our readers got all of it that was kept.
func (s *streams) drain(deadline time.Time) (out evidence.Output, delivered bool) {
	if soon := time.Now().Add(drainGrace); deadline.Before(soon) {
		deadline = soon
	}
	if s.stdin != nil && s.tty == nil {
		s.stdin.w.Close()
	}
	giveUp := time.AfterFunc(time.Until(deadline), func() { close(s.giveUp) })
	// No process of the run is left, so the pipes end. If a process still holds one, reading
	// ends here. A deadline that is past wakes the readers at once; the poller takes longer.
	s.mu.Lock()
	for _, o := range s.out {
		o.until = deadline.Add(drainGrace)
		if o.r != nil {
			_ = o.r.SetReadDeadline(time.Unix(1, 0))
		}
	}
	if s.tty != nil {
		_ = s.tty.ours.SetReadDeadline(deadline.Add(drainGrace))
	}
	s.mu.Unlock()
	s.reading.Wait()
	for i, o := range s.out {
		s.finish(o, s.out[1-i])
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

func (s *streams) close() {
	if s.tty != nil {
		s.closeTerminal()
		return
	}
	for _, o := range s.out {
		if o != nil {
			o.r.Close()
			o.w.Close()
		}
	}
	if s.stdin != nil && s.stdin.r != nil {
		s.stdin.r.Close()
		s.stdin.w.Close()
	}
}

// feed copies a reader of ours into the program's stdin. The program never gets a descriptor of
// ours: through /proc it could reopen the file behind it with more rights than we gave.
type feed struct {
	from io.Reader
	r, w *os.File
}

func (f *feed) copy() {
	io.Copy(f.w, f.from) // the end of either ends it; a program need not read its input
	f.w.Close()
}

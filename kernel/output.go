package kernel

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
)

// drainGrace is how long output that a dead program left in its pipes may take
// to reach our readers if the deadline is past or near.
const drainGrace = 250 * time.Millisecond

// streams are the pipes of one run. Bytes are kept up to the limit, which
// stdout and stderr share, hashed and passed on as they come; the rest is
// counted and dropped. The program is never killed for what it prints.
//
// Our reader may be slow: the program then waits, as it would on any pipe, until
// its deadline. It may be stuck or gone: bytes are then hashed and counted all
// the same and its missing them is reported, but no call waits for it past the
// deadline.
type streams struct {
	stdin *feed // nil unless streamed
	out   [2]*output

	left    atomic.Int64  // bytes that may still be kept
	giveUp  chan struct{} // closed when nobody waits for our readers any more
	reading sync.WaitGroup
}

// output is one of stdout and stderr.
type output struct {
	r, w  *os.File // w is the program's end, until it was started
	to    io.Writer
	queue chan []byte   // reader to writer; closed by the reader
	done  chan struct{} // closed by the writer, or by the reader if there is none

	// Owned by the reader until reading.Wait returns.
	kept hash.Hash
	n    int64 // bytes kept
	cut  int64 // bytes beyond the limit
	lost bool  // some of what was kept was not passed on
	held bool  // reading did not end with the pipe: somebody still had it

	// Owned by the writer, which may outlive the call, until done is closed.
	failed bool // to did not take everything
}

const (
	chunk      = 64 << 10 // the size of a pipe
	queueDepth = 8        // chunks between reader and writer
)

// openStreams makes the pipes. The caller closes what it returns.
func openStreams(stdout, stderr io.Writer, stdin io.Reader, limit int64) (_ *streams, err error) {
	s := &streams{giveUp: make(chan struct{})}
	s.left.Store(limit)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for i, to := range []io.Writer{stdout, stderr} {
		if to == nil {
			to = io.Discard
		}
		o := &output{to: to, kept: sha256.New(), queue: make(chan []byte, queueDepth), done: make(chan struct{})}
		if o.r, o.w, err = pipe(0); err != nil {
			return nil, fault.New(fault.Unavailable, "pipe", "make pipes", err)
		}
		s.out[i] = o
	}
	if stdin != nil {
		s.stdin = &feed{from: stdin}
		if s.stdin.r, s.stdin.w, err = pipe(1); err != nil {
			return nil, fault.New(fault.Unavailable, "pipe", "make pipes", err)
		}
	}
	return s, nil
}

// start begins to read. It is called before the run, since a program may write
// before the runner has answered.
func (s *streams) start() {
	for _, o := range s.out {
		s.reading.Go(func() { o.read(s) })
	}
	if s.stdin != nil {
		go s.stdin.copy() // ends with the pipe, or when a stuck reader lets it
	}
}

func (o *output) read(s *streams) {
	writing := false // most streams of most calls stay empty
	defer func() {
		close(o.queue)
		if !writing {
			close(o.done)
		}
	}()
	buf := make([]byte, chunk/16)
	for {
		n, err := o.r.Read(buf)
		keep := take(&s.left, int64(n))
		o.cut += int64(n) - keep
		if keep > 0 {
			o.n += keep
			o.kept.Write(buf[:keep])
			b := bytes.Clone(buf[:keep]) // the writer's, which may be slow
			if !writing {
				writing = true
				go o.write() // ends with the queue, or when a stuck writer lets it
			}
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
		if err != nil {
			o.held = err != io.EOF
			return
		}
		if n == len(buf) && n < chunk {
			buf = make([]byte, chunk) // most programs print little
		}
	}
}

// take reserves up to n of left.
func take(left *atomic.Int64, n int64) int64 {
	for {
		have := left.Load()
		got := min(have, n)
		if got <= 0 || left.CompareAndSwap(have, have-got) {
			return max(got, 0)
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
	giveUp := time.AfterFunc(time.Until(deadline), func() { close(s.giveUp) })
	// No process of the run is left, so the pipes end. Should somebody hold one
	// all the same, reading ends here.
	for _, o := range s.out {
		_ = o.r.SetReadDeadline(deadline.Add(drainGrace)) // pipes have deadlines wherever runners exist
	}
	s.reading.Wait()
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

// close closes every end that is still open.
func (s *streams) close() {
	for _, o := range s.out {
		if o != nil && o.r != nil {
			o.r.Close()
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

package kernel

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/call/diagnosis"
	"palyra/internal/canon"
	"palyra/isolate/evidence"
)

// tool writes as a program would and then closes its ends.
func tool(t *testing.T, s *streams, f func(out, err io.Writer)) {
	t.Helper()
	s.start()
	f(s.out[0].w, s.out[1].w)
	s.release()
}

func newStreams(t *testing.T, out, err io.Writer, in io.Reader, limit int64) *streams {
	t.Helper()
	s, e := openStreams(out, err, in, limit)
	if e != nil {
		t.Fatal(e)
	}
	t.Cleanup(s.close)
	return s
}

func later() time.Time { return time.Now().Add(time.Minute) }

func TestOutput(t *testing.T) {
	var out, errs bytes.Buffer
	s := newStreams(t, &out, &errs, nil, 100)
	tool(t, s, func(o, e io.Writer) {
		io.WriteString(o, "hello\n\x00\xff")
		io.WriteString(e, "warning\n")
	})
	got, delivered := s.drain(later())
	want := evidence.Output{Basis: evidence.Observed, StdoutBytes: 8, StderrBytes: 8,
		StdoutDigest: canon.Sum([]byte("hello\n\x00\xff")), StderrDigest: canon.Sum([]byte("warning\n"))}
	if got != want || !delivered {
		t.Errorf("got %+v, %v", got, delivered)
	}
	if out.String() != "hello\n\x00\xff" || errs.String() != "warning\n" {
		t.Errorf("got %q, %q", out.String(), errs.String())
	}
}

func TestOutputEmpty(t *testing.T) {
	s := newStreams(t, nil, nil, nil, 1)
	tool(t, s, func(io.Writer, io.Writer) {})
	got, delivered := s.drain(later())
	if got.StdoutBytes != 0 || got.StdoutDigest != canon.Sum(nil) || got.Cut != 0 || !delivered {
		t.Errorf("got %+v", got)
	}
}

// failing is a reader and a writer that never work.
type failing struct{}

func (failing) Read([]byte) (int, error)  { return 0, errors.New("broken") }
func (failing) Write([]byte) (int, error) { return 0, errors.New("broken") }

// TestOutputFlood: both streams share the limit, and the excess is counted.
func TestOutputFlood(t *testing.T) {
	const limit, each = 1 << 20, 8 << 20
	var out, errs bytes.Buffer
	s := newStreams(t, &out, &errs, nil, limit)
	data := make([]byte, each)
	rand.Read(data)
	tool(t, s, func(o, e io.Writer) {
		var wg sync.WaitGroup
		wg.Go(func() { o.Write(data) })
		wg.Go(func() { e.Write(data) })
		wg.Wait()
	})
	got, delivered := s.drain(later())
	if got.StdoutBytes+got.StderrBytes != limit || got.Cut != 2*each-limit || !delivered {
		t.Errorf("got %+v, %v", got, delivered)
	}
	if int64(out.Len()) != got.StdoutBytes || got.StdoutDigest != canon.Sum(out.Bytes()) ||
		int64(errs.Len()) != got.StderrBytes || got.StderrDigest != canon.Sum(errs.Bytes()) {
		t.Error("what was passed on is not what was hashed")
	}
	if !bytes.HasPrefix(data, out.Bytes()) || !bytes.HasPrefix(data, errs.Bytes()) {
		t.Error("what was kept is not the beginning")
	}
}

// TestOutputHeard: a program's line on one stream is kept however it floods the other, before
// or after, and the flood gets the rest of the limit.
func TestOutputHeard(t *testing.T) {
	line, flood := []byte("started\n"), make([]byte, 5*chunk)
	rand.Read(flood)
	for loud := range 2 {
		for _, first := range []bool{true, false} {
			for _, limit := range []int{2 * len(line), 100, chunk, 3*chunk + len(line), 3*chunk + 2*len(line) - 1} {
				var out [2]bytes.Buffer
				s := newStreams(t, &out[0], &out[1], nil, int64(limit))
				tool(t, s, func(o, e io.Writer) {
					quiet, noisy := e, o
					if loud == 1 {
						quiet, noisy = o, e
					}
					if first {
						quiet.Write(line)
					}
					if _, err := noisy.Write(flood); err != nil {
						t.Error(err)
					}
					if !first {
						quiet.Write(line)
					}
				})
				got, delivered := s.drain(later())
				want := evidence.Output{Basis: evidence.Observed, Cut: int64(len(flood) + len(line) - limit),
					StdoutBytes: int64(len(line)), StdoutDigest: canon.Sum(line),
					StderrBytes: int64(limit - len(line)), StderrDigest: canon.Sum(flood[:limit-len(line)])}
				if loud == 0 {
					want.StdoutBytes, want.StderrBytes = want.StderrBytes, want.StdoutBytes
					want.StdoutDigest, want.StderrDigest = want.StderrDigest, want.StdoutDigest
				}
				if got != want || !delivered || !bytes.Equal(out[1-loud].Bytes(), line) || !bytes.Equal(out[loud].Bytes(), flood[:limit-len(line)]) {
					t.Errorf("flood of %d, limit %d, line first %v: got %+v, %v, want %+v", loud, limit, first, got, delivered, want)
				}
			}
		}
	}
}

// TestOutputAlone: one stream gets the whole limit if the other is silent.
func TestOutputAlone(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 100, chunk, 2*chunk + 1, 10 * chunk} {
		for _, n := range []int{limit - 1, limit, limit + 1} {
			var errs bytes.Buffer
			s := newStreams(t, nil, &errs, nil, int64(limit))
			data := make([]byte, n)
			rand.Read(data)
			tool(t, s, func(_, e io.Writer) { e.Write(data) })
			got, delivered := s.drain(later())
			kept := data[:min(n, limit)]
			want := evidence.Output{Basis: evidence.Observed, StdoutDigest: canon.Sum(nil), StderrBytes: int64(len(kept)),
				StderrDigest: canon.Sum(kept), Cut: int64(n - len(kept))}
			if got != want || !delivered || !bytes.Equal(errs.Bytes(), kept) {
				t.Errorf("limit %d, %d bytes: got %+v, %v, want %+v", limit, n, got, delivered, want)
			}
		}
	}
}

func TestOutputReaderGone(t *testing.T) {
	s := newStreams(t, failing{}, nil, nil, 10<<20)
	data := strings.Repeat("x", 4<<20)
	tool(t, s, func(o, e io.Writer) {
		if n, err := io.WriteString(o, data); err != nil {
			t.Errorf("the program was disturbed: %d, %v", n, err)
		}
	})
	got, delivered := s.drain(later())
	if delivered || got.StdoutBytes != 4<<20 || got.StdoutDigest != canon.Sum([]byte(data)) {
		t.Errorf("got %+v, %v", got, delivered)
	}
}

// stuck takes one write and doesn't return from it until freed.
type stuck struct{ entered, free chan struct{} }

func (w stuck) Write(b []byte) (int, error) {
	select {
	case <-w.entered:
	default:
		close(w.entered)
	}
	<-w.free
	return len(b), nil
}

// TestOutputReaderStuck: a call doesn't wait for a stuck reader long after the deadline, and
// reports the loss. Until then the rest is read.
func TestOutputReaderStuck(t *testing.T) {
	w := stuck{make(chan struct{}), make(chan struct{})}
	defer close(w.free)
	s := newStreams(t, w, nil, nil, 10<<20)
	data := strings.Repeat("x", chunk*(queueDepth+1)) // as much as the queue and the pipe take
	tool(t, s, func(o, e io.Writer) { io.WriteString(o, data); <-w.entered })
	got, delivered := s.drain(time.Now().Add(2 * time.Second))
	if delivered || got.StdoutBytes != int64(len(data)) || got.StdoutDigest != canon.Sum([]byte(data)) {
		t.Errorf("got %+v, %v", got, delivered)
	}
}

// TestOutputHalves: two streams that both exceed the limit get half of it each.
func TestOutputHalves(t *testing.T) {
	for _, n := range []int{0, 1, chunk / 16, chunk/16 + 1, chunk - 1, chunk} {
		var out bytes.Buffer
		s := newStreams(t, &out, nil, nil, chunk)
		data := make([]byte, n)
		rand.Read(data)
		tool(t, s, func(o, e io.Writer) { o.Write(data); e.Write(data) })
		got, delivered := s.drain(later())
		kept := data[:min(n, chunk/2)]
		want := evidence.Output{Basis: evidence.Observed, StdoutBytes: int64(len(kept)), StderrBytes: int64(len(kept)), Cut: int64(2 * (n - len(kept))),
			StdoutDigest: canon.Sum(kept), StderrDigest: canon.Sum(kept)}
		if got != want || !delivered || !bytes.Equal(out.Bytes(), kept) {
			t.Errorf("%d bytes: got %+v, %v, want %+v", n, got, delivered, want)
		}
	}
}

// TestOutputHeldFlood: the present content of a pipe that doesn't end is read, but not for
// ever. A process that floods it is cut off too.
func TestOutputHeldFlood(t *testing.T) {
	s := newStreams(t, nil, nil, nil, 1<<30)
	s.start()
	io.WriteString(s.out[0].w, "hello")
	over := make(chan struct{})
	go func() {
		defer close(over)
		for b := make([]byte, chunk); ; {
			if _, err := s.out[1].w.Write(b); err != nil {
				return
			}
		}
	}()
	got, _ := s.drain(time.Now()) // ends
	if got.Basis != evidence.Reported || got.StdoutBytes != 5 || got.StdoutDigest != canon.Sum([]byte("hello")) {
		t.Errorf("got %+v", got)
	}
	s.close()
	<-over
}

// TestOutputPipeHeld: another process keeps the program's end open.
func TestOutputPipeHeld(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer // guarded by mu: drain doesn't wait for the forwarder
	forwarded := make(chan struct{}, 1)
	s := newStreams(t, writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		defer func() { forwarded <- struct{}{} }()
		return out.Write(b)
	}), nil, nil, 100)
	s.start()
	io.WriteString(s.out[0].w, "hello") // without a release
	<-forwarded
	got, _ := s.drain(time.Now()) // ends
	mu.Lock()
	defer mu.Unlock()
	if got.Basis != evidence.Reported || got.StdoutBytes != 5 || out.String() != "hello" {
		t.Errorf("got %+v", got)
	}
}

func TestFeed(t *testing.T) {
	in := strings.Repeat("line\n", 100000)
	s := newStreams(t, nil, nil, strings.NewReader(in), 100)
	s.start()
	b, err := io.ReadAll(s.stdin.r)
	if err != nil || string(b) != in {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
	s.release()
	s.drain(later())
}

// TestFeedUnread: a program that doesn't read its input ends all the same.
func TestFeedUnread(t *testing.T) {
	s := newStreams(t, nil, nil, strings.NewReader(strings.Repeat("x", 10<<20)), 100)
	tool(t, s, func(io.Writer, io.Writer) {})
	if got, _ := s.drain(later()); got.Basis != evidence.Observed {
		t.Errorf("got %+v", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestTail: the end of standard error is kept across reads, dropped or not, and nothing of
// standard output.
func TestTail(t *testing.T) {
	s := newStreams(t, nil, nil, nil, 100)
	all := strings.Repeat("x", 3*chunk) + strings.Repeat("one line of seven\n", 100) + "the end"
	tool(t, s, func(o, e io.Writer) {
		io.WriteString(o, "output")
		io.WriteString(e, all[:3*chunk])
		for i := range all[3*chunk:] { // in small pieces
			io.WriteString(e, all[3*chunk+i:][:1])
		}
	})
	out, _ := s.drain(later())
	if got, want := string(s.out[1].tail), all[len(all)-diagnosis.TailSize:]; got != want || out.Cut == 0 {
		t.Errorf("%d bytes dropped, tail %q", out.Cut, got)
	}
	var o output
	rest, held := all, ""
	for i := 0; rest != ""; i++ { // whatever the reads are
		n := min([]int{1, 700, 1, 5000, 1023}[i%5], len(rest))
		o.keepTail([]byte(rest[:n]))
		held, rest = held+rest[:n], rest[n:]
		if want := held[max(0, len(held)-diagnosis.TailSize):]; string(o.tail) != want {
			t.Fatalf("after %d bytes: %d kept", len(held), len(o.tail))
		}
	}
	if s.out[0].tail != nil {
		t.Errorf("of standard output: %q", s.out[0].tail)
	}
}

// BenchmarkStreams measures collecting the output of a silent program.
func BenchmarkStreams(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := openStreams(nil, nil, nil, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		s.start()
		s.release()
		s.drain(time.Now().Add(time.Second))
		s.close()
	}
}

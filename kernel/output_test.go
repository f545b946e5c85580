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

	"palyra/internal/canon"
	"palyra/isolate/evidence"
)

// tool writes as a program would and then lets its ends go.
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

// TestOutputFlood: both streams share the limit, and what is beyond is counted.
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

// TestOutputHeard: what a program said on one stream before it flooded the other
// is kept, whichever of them is read first and however much of the other is read
// before anybody looks.
func TestOutputHeard(t *testing.T) {
	line := []byte("started\n")
	flood := make([]byte, chunk)
	for loud := range 2 {
		for _, limit := range []int{2 * len(line), 100, chunk, 3*chunk + len(line), 3*chunk + 2*len(line) - 1} {
			s := newStreams(t, nil, nil, nil, int64(limit))
			s.out[1-loud].w.Write(line)
			o, other := s.out[loud], s.out[1-loud]
			for range 5 {
				if _, err := o.w.Write(flood); err != nil {
					t.Fatal(err)
				}
				for r := s.read(o, other); r.err == nil; r = s.read(o, other) {
					o.take(s, r)
				}
			}
			s.start()
			s.release()
			got, _ := s.drain(later())
			quiet, digest, all := got.StdoutBytes, got.StdoutDigest, got.StdoutBytes+got.StderrBytes
			if loud == 0 {
				quiet, digest = got.StderrBytes, got.StderrDigest
			}
			if quiet != int64(len(line)) || digest != canon.Sum(line) || all != int64(limit) || got.Cut != int64(5*chunk+len(line)-limit) {
				t.Errorf("flood of %d, limit %d: got %+v", loud, limit, got)
			}
		}
	}
}

// TestOutputStolen: a program that reads back what it wrote changes nothing but
// what is left for itself. What is kept is the beginning all the same.
func TestOutputStolen(t *testing.T) {
	s := newStreams(t, nil, nil, nil, 100)
	o, other := s.out[0], s.out[1]
	other.w.Write(make([]byte, 40))
	o.w.Write(bytes.Repeat([]byte{1}, 70))
	o.take(s, s.read(o, other))
	if n, err := other.in.ReadNow(make([]byte, 100)); n != 40 || err != nil {
		t.Fatal(n, err)
	}
	o.w.Write(bytes.Repeat([]byte{2}, 10))
	s.start()
	s.release()
	if got, _ := s.drain(later()); got.StdoutBytes != 60 || got.StdoutDigest != canon.Sum(bytes.Repeat([]byte{1}, 60)) || got.Cut != 20 || got.StderrBytes != 0 {
		t.Errorf("got %+v", got)
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

// stuck takes one write and never returns from it until freed.
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

// TestOutputReaderStuck: nobody waits for a stuck reader for long after the
// deadline, and what it missed is said. Until then the rest is read.
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

// TestOutputAtOnce: what a program left that is gone is read without anybody
// waiting for it, whatever fits into its pipes, and passed on as ever.
func TestOutputAtOnce(t *testing.T) {
	for _, n := range []int{0, 1, chunk / 16, chunk/16 + 1, chunk - 1, chunk} {
		var out bytes.Buffer
		s := newStreams(t, &out, nil, nil, chunk)
		s.later = time.AfterFunc(time.Hour, s.attend)
		data := make([]byte, n)
		rand.Read(data)
		for _, o := range s.out { // more than the limit, together
			if _, err := o.w.Write(data); err != nil {
				t.Fatal(err)
			}
		}
		s.release()
		got, delivered := s.drain(later())
		kept := data[:min(n, chunk/2)] // neither takes what the other waits with
		want := evidence.Output{Basis: evidence.Observed, StdoutBytes: int64(len(kept)), StderrBytes: int64(len(kept)), Cut: int64(2 * (n - len(kept))),
			StdoutDigest: canon.Sum(kept), StderrDigest: canon.Sum(kept)}
		if got != want || !delivered || !bytes.Equal(out.Bytes(), kept) {
			t.Errorf("%d bytes: got %+v, %v, want %+v", n, got, delivered, want)
		}
		if s.attended {
			t.Errorf("%d bytes: somebody waited for them", n)
		}
	}
}

// TestOutputHeldAtOnce: of a pipe that does not end what is there is read, and
// then waited for the rest, but not for ever. Whoever floods it is cut off, too.
func TestOutputHeldAtOnce(t *testing.T) {
	s := newStreams(t, nil, nil, nil, 1<<30)
	s.later = time.AfterFunc(time.Hour, s.attend)
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

// TestOutputPipeHeld: somebody keeps the program's end open.
func TestOutputPipeHeld(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer // guarded by mu: who forwards is not waited for
	forwarded := make(chan struct{}, 1)
	s := newStreams(t, writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		defer func() { forwarded <- struct{}{} }()
		return out.Write(b)
	}), nil, nil, 100)
	s.start()
	io.WriteString(s.out[0].w, "hello") // and no release
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

// TestFeedUnread: a program that does not read its input ends all the same.
func TestFeedUnread(t *testing.T) {
	s := newStreams(t, nil, nil, strings.NewReader(strings.Repeat("x", 10<<20)), 100)
	tool(t, s, func(io.Writer, io.Writer) {})
	if got, _ := s.drain(later()); got.Basis != evidence.Observed {
		t.Errorf("got %+v", got)
	}
}

// writerFunc makes a function an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// BenchmarkStreams is what it costs to collect the output of a silent program.
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

package journal

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestWaited: whoever asked is told of every entry how long it waited for its
// group, and one that came during the flush of another waited.
func TestWaited(t *testing.T) {
	var mu sync.Mutex
	var waits []time.Duration // guarded by mu
	writing, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	j := newHouse(t).open(t, Options{
		Waited: func(d time.Duration) { mu.Lock(); waits = append(waits, d); mu.Unlock() },
		TestOnlyStep: func(name string) {
			if name == "append:written" {
				once.Do(func() { close(writing); <-release })
			}
		},
	})
	defer j.Close()
	var wg sync.WaitGroup
	put := func() {
		if _, err := j.Append(context.Background(), benchEntry()); err != nil {
			t.Error(err)
		}
	}
	wg.Go(put)
	<-writing
	for range 3 {
		wg.Go(put)
	}
	for n := 0; n < 3; runtime.Gosched() {
		j.queue.mu.Lock()
		n = len(j.queue.waiting)
		j.queue.mu.Unlock()
	}
	mu.Lock()
	if len(waits) != 1 {
		t.Errorf("told of %d entries while the first is written", len(waits))
	}
	mu.Unlock()
	close(release)
	wg.Wait()
	if len(waits) != 4 {
		t.Fatalf("told of %d entries, want 4", len(waits))
	}
	for _, d := range waits[1:] {
		if d <= 0 {
			t.Errorf("waited %v for the first to be written", d)
		}
	}
}

// flushes knows when the journal was in its fdatasync.
type flushes struct {
	mu     sync.Mutex
	spans  [][2]time.Time  // guarded by mu
	waits  []time.Duration // guarded by mu: of entries for their group
	beyond []time.Duration // guarded by mu: of that, what no flush of another group explains
}

func (f *flushes) step(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch now := time.Now(); name {
	case "append:written":
		f.spans = append(f.spans, [2]time.Time{now, now})
	case "append:durable":
		f.spans[len(f.spans)-1][1] = now
	}
}

func (f *flushes) waited(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := time.Now().Add(-d)
	rest := d
	for _, s := range slices.Backward(f.spans) {
		if s[1].Before(since) {
			break
		}
		if s[0].Before(since) {
			s[0] = since
		}
		rest -= s[1].Sub(s[0])
	}
	f.waits, f.beyond = append(f.waits, d), append(f.beyond, rest)
}

// BenchmarkWait says how long appends take, eight at a time, over some moves of
// complete tiles; how much of that they wait until their group begins, which is
// for the flush of the one before; and what of it no flush explains.
func BenchmarkWait(b *testing.B) {
	var f flushes
	j := newHouse(b).open(b, Options{Waited: f.waited, TestOnlyStep: f.step})
	defer j.Close()
	took := make([]time.Duration, max(b.N, 8))
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < b.N; i += 8 {
				start := time.Now()
				if _, err := j.Append(context.Background(), benchEntry()); err != nil {
					b.Error(err)
					return
				}
				took[i] = time.Since(start)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	var flush []time.Duration
	for _, s := range f.spans {
		flush = append(flush, s[1].Sub(s[0]))
	}
	for _, x := range []struct {
		name string
		ds   []time.Duration
	}{{"all", took}, {"flush", flush}, {"group", f.waits}, {"group-beyond", f.beyond}} {
		slices.Sort(x.ds)
		for _, q := range []struct {
			name string
			at   int
		}{{"p50", len(x.ds) / 2}, {"p99", len(x.ds) * 99 / 100}, {"max", len(x.ds) - 1}} {
			b.ReportMetric(float64(x.ds[q.at].Microseconds()), "µs-"+x.name+"-"+q.name)
		}
	}
}

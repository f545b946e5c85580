package journal

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkWait says how long appends wait, eight at a time, over some moves of
// complete tiles: the longest is what a call can meet.
func BenchmarkWait(b *testing.B) {
	j := newHouse(b).open(b, Options{})
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
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*999/1000].Microseconds()), "µs-p99.9")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "µs-max")
}

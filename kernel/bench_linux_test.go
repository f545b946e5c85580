package kernel

import (
	"fmt"
	"sync"
	"testing"

	"palyra/isolate"
)

// BenchmarkGateParallel measures the whole path without a program, with several calls at a
// time.
func BenchmarkGateParallel(b *testing.B) {
	some := usual()
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := openHouse(b, withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
				e := *some // the kernel writes into it
				return &isolate.Result{Outcome: isolate.Exited, Evidence: &e}, nil
			}))
			p := proposal("/bin/true")
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range n {
				wg.Go(func() {
					for i := w; i < b.N; i += n {
						if _, err := h.Call(b.Context(), *p, IO{}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

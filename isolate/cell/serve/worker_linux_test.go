package serve

import (
	"context"
	"errors"
	"testing"
)

// TestCancelBeforeRun: another thread than the run's may receive its cancellation, and before
// the run.
func TestCancelBeforeRun(t *testing.T) {
	s := &server{runs: make(map[uint64]*run), early: make(map[uint64]struct{})}
	s.ended.L = &s.mu
	s.cancel(5)
	for id, want := range map[uint64]error{5: context.Canceled, 6: nil} {
		r := &run{s: s, stop: make(chan struct{})}
		if !s.begin(id, r) || !errors.Is(r.cause(), want) {
			t.Errorf("run %d: %v, want %v", id, r.cause(), want)
		}
		s.finish(id)
	}
	// Those of runs that ended long ago are forgotten.
	for id := range uint64(1 << 14) {
		s.cancel(id)
		s.latest = id
	}
	if len(s.early) > 3*maxEarly {
		t.Errorf("%d cancellations are kept", len(s.early))
	}
	s.end(nil)
	if s.begin(1<<20, &run{s: s}) {
		t.Error("a run began after the connection had ended")
	}
}

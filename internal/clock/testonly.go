package clock

import (
	"sync"
	"time"
)

// TestOnlyHost is a host whose clocks a test moves.
type TestOnlyHost struct {
	mu   sync.Mutex
	wall time.Time     // guarded by mu
	mono time.Duration // guarded by mu
}

// TestOnlyNew returns a host with a date and its clocks.
func TestOnlyNew(date time.Time) (*TestOnlyHost, *Clock) {
	h := &TestOnlyHost{wall: date.Round(0).UTC()}
	return h, h.Clock()
}

// Clock returns the clocks of the host for a process that begins now.
func (h *TestOnlyHost) Clock() *Clock {
	return start(func() time.Time {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.wall
	}, func() time.Duration {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.mono
	})
}

// Pass lets time pass.
func (h *TestOnlyHost) Pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wall, h.mono = h.wall.Add(d), h.mono+d
}

// Step sets the wall clock.
func (h *TestOnlyHost) Step(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wall = h.wall.Add(d)
}

// Package measure times several ways to do one thing beside each other.
//
// A [Path] is one way. A set of paths takes turns ([Interleave]) in a new order each round, so
// that a disturbance of the machine hits all of them. The result is a ratio of medians to the
// first path, the floor ([Records]). Medians themselves aren't comparable between runs. [Storm]
// and [Sustain] run one path without pause, several calls at once, and look at its leftovers in
// the kernel. [Table] and [Histogram] show results; [ReadMachine] describes the machine. The
// package knows nothing of the thing that is measured.
//
// It doesn't protect against a path that times something other than it says. Each path
// must check its own work before it returns a time.
package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Path is one way to do the thing.
type Path struct {
	Name string
	// Once prepares a call, makes it and returns the time of the call alone. ErrUnfit isn't a
	// failure: the call wasn't of the path's kind and doesn't count.
	Once func() (time.Duration, error)
	// Waits returns, and forgets, the calls' waits for others at the step that has a goal of
	// its own; may be nil.
	Waits func() []time.Duration
	// Close is called when the set is done; may be nil.
	Close func() error
}

// ErrUnfit is the error of Once, wrapped or not, for a call that doesn't count.
var ErrUnfit = errors.New("measure: not of the kind that is measured")

// Names returns the names of paths.
func Names(paths []Path) []string {
	var out []string
	for _, p := range paths {
		out = append(out, p.Name)
	}
	return out
}

// Close closes paths and returns the first error.
func Close(paths []Path) error {
	var err error
	for _, p := range paths {
		if p.Close != nil {
			if e := p.Close(); err == nil {
				err = e
			}
		}
	}
	return err
}

// Pattern is how calls arrive.
type Pattern struct {
	Name  string
	Gap   time.Duration // before each call
	Block int           // calls of one path in a row before the next path's turn
}

// The names of Patterns.
const (
	Burst    = "burst"
	Gap8ms   = "8ms gap"
	Gap100ms = "100ms gap"
)

// Patterns returns all patterns. In a burst a path has ten turns in a row, or each call would
// find the caches in another path's state.
func Patterns() []Pattern {
	return []Pattern{{Burst, 0, 10}, {Gap8ms, 8 * time.Millisecond, 1}, {Gap100ms, 100 * time.Millisecond, 1}}
}

// Interleave runs every path n times, rounded up to blocks, in a new order each round. A path
// with more than n+10 calls that don't count has no samples.
func Interleave(paths []Path, p Pattern, n int) ([][]time.Duration, error) {
	samples, unfit := make([][]time.Duration, len(paths)), make([]int, len(paths))
	done := func(i int) bool { return len(samples[i]) >= n || unfit[i] > n+10 }
	for left := true; left; {
		left = false
		for _, i := range rand.Perm(len(paths)) {
			if done(i) {
				continue
			}
			for range p.Block {
				if p.Gap > 0 {
					time.Sleep(p.Gap)
				}
				d, err := paths[i].Once()
				switch {
				case errors.Is(err, ErrUnfit):
					unfit[i]++
				case err != nil:
					return nil, fmt.Errorf("measure %s: %w", paths[i].Name, err)
				default:
					samples[i] = append(samples[i], d)
				}
			}
			left = left || !done(i)
		}
	}
	for i := range samples {
		if unfit[i] > n+10 {
			samples[i] = nil
		}
	}
	return samples, nil
}

// Storm runs p in that many goroutines for at least that long, one call after the other, and
// returns the time of each call and of the whole. It ends early with the first error. It leaves
// out calls that don't count.
func Storm(p Path, concurrency int, atLeast time.Duration) ([]time.Duration, time.Duration, error) {
	var (
		mu    sync.Mutex
		all   []time.Duration // guarded by mu
		first error           // guarded by mu
		wg    sync.WaitGroup
	)
	failed := func() bool { mu.Lock(); defer mu.Unlock(); return first != nil }
	start := time.Now()
	for range concurrency {
		wg.Go(func() {
			var mine []time.Duration
			for time.Since(start) < atLeast && !failed() {
				d, err := p.Once()
				if errors.Is(err, ErrUnfit) {
					continue
				}
				if err != nil {
					mu.Lock()
					if first == nil {
						first = fmt.Errorf("measure %s: %w", p.Name, err)
					}
					mu.Unlock()
					break
				}
				mine = append(mine, d)
			}
			mu.Lock()
			all = append(all, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, time.Since(start), first
}

package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// path is one way to run one program. To measure a further one, return it from
// the function that makes its set (paths_linux.go, call_linux.go, peers_linux.go).
type path struct {
	name string
	// once prepares what is not part of the call, runs the program and returns
	// how long that took, from the request until it was reaped.
	once func() (time.Duration, error)
	// close is called when the set is done; may be nil.
	close func() error
}

// set is paths that take turns, so that what disturbs the machine disturbs all
// of them. paths[0] is the floor.
type set struct {
	name    string
	program string
	paths   []path
	parts   *recorder // of the whole call, nil in other sets
}

func (s *set) names() []string {
	var out []string
	for _, p := range s.paths {
		out = append(out, p.name)
	}
	return out
}

func (s *set) close() error {
	var err error
	for _, p := range s.paths {
		if p.close != nil {
			if e := p.close(); err == nil {
				err = e
			}
		}
	}
	return err
}

// pattern is how calls arrive.
type pattern struct {
	name  string
	gap   time.Duration // before each call
	block int           // calls of one path in a row before the next path's turn
}

// patterns are all there are. In a burst a path has ten turns in a row, or each
// call would find the caches as another path left them.
func patterns() []pattern {
	return []pattern{{patternBurst, 0, 10}, {pattern8ms, 8 * time.Millisecond, 1}, {pattern100ms, 100 * time.Millisecond, 1}}
}

// interleave runs every path of the set n times, rounded up to blocks, in a new
// order each round.
func interleave(paths []path, p pattern, n int) ([][]time.Duration, error) {
	samples := make([][]time.Duration, len(paths))
	for len(samples[0]) < n {
		for _, i := range rand.Perm(len(paths)) {
			for range p.block {
				if p.gap > 0 {
					time.Sleep(p.gap)
				}
				d, err := paths[i].once()
				if err != nil {
					return nil, fmt.Errorf("measure %s: %w", paths[i].name, err)
				}
				samples[i] = append(samples[i], d)
			}
		}
	}
	return samples, nil
}

// storm runs p in so many goroutines for that long, one call after the other,
// and returns how long each call and the whole took. It ends early with the
// first error.
func storm(p path, concurrency int, atLeast time.Duration) ([]time.Duration, time.Duration, error) {
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
				d, err := p.once()
				if err != nil {
					mu.Lock()
					if first == nil {
						first = fmt.Errorf("measure %s: %w", p.name, err)
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

// sustain measures a storm and what it leaves behind in the kernel, for which it
// waits at most rest.
func sustain(p path, program string, concurrency int, atLeast, rest time.Duration) (sustained, error) {
	before := readLoad()
	stop, peak := make(chan struct{}), make(chan counts)
	go func() {
		most := before
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-t.C:
				most = most.max(readLoad())
			}
		}
	}()
	samples, took, err := storm(p, concurrency, atLeast)
	close(stop)
	most, after := <-peak, readLoad()
	if err != nil {
		return sustained{}, err
	}
	s := summarize(samples)
	out := sustained{Path: p.name, Program: program, Concurrency: concurrency, Seconds: took.Seconds(), Calls: s.N,
		PerSecond: float64(s.N) / took.Seconds(), P50: s.P50, P99: s.P99, Max: s.Max,
		Load: load{NetNSBefore: before.netns, NetNSPeak: most.max(after).netns, NetNSAfter: after.netns,
			SlabBefore: before.slab, SlabPeak: most.max(after).slab, SlabAfter: after.slab}}
	ended, now := time.Now(), after
	for !settled(before, now) && time.Since(ended) < rest {
		time.Sleep(250 * time.Millisecond)
		now = readLoad()
	}
	out.Load.NetNSRest, out.Load.SlabRest = now.netns, now.slab
	out.Load.Rest, out.Load.Settled = time.Since(ended).Seconds(), settled(before, now)
	return out, nil
}

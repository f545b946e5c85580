package measure

import "time"

// Sustain measures a storm and its leftovers in the kernel. It waits at most rest for those to
// go.
func Sustain(p Path, program string, concurrency int, atLeast, rest time.Duration) (Sustained, error) {
	before := readLoad()
	if p.Waits != nil {
		p.Waits()
	}
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
	idle := readProcessors()
	samples, took, err := Storm(p, concurrency, atLeast)
	spent := readProcessors().since(idle)
	close(stop)
	most, after := <-peak, readLoad()
	if err != nil {
		return Sustained{}, err
	}
	s := Summarize(samples)
	out := Sustained{Path: p.Name, Program: program, Concurrency: concurrency, Seconds: took.Seconds(), Calls: s.N,
		PerSecond: float64(s.N) / took.Seconds(), P50: s.P50, P99: s.P99, Max: s.Max, Busy: spent.busy(), CPU: Over(float64(spent.used.Microseconds()), float64(s.N)),
		Load: Load{NetNSBefore: before.netns, NetNSPeak: most.max(after).netns, NetNSAfter: after.netns,
			SlabBefore: before.slab, SlabPeak: most.max(after).slab, SlabAfter: after.slab}}
	if p.Waits != nil {
		w := Summarize(p.Waits())
		out.Group = &Waits{N: w.N, P50: w.P50, P99: w.P99, Max: w.Max}
	}
	ended, now := time.Now(), after
	for !settled(before, now) && time.Since(ended) < rest {
		time.Sleep(250 * time.Millisecond)
		now = readLoad()
	}
	out.Load.NetNSRest, out.Load.SlabRest = now.netns, now.slab
	out.Load.Rest, out.Load.Settled = time.Since(ended).Seconds(), settled(before, now)
	return out, nil
}

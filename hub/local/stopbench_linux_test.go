package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/hub"
	"palyra/kernel"
)

// stopPhases are the points that a stop passes, in their order, by the last of
// its runs: palyra-cell has said that no process of the cell is left, the result
// is in the journal, the run's end is durable, all that is known to the stop,
// and the stop itself is in the journal.
var stopPhases = []string{"dead", "logged", "durable", "ended", "answer"}

// stopTrace has the moment at which the last run passed each phase.
type stopTrace struct {
	mu    sync.Mutex
	start time.Time                // guarded by mu; zero while nothing is stopped
	last  map[string]time.Duration // guarded by mu
	all   []string                 // guarded by mu: every step, for the worst one
}

func (s *stopTrace) step(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start.IsZero() {
		return
	}
	d := time.Since(s.start)
	if phase := map[string]string{"run_answered": "dead", "receipt": "logged", "run:ended": "durable", "stop:cancelled": "ended"}[name]; phase != "" {
		s.last[phase] = d
	}
	s.all = append(s.all, fmt.Sprintf("%7.2f %s", ms(d), name))
}

func (s *stopTrace) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start, s.last, s.all = time.Now(), make(map[string]time.Duration), nil
}

func (s *stopTrace) end() (last map[string]time.Duration, all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last["answer"] = time.Since(s.start)
	s.start = time.Time{}
	return s.last, s.all
}

// BenchmarkStopAmid is BenchmarkStop of eight runs while as many calls and four
// explanations hash a file of 512 MiB. The goal is 100 ms for the 99th percentile.
func BenchmarkStopAmid(b *testing.B) {
	h := newHouse(b, func(c *Config, k *kernel.Config) {
		c.Bounds.Active = 32
		k.Budgets = kernel.NewBudgets(16<<30, 16<<30)
	})
	head, err := os.ReadFile("/bin/true")
	big := h.work() + "/big"
	if err := errors.Join(err, os.WriteFile(big, head, 0o755), os.Truncate(big, 512<<20)); err != nil {
		b.Fatal(err)
	}
	hashed := step("process.run", obj{"argv": []string{"./big"}, "workspace": "src"})
	sessions := make([]string, 16)
	for i := range sessions {
		sessions[i] = h.session(h.owner)
	}
	start := func(session string, s hub.Step) {
		if _, err := hub.StartRun.Do(b.Context(), h, h.owner, hub.NewRun{Session: session, Steps: []hub.Step{s}}); err != nil {
			b.Fatal(err)
		}
	}
	var times []time.Duration
	for i := range b.N {
		word := fmt.Sprintf("61%d.%d", i, os.Getpid())
		for _, s := range sessions[:8] {
			start(s, argv("/bin/sleep", word))
		}
		waitFor(b, func() bool { return len(withWord(word)) >= 8 })
		ctx, leave := context.WithCancel(b.Context())
		var wg sync.WaitGroup
		for _, s := range sessions[8:] {
			start(s, hashed)
		}
		for range 4 {
			wg.Go(func() { hub.ExplainPolicy.Do(ctx, h, h.owner, hub.NewCall{Tool: hashed.Tool, Input: hashed.Input}) })
		}
		waitFor(b, func() bool { return h.k.Budgets().Sealed.Held() >= 8*512<<20 })
		begin := time.Now()
		s, err := hub.Stop.Do(b.Context(), h, h.owner, hub.StopRequest{All: true})
		times = append(times, time.Since(begin))
		if err != nil || s.Cancelled != 16 || s.Left+len(s.Pending) > 0 {
			b.Fatalf("%+v, %v", s, err)
		}
		leave()
		wg.Wait()
		waitFor(b, func() bool { return h.k.Budgets().Sealed.Held() == 0 })
	}
	report(b, "-to-answer", times)
}

// BenchmarkStop is the emergency stop from the moment at which its caller is
// known until no process of a run is left, every run has ended durably and the
// journal has it. The share of the processors that the host took meanwhile stands
// beside it: what is stolen is the tail. With PALYRA_STOP_TRACE=1 it prints each
// step of the slowest.
func BenchmarkStop(b *testing.B) {
	for _, n := range []int{1, 8, 16, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var trace stopTrace
			h := newHouse(b, func(c *Config, k *kernel.Config) {
				c.Bounds.Active = 32
				c.TestOnlyStep, k.TestOnlyStep = trace.step, trace.step
			})
			sessions := make([]string, n)
			for i := range sessions {
				sessions[i] = h.session(h.owner)
			}
			times := make(map[string][]time.Duration)
			var worst time.Duration
			var steps []string
			stolen := stolenShare()
			for i := range b.N {
				word := fmt.Sprintf("60%d.%d", i, os.Getpid())
				for _, s := range sessions {
					if _, err := hub.StartRun.Do(b.Context(), h, h.owner, hub.NewRun{Session: s, Steps: []hub.Step{argv("/bin/sleep", word)}}); err != nil {
						b.Fatal(err)
					}
				}
				waitFor(b, func() bool { return len(withWord(word)) >= n })
				trace.begin()
				_, err := hub.Stop.Do(b.Context(), h, h.owner, hub.StopRequest{All: true})
				last, all := trace.end()
				if err != nil {
					b.Fatal(err)
				}
				for phase, d := range last {
					times[phase] = append(times[phase], d)
				}
				if last["answer"] > worst {
					worst, steps = last["answer"], all
				}
				if left := withWord(word); len(left) > 0 {
					b.Fatalf("%q", left)
				}
			}
			b.ReportMetric(stolen(), "%-stolen")
			for _, phase := range stopPhases {
				report(b, "-to-"+phase, times[phase])
			}
			if os.Getenv("PALYRA_STOP_TRACE") != "" {
				fmt.Fprintf(os.Stderr, "the slowest of %d, ms:\n%s\n", n, strings.Join(steps, "\n"))
			}
		})
	}
}

// stolenShare returns a function that says how many hundredths of the processors'
// time the host has given to others since (steal of proc_stat(5)).
func stolenShare() func() float64 {
	read := func() (stolen, all float64) {
		b, _ := os.ReadFile("/proc/stat") // without it nothing was stolen
		for i, f := range strings.Fields(strings.SplitN(string(b), "\n", 2)[0]) {
			n, _ := strconv.ParseFloat(f, 64)
			if i == 8 {
				stolen = n
			}
			if i <= 8 { // guest time is part of user time
				all += n
			}
		}
		return stolen, all
	}
	stolen, all := read()
	return func() float64 {
		s, a := read()
		return 100 * (s - stolen) / max(a-all, 1)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// report gives median, 99th percentile and worst in milliseconds.
func report(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(ms(all[len(all)/2]), "ms-p50"+what)
	b.ReportMetric(ms(all[len(all)*99/100]), "ms-p99"+what)
	b.ReportMetric(ms(all[len(all)-1]), "ms-worst"+what)
}

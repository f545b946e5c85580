package local

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/kernel"
	"palyra/kernel/hub"
)

// TestStopMeetsAnswer: an emergency stop and a yes for a session meet at each
// point at which they can. No grant stands after the stop.
func TestStopMeetsAnswer(t *testing.T) {
	yes := hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	for _, at := range []string{"approval:answered", "stop:dropped"} {
		t.Run(at, func(t *testing.T) {
			var h *house
			var q hub.Approval
			var met error
			var armed atomic.Bool
			h = newHouse(t, func(c *Config, _ *kernel.Config) {
				c.TestOnlyStep = func(name string) {
					if name != at || !armed.CompareAndSwap(true, false) {
						return
					}
					if at == "stop:dropped" {
						_, met = h.ResolveApproval(t.Context(), h.owner, q.ID, 0, yes)
					} else {
						_, met = h.Stop(t.Context(), h.owner, hub.StopRequest{All: true})
					}
				}
			})
			alice := h.member(1001, access.Operator)
			r := h.start(alice, writeFile("a.txt", "1"))
			h.until(alice, r.ID, hub.EventRunWaitingApproval)
			q = h.question(h.owner)
			armed.Store(true)
			var err error
			if at == "stop:dropped" {
				_, err = h.Stop(t.Context(), h.owner, hub.StopRequest{All: true})
			} else {
				_, err = h.ResolveApproval(t.Context(), h.owner, q.ID, 0, yes)
			}
			if err != nil || met != nil || armed.Load() {
				t.Fatalf("%v, %v, met %v", err, met, !armed.Load())
			}
			if gs, err := h.Grants(t.Context(), h.owner); err != nil || len(gs.Items) != 0 {
				t.Errorf("%+v, %v", gs, err)
			}
			if r := h.ended(alice, r.ID); r.State != hub.RunCancelled && r.State != hub.RunDone {
				t.Errorf("%s %s", r.State, r.Reason)
			}
			if asked, _ := h.asks(alice, r.Session, writeFile("b.txt", "2")); !asked {
				t.Error("after the stop the session's next call ran unasked")
			}
		})
	}
}

// BenchmarkStop is the emergency stop from the moment at which its caller is
// known until no process of a run is left, every run has ended durably and the
// journal has it.
func BenchmarkStop(b *testing.B) {
	for _, n := range []int{1, 8, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cancelled := make(chan time.Time, 1)
			h := newHouse(b, func(c *Config, _ *kernel.Config) {
				c.Bounds.Active = 32
				c.TestOnlyStep = func(name string) {
					if name == "stop:cancelled" {
						cancelled <- time.Now()
					}
				}
			})
			sessions := make([]string, n)
			for i := range sessions {
				sessions[i] = h.session(h.owner)
			}
			var all, ended []time.Duration
			for i := range b.N {
				word := fmt.Sprintf("60%d.%d", i, os.Getpid())
				for _, s := range sessions {
					if _, err := h.StartRun(b.Context(), h.owner, hub.NewRun{Session: s, Steps: []hub.Step{argv("/bin/sleep", word)}}); err != nil {
						b.Fatal(err)
					}
				}
				waitFor(b, func() bool { return len(withWord(word)) >= n })
				start := time.Now()
				if _, err := h.Stop(b.Context(), h.owner, hub.StopRequest{All: true}); err != nil {
					b.Fatal(err)
				}
				all, ended = append(all, time.Since(start)), append(ended, (<-cancelled).Sub(start))
				if left := withWord(word); len(left) > 0 {
					b.Fatalf("%q", left)
				}
			}
			report(b, "-to-ended", ended)
			report(b, "-to-answer", all)
		})
	}
}

// report gives median, 99th percentile and worst in milliseconds.
func report(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(all[len(all)/2]), "ms-p50"+what)
	b.ReportMetric(ms(all[len(all)*99/100]), "ms-p99"+what)
	b.ReportMetric(ms(all[len(all)-1]), "ms-worst"+what)
}

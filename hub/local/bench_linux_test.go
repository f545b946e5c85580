package local

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/kernel"
)

// BenchmarkCall is what the hub adds to the gate: the same call through both.
func BenchmarkCall(b *testing.B) {
	h := newHouse(b, nil)
	s := argv("/bin/true")
	b.Run("gate", func(b *testing.B) {
		who := kernel.Caller{Principal: policy.LocalUser(h.owner.User)}
		for b.Loop() {
			if _, err := h.k.CallAs(b.Context(), who, kernel.Proposal{Tool: s.Tool, Input: s.Input}, kernel.IO{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hub", func(b *testing.B) {
		for b.Loop() {
			if _, err := hub.Call.Do(b.Context(), h, h.owner, hub.NewCall{Tool: s.Tool, Input: s.Input}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCancel is the time from a cancel to its answer, when no process is
// left and that is on disk.
func BenchmarkCancel(b *testing.B) {
	h := newHouse(b, nil)
	session := h.session(h.owner)
	var sum, worst time.Duration
	for i := range b.N {
		word := fmt.Sprintf("50%d.%d", i, os.Getpid())
		r, err := hub.StartRun.Do(b.Context(), h, h.owner, hub.NewRun{Session: session, Steps: []hub.Step{argv("/bin/sleep", word)}})
		if err != nil {
			b.Fatal(err)
		}
		waitFor(b, func() bool { return len(withWord(word)) > 0 })
		start := time.Now()
		if _, err := hub.CancelRun.Do(b.Context(), h, h.owner, r.ID); err != nil {
			b.Fatal(err)
		}
		d := time.Since(start)
		sum, worst = sum+d, max(worst, d)
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N)/1000, "ms/cancel")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms-worst")
}

// BenchmarkApproval is the time from an answer to the intent of the call that
// waited for it.
func BenchmarkApproval(b *testing.B) {
	intent := make(chan time.Time, 1)
	h := newHouse(b, func(_ *Config, k *kernel.Config) {
		k.TestOnlyStep = func(name string) {
			if name == "intent" {
				intent <- time.Now()
			}
		}
	})
	alice := h.member(1001, access.Operator)
	session := h.session(alice)
	var sum, worst time.Duration
	for i := range b.N {
		write := step("fs.write_file", obj{"workspace": "src", "path": fmt.Sprint(i), "mode": "create", "content": "x"})
		r, err := hub.StartRun.Do(b.Context(), h, alice, hub.NewRun{Session: session, Steps: []hub.Step{write}})
		if err != nil {
			b.Fatal(err)
		}
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q := h.question(h.owner)
		start := time.Now()
		if _, err := hub.ResolveApproval.Do(b.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil {
			b.Fatal(err)
		}
		d := (<-intent).Sub(start)
		sum, worst = sum+d, max(worst, d)
		h.ended(alice, r.ID)
		if _, err := os.Stat(filepath.Join(h.work(), fmt.Sprint(i))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N)/1000, "ms/answer-to-intent")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms-worst")
}

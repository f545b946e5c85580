package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// meter counts the gate's work by its events. Every label has few values, which stand here:
// no caller can make it grow. It is safe for concurrent use.
type meter struct {
	decisions [len(effects)]atomic.Uint64
	calls     [len(tiers)][len(outcomes)]atomic.Uint64
	answers   [len(answers)]atomic.Uint64
	ran       [len(tiers)]histogram
	waited    histogram
	appended  histogram
}

var (
	effects  = [...]policy.Effect{policy.Allow, policy.NeedsApproval, policy.Deny}
	tiers    = [...]tier.Tier{tier.A, tier.B, tier.C}
	outcomes = [...]string{receipt.Executed, receipt.Denied, receipt.NotApproved, receipt.Refused, receipt.Failed, receipt.TimedOut,
		receipt.Killed, receipt.OutcomeUnknown, "other"}
	answers = [...]string{approval.Approved, approval.Denied, approval.Expired, approval.Withdrawn, standing, "other"}
)

// standing is the answer by an earlier yes, without asking a person.
const standing = "standing"

// slot returns the index of v, or the last one.
func slot[T comparable](list []T, v T) int {
	for i := range list {
		if list[i] == v {
			return i
		}
	}
	return len(list) - 1
}

// observe implements kernel.Config.Observe.
func (m *meter) observe(e kernel.Event) {
	switch e.Step {
	case kernel.StepDecided:
		m.decisions[slot(effects[:], e.Decision.Effect)].Add(1)
	case kernel.StepAnswered:
		answer := e.Approval.Answer
		if e.Approval.Grant != "" {
			answer = standing
		} else {
			m.waited.add(e.Took)
		}
		m.answers[slot(answers[:], answer)].Add(1)
	case kernel.StepExecuted:
		m.ran[slot(tiers[:], e.Tier)].add(e.Took)
	case kernel.StepResult:
		m.calls[slot(tiers[:], e.Tier)][slot(outcomes[:], e.Outcome)].Add(1)
	case kernel.StepLogged:
		m.appended.add(e.Took)
	}
}

// write prints the counters in Prometheus' text format. It prints all of them from the
// beginning, so that a rate has a start.
func (m *meter) write(w io.Writer) {
	head := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	head("palyra_decisions_total", "counter", "Calls that policy decided, by effect.")
	for i, e := range effects {
		fmt.Fprintf(w, "palyra_decisions_total{effect=%q} %d\n", e, m.decisions[i].Load())
	}
	head("palyra_calls_total", "counter", "Decided calls that have ended, by tier floor and outcome.")
	for i, t := range tiers {
		for j, o := range outcomes {
			fmt.Fprintf(w, "palyra_calls_total{tier=%q,outcome=%q} %d\n", t, o, m.calls[i][j].Load())
		}
	}
	head("palyra_execution_seconds", "histogram", "Time from the grant until the program and all it started are gone, by tier floor.")
	for i, t := range tiers {
		m.ran[i].write(w, "palyra_execution_seconds", fmt.Sprintf("tier=%q", t))
	}
	head("palyra_approvals_total", "counter", "Calls that needed an approval, by the answer; standing is a yes that was given before.")
	for i, a := range answers {
		fmt.Fprintf(w, "palyra_approvals_total{answer=%q} %d\n", a, m.answers[i].Load())
	}
	head("palyra_approval_wait_seconds", "histogram", "Time that a question waited for its answer or its end.")
	m.waited.write(w, "palyra_approval_wait_seconds", "")
	head("palyra_journal_append_seconds", "histogram", "Time until an entry of the journal was durable.")
	m.appended.write(w, "palyra_journal_append_seconds", "")
}

// bounds are the upper ends of the buckets, in seconds: from an append to a disk
// to a person who has gone home.
var bounds = [...]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

type histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64
	micros  atomic.Int64
}

func (h *histogram) add(d time.Duration) {
	i := 0
	for i < len(bounds) && d.Seconds() > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.micros.Add(d.Microseconds())
}

// write prints the samples of h; label is `name="value"` or empty.
func (h *histogram) write(w io.Writer, name, label string) {
	with, alone := "", ""
	if label != "" {
		with, alone = label+",", "{"+label+"}"
	}
	sum := uint64(0)
	for i := range h.buckets {
		sum += h.buckets[i].Load()
		le := "+Inf"
		if i < len(bounds) {
			le = fmt.Sprintf("%g", bounds[i])
		}
		fmt.Fprintf(w, "%s_bucket{%sle=%q} %d\n", name, with, le, sum)
	}
	fmt.Fprintf(w, "%s_sum%s %g\n%s_count%s %d\n", name, alone, float64(h.micros.Load())/1e6, name, alone, sum)
}

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// TestMeter: each event is counted once, in a label that stands in the tables; what
// no table knows makes no new label.
func TestMeter(t *testing.T) {
	m := new(meter)
	size := func() int {
		var b strings.Builder
		m.write(&b)
		return strings.Count(b.String(), "\n")
	}
	before := size()
	for i := range 50 {
		m.observe(kernel.Event{Step: kernel.StepDecided, Decision: &policy.Decision{Effect: policy.Effect(i)}})
		m.observe(kernel.Event{Step: kernel.StepResult, Tier: tier.Tier(i), Outcome: fmt.Sprint("made up ", i)})
		m.observe(kernel.Event{Step: kernel.StepAnswered, Approval: &approval.View{Answer: fmt.Sprint(i)}, Took: time.Hour})
	}
	if after := size(); after != before {
		t.Errorf("%d lines, %d after unknown values", before, after)
	}
	*m = meter{}
	m.observe(kernel.Event{Step: kernel.StepDecided, Decision: &policy.Decision{Effect: policy.NeedsApproval}})
	m.observe(kernel.Event{Step: kernel.StepAnswered, Approval: &approval.View{Answer: approval.Approved}, Took: 2 * time.Second})
	m.observe(kernel.Event{Step: kernel.StepAnswered, Approval: &approval.View{Answer: approval.Approved, Grant: "grt_1"}, Took: time.Millisecond})
	m.observe(kernel.Event{Step: kernel.StepExecuted, Tier: tier.B, Took: 30 * time.Millisecond})
	m.observe(kernel.Event{Step: kernel.StepResult, Tier: tier.B, Outcome: receipt.TimedOut})
	m.observe(kernel.Event{Step: kernel.StepLogged, Took: 3 * time.Millisecond})
	var b strings.Builder
	m.write(&b)
	for _, want := range []string{
		`palyra_decisions_total{effect="needs_approval"} 1`, `palyra_decisions_total{effect="deny"} 0`,
		`palyra_calls_total{tier="b",outcome="timed_out"} 1`, `palyra_calls_total{tier="c",outcome="timed_out"} 0`,
		`palyra_approvals_total{answer="approved"} 1`, `palyra_approvals_total{answer="standing"} 1`,
		`palyra_approval_wait_seconds_bucket{le="1"} 0`, `palyra_approval_wait_seconds_bucket{le="2.5"} 1`, `palyra_approval_wait_seconds_count 1`,
		`palyra_execution_seconds_bucket{tier="b",le="0.05"} 1`, `palyra_execution_seconds_sum{tier="b"} 0.03`,
		`palyra_journal_append_seconds_bucket{le="0.0025"} 0`, `palyra_journal_append_seconds_bucket{le="+Inf"} 1`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
}

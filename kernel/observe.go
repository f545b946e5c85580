package kernel

import (
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/canon"
)

// The steps of a call that IO.Observe is told of, in their order. A call that
// ends early has no further ones but StepResult.
const (
	StepSealed   = "sealed"   // the capsule is made: Capsule
	StepDecided  = "decided"  // policy has answered: Decision
	StepAsked    = "asked"    // a person is about to be asked: Question
	StepAnswered = "answered" // there is an answer, or will be none: Approval
	StepIntent   = "intent"   // the intent is durable and the program starts: LogIndex
	StepExecuted = "executed" // the program is gone
	StepResult   = "result"   // the result is durable: Outcome, LogIndex
)

// Event is one step of a call, at the time it was finished. It holds what the
// comments of the steps name, and is the observer's to keep.
type Event struct {
	Step     string
	CallID   string
	Capsule  canon.Digest
	Decision *policy.Decision
	Question *approval.Request
	Approval *approval.View
	Outcome  string
	LogIndex *uint64
}

// observe tells of a step. The observer runs on the call's own goroutine: a slow
// one delays the call, and none can change it.
func (c *call) observe(e Event) {
	if c.watch == nil {
		return
	}
	e.CallID, e.Capsule = c.out.CallID, c.s.id
	c.watch(e)
}

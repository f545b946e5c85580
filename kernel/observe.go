package kernel

import (
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/isolate/tier"
)

// The steps of a call that IO.Observe is told of, in their order. A call that
// ends early has no further ones but StepResult.
const (
	StepSealed   = "sealed"   // the capsule is made: Capsule
	StepDecided  = "decided"  // policy has answered: Decision
	StepAsked    = "asked"    // a person is about to be asked: Question
	StepAnswered = "answered" // there is an answer, or will be none: Approval, Took
	StepIntent   = "intent"   // the intent is durable and the program starts: LogIndex
	StepExecuted = "executed" // the program is gone, or will not start after all: Took
	StepResult   = "result"   // the result is durable: Outcome, LogIndex
)

// StepLogged is what Config.Observe is told of each entry of the journal, those of
// calls and others, when it is durable: Took.
const StepLogged = "logged"

// Event is one step of a call, at the time it was finished. It holds what the
// comments of the steps name, and is the observer's to keep.
type Event struct {
	Step     string
	CallID   string
	Capsule  canon.Digest
	Tier     tier.Tier // floor of the call
	Decision *policy.Decision
	Question *approval.Request
	Approval *approval.View
	Outcome  string
	LogIndex *uint64
	Took     time.Duration
}

// observe tells of a step. The observer runs on the call's own goroutine: a slow
// one delays the call, and none can change it.
func (c *call) observe(e Event) {
	e.CallID, e.Capsule, e.Tier = c.out.CallID, c.s.id, c.s.capsule.TierFloor
	for _, watch := range [...]func(Event){c.k.cfg.Observe, c.watch} {
		if watch != nil {
			watch(e)
		}
	}
}

package kernel

import (
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/isolate/tier"
)

// The steps of a call that IO.Observe gets, in order. A call that ends early skips to
// StepResult.
const (
	StepSealed   = "sealed"   // the capsule is made: Capsule
	StepDecided  = "decided"  // policy has answered: Decision
	StepAsked    = "asked"    // a person is about to be asked: Question
	StepAnswered = "answered" // an answer, or no more chance of one: Approval, Took
	StepIntent   = "intent"   // the intent is durable and the program starts: LogIndex, Sources
	StepExecuted = "executed" // the program is gone, or won't start after all: Took
	StepResult   = "result"   // the result is durable: Outcome, LogIndex
)

// StepLogged is the step that Config.Observe gets for each durable entry of the journal, of a
// call or not: Took.
const StepLogged = "logged"

// Event is one finished step of a call. It holds the fields that the steps' comments name. The
// observer may keep it.
type Event struct {
	Step    string
	CallID  string
	Capsule canon.Digest
	Tier    tier.Tier // the call's floor
	// Program, with StepSealed of a tool's call whose standard input is a stream, is what the
	// capsule says of its program, for Exchanger.
	Program  canon.Digest
	Decision *policy.Decision
	Question *approval.Request
	Approval *approval.View
	Outcome  string
	LogIndex *uint64
	Sources  *Sources
	Took     time.Duration
}

// observe passes a step to the observers, on the call's own goroutine. A slow observer delays
// the call; none can change it.
func (c *call) observe(e Event) {
	e.CallID, e.Capsule, e.Tier = c.out.CallID, c.s.id, c.s.capsule.TierFloor
	for _, watch := range [...]func(Event){c.k.cfg.Observe, c.watch} {
		if watch != nil {
			watch(e)
		}
	}
}

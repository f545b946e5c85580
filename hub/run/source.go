package run

import (
	"context"

	"palyra/hub"
	"palyra/internal/fault"
)

// Source says which step comes next.
type Source interface {
	// Next returns the next step, or more == false if there is none. results are
	// those of all steps before, in order. It may take its time: until ctx is done,
	// which is when the run is cancelled or its budget is used up. An error ends
	// the run as failed, with the reason of the fault.
	Next(ctx context.Context, results []hub.StepResult) (s hub.Step, more bool, err error)
}

// Agents has the sources of runs whose steps an agent chooses.
type Agents interface {
	// Check refuses what no source can be made of, before the run has an id.
	Check(ctx context.Context, a Agent) error
	// Source makes one. If it's an io.Closer, too, it's closed when the run ends.
	Source(a Agent) Source
}

// Agent is the run of an agent.
type Agent struct {
	ID, Session string
	Caller      hub.Caller
	Reserve     bool  // may use what budgets keep for the installation's owner
	Calls       int64 // that its budget lets it make
	Inbox       *Inbox
	hub.Agent
}

// Telling is a Source that puts events on its run's tape. Tell returns those that have come since
// it was asked last: it's asked when Next has returned.
type Telling interface {
	Source
	Tell() []Entry
}

// Entry is an event for the tape.
type Entry struct {
	Kind string
	Data any
}

// source is where the steps of a run come from.
func (e *Engine) source(j *job) Source {
	p := j.plan
	if p.Agent == nil {
		return &List{Steps: p.Steps, KeepGoing: p.KeepGoing}
	}
	return e.cfg.Agents.Source(Agent{ID: j.id, Session: j.session, Caller: j.caller(), Reserve: j.plan.Reserve, Calls: j.budget.Calls, Inbox: &j.inbox, Agent: *p.Agent})
}

// List is the Source of a run whose steps were given when it was started.
type List struct {
	Steps     []hub.Step
	KeepGoing bool // go on after a step that did not end well
}

var _ Source = (*List)(nil)

// Next implements Source. It answers at once.
func (l *List) Next(_ context.Context, results []hub.StepResult) (hub.Step, bool, error) {
	n := len(results)
	if n > 0 && !l.KeepGoing && !well(&results[n-1]) {
		return hub.Step{}, false, fault.New(fault.Usage, results[n-1].Reason, "next step", nil)
	}
	if n < len(l.Steps) {
		return l.Steps[n], true, nil
	}
	for i := range results {
		if !well(&results[i]) {
			return hub.Step{}, false, fault.New(fault.Usage, ReasonStepFailed, "next step", nil)
		}
	}
	return hub.Step{}, false, nil
}

// well reports whether a step ended as one wants it.
func well(r *hub.StepResult) bool { return r.Reason == "" }

package run

import (
	"fmt"
	"slices"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// next is the table of states. What is not in it cannot happen. The zero state
// is that of a run that does not exist yet.
var next = map[store.RunState][]store.RunState{
	"":                       {store.RunPending},
	store.RunPending:         {store.RunAccepted, store.RunFailed, store.RunCancelled},
	store.RunAccepted:        {store.RunInProgress, store.RunFailed, store.RunCancelled},
	store.RunInProgress:      {store.RunWaitingApproval, store.RunDone, store.RunFailed, store.RunCancelled},
	store.RunWaitingApproval: {store.RunInProgress, store.RunFailed, store.RunCancelled},
	store.RunDone:            {},
	store.RunFailed:          {},
	store.RunCancelled:       {},
}

// stepNext is the same for steps.
var stepNext = map[store.StepState][]store.StepState{
	"":                {store.StepRunning},
	store.StepRunning: {store.StepDone, store.StepFailed},
	store.StepDone:    {},
	store.StepFailed:  {},
}

// path is how a run comes from one state to another through the table: the
// states after from, to included. Only the way to work has more than one.
func path(from, to store.RunState) []store.RunState {
	var p []store.RunState
	for to == store.RunInProgress && (from == "" || from == store.RunPending) || to == store.RunAccepted && from == "" {
		from = next[from][0]
		p = append(p, from)
	}
	return append(p, to)
}

// move brings a run into a state and puts each state on the way on its tape. It
// is the only code that changes a run's state. The caller updates the row.
func move(tx *store.Tx, r *store.Run, to store.RunState, c hub.RunChange) error {
	for _, s := range path(r.State, to) {
		if !slices.Contains(next[r.State], s) {
			return fault.New(fault.Internal, "internal", "move run", fmt.Errorf("%q cannot become %q", r.State, s))
		}
		r.State = s
		c.State, c.Use = string(s), budgetOf(r.Use)
		if err := event(tx, r.ID, "run."+string(s), c); err != nil {
			return err
		}
	}
	if to.Terminal() {
		r.Reason = c.Reason
	}
	return nil
}

// moveStep brings a step into a state. The caller updates the row.
func moveStep(s *store.Step, to store.StepState) error {
	if !slices.Contains(stepNext[s.State], to) {
		return fault.New(fault.Internal, "internal", "move step", fmt.Errorf("%q cannot become %q", s.State, to))
	}
	s.State = to
	return nil
}

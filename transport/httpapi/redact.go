package httpapi

import (
	"encoding/json"
	"slices"

	"palyra/hub"
)

// A caller who may not read policy learns only the outcome of a refusal and the decision's
// id, in results and on tapes as in problems.

// redactRun returns a run as such a caller sees it.
func redactRun(r hub.Run) hub.Run {
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		redactStep(&r.Steps[i])
	}
	return r
}

func redactStep(s *hub.StepResult) {
	if s.Denial == nil || s.Denial.Layer == hub.LayerAccess || s.Denial.Layer == hub.LayerBudget {
		return // about the caller's own credential or run
	}
	// The comment is for the caller.
	s.Denial = &hub.Denial{DecisionID: s.Denial.DecisionID, Layer: s.Denial.Layer, Comment: s.Denial.Comment}
	s.Reason, s.Error, s.Hint = "", "", ""
}

// redactEvent returns the data of an event as such a caller sees it. ok is false
// if there is nothing to hide.
func redactEvent(ev hub.Event) (data json.RawMessage, ok bool) {
	var v any
	switch ev.Kind {
	case hub.EventStepDecided:
		var d hub.StepDecided
		if json.Unmarshal(ev.Data, &d) != nil {
			return json.RawMessage("{}"), true
		}
		d.Reason, d.Policies = "", []string{}
		v = d
	case hub.EventStepEnded:
		var s hub.StepResult
		if json.Unmarshal(ev.Data, &s) != nil {
			return json.RawMessage("{}"), true
		}
		if s.Denial == nil {
			return nil, false
		}
		redactStep(&s)
		v = s
	case hub.EventApprovalRequested:
		var a hub.Approval
		if json.Unmarshal(ev.Data, &a) != nil {
			return json.RawMessage("{}"), true
		}
		a.Card.Why, a.Text = []hub.CardWhy{}, ""
		v = a
	default:
		return nil, false
	}
	b, err := encode(v)
	if err != nil {
		return json.RawMessage("{}"), true
	}
	return b[:len(b)-1], true
}

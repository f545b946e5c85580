package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bounds of a Request.
const (
	MaxSteps = 256
	MaxInput = 1 << 20 // bytes of one step's input
	maxPlan  = 4 << 20 // bytes of all inputs
	MaxKey   = 128     // bytes of an idempotency key
)

// Request is a run as somebody wants to have it.
type Request struct {
	Session   string // of the same user; "": one of its own, which ends with it
	User      string // principal, as the surface authenticated it
	Surface   string
	Device    string
	Token     string // id of the token that was shown, "" for none
	Reserve   bool   // may use what budgets keep for the installation's owner
	Steps     []hub.Step
	Budget    hub.Budget
	KeepGoing bool
	Key       string // idempotency key; "" is none
	// Attended says that somebody waits for it and nobody else wants to know: it
	// is not made any more after a restart.
	Attended bool
}

// plan is what is kept of a Request, as JSON in the run's row.
type plan struct {
	Digest    canon.Digest `json:"digest"` // of what makes two requests the same
	Surface   string       `json:"surface"`
	Device    string       `json:"device,omitempty"`
	Token     string       `json:"token,omitempty"`
	Reserve   bool         `json:"reserve,omitempty"`
	Steps     []hub.Step   `json:"steps"`
	KeepGoing bool         `json:"keep_going,omitempty"`
	Attended  bool         `json:"attended,omitempty"`
	Ephemeral bool         `json:"ephemeral,omitempty"` // the session is the run's own
}

// check refuses what cannot be made and spells inputs in one way.
func (q *Request) check() (*plan, error) {
	const op = "start run"
	bad := func(reason, format string, a ...any) (*plan, error) {
		return nil, fault.New(fault.Usage, reason, op, fmt.Errorf(format, a...))
	}
	switch {
	case q.User == "":
		return nil, fault.New(fault.Denied, "not_a_member", op, errors.New("the request names no user"))
	case len(q.Steps) == 0:
		return bad("invalid_input", "a run has at least one step")
	case len(q.Steps) > MaxSteps:
		return bad("too_large", "%d steps, the limit is %d", len(q.Steps), MaxSteps)
	case len(q.Key) > MaxKey || !printable(q.Key):
		return bad("invalid_input", "a key is at most %d printable ASCII characters", MaxKey)
	case q.Budget.Calls < 0 || q.Budget.Wall < 0 || q.Budget.Bytes < 0:
		return bad("invalid_input", "a bound is negative")
	}
	p := &plan{Surface: q.Surface, Device: q.Device, Token: q.Token, Reserve: q.Reserve, KeepGoing: q.KeepGoing, Attended: q.Attended && q.Key == "", Ephemeral: q.Session == ""}
	total := 0
	for i, s := range q.Steps {
		if s.Tool == "" || len(s.Tool) > 128 || !printable(s.Tool) {
			return bad("invalid_input", "step %d: a tool is named with 1 to 128 printable ASCII characters", i)
		}
		if len(s.Input) == 0 {
			s.Input = json.RawMessage("{}")
		}
		var b bytes.Buffer
		if len(s.Input) > MaxInput || json.Compact(&b, s.Input) != nil || b.Bytes()[0] != '{' {
			return bad("invalid_input", "step %d: an input is one JSON object of at most %d bytes", i, MaxInput)
		}
		if total += b.Len(); total > maxPlan {
			return bad("too_large", "inputs of more than %d bytes", maxPlan)
		}
		p.Steps = append(p.Steps, hub.Step{Tool: s.Tool, Input: b.Bytes()})
	}
	same, err := json.Marshal(struct {
		Session   string
		Steps     []hub.Step
		Budget    hub.Budget
		KeepGoing bool
	}{q.Session, p.Steps, q.Budget, q.KeepGoing})
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	p.Digest = canon.Sum(same)
	return p, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// bound is a budget with the daemon's bounds laid over it.
func bound(b hub.Budget, most store.Budget) store.Budget {
	c := store.Budget{Calls: b.Calls, Wall: b.Wall, Bytes: b.Bytes}
	for _, f := range []struct {
		v    *int64
		most int64
	}{{&c.Calls, most.Calls}, {(*int64)(&c.Wall), int64(most.Wall)}, {&c.Bytes, most.Bytes}} {
		if *f.v <= 0 || *f.v > f.most {
			*f.v = f.most
		}
	}
	return c
}

func budgetOf(b store.Budget) hub.Budget {
	return hub.Budget{Calls: b.Calls, Wall: b.Wall, Bytes: b.Bytes}
}

func (p *plan) encode() ([]byte, error) { return json.Marshal(p) }

// planOf reads the plan of a row.
func planOf(r *store.Run) (*plan, error) {
	var p plan
	if err := json.Unmarshal(r.Plan, &p); err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read plan of run %q", r.ID), err)
	}
	return &p, nil
}

// source is where the steps of a plan come from.
func (p *plan) source() *List { return &List{Steps: p.Steps, KeepGoing: p.KeepGoing} }

package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// ProblemType begins the type of a problem; the kind's name follows. The address names the
// class and isn't fetched.
const ProblemType = "https://palyra.dev/problems/"

// MediaProblem is the media type of a Problem, RFC 9457.
const MediaProblem = "application/problem+json"

// Problem is the body of every answer that is not a success: RFC 9457 with what
// a program or a person needs to go on. Members that do not apply are left out.
type Problem struct {
	Type     string `json:"type"`   // ProblemType and the kind
	Title    string `json:"title"`  // of the kind; for people, always the same
	Status   int    `json:"status"` // as in the status line
	Kind     string `json:"kind"`   // fault.Kind's name
	Reason   string `json:"reason,omitempty"`
	Detail   string `json:"detail,omitempty"`   // what happened this time
	Instance string `json:"instance,omitempty"` // "urn:palyra:request:…"; the log has the same

	// The members of a hub.Denial.
	Decision   string       `json:"decision,omitempty"` // its id
	Layer      string       `json:"layer,omitempty"`    // who said no: "policy", "access", "budget" …
	Rules      []string     `json:"rules,omitempty"`    // policies that determined it, sorted
	PolicySet  canon.Digest `json:"policy_set,omitzero"`
	Capsule    canon.Digest `json:"capsule,omitzero"`
	Errors     []string     `json:"errors,omitempty"` // of evaluation
	Fix        string       `json:"fix,omitempty"`    // what to do; of layer policy the change is told by GET /policy/decisions/{decision}
	Permission string       `json:"permission,omitempty"`

	Hint string `json:"hint,omitempty"` // what a person can do
}

// class is the part of a kind that the outside learns: the status and the title.
type class struct {
	status int
	title  string
	// open says that the error's text is about the request and may be shown. Other errors
	// are about the host.
	open bool
}

// classes is the one table from fault.Kind to HTTP. A kind that isn't in it is answered as
// Internal.
var classes = map[fault.Kind]class{
	fault.Internal:    {500, "something went wrong inside", false},
	fault.Usage:       {400, "the request is not well-formed", true},
	fault.NotFound:    {404, "there is no such thing", true},
	fault.NotExec:     {422, "the named thing cannot be executed", true},
	fault.Denied:      {403, "denied", true},
	fault.NotApproved: {403, "not approved", true},
	fault.Refused:     {422, "this host cannot enforce what the call needs", true},
	fault.Integrity:   {500, "something that must check does not", false},
	fault.BadState:    {500, "state or configuration cannot be used", false},
	fault.Busy:        {409, "another request was first", true},
	fault.Unavailable: {503, "not available now", true},
	fault.Timeout:     {504, "a deadline passed", true},
	fault.Canceled:    {409, "canceled", true},
	fault.Unsupported: {501, "not supported here", true},
}

// reasons are the reason codes for which HTTP has a status that says more than
// that of the kind.
var reasons = map[fault.Code]int{
	fault.ErrUnauthenticated: 401,
	fault.ErrJSONTooLarge:    413,
	fault.ErrKeyReused:       422,
	fault.ErrVersionConflict: 412,
	fault.ErrTooMany:         429,
	fault.ErrQuota:           429,
	fault.ErrQueueFull:       503,
}

// WithStatus returns err, for which HTTP has a status of its own. A client needs no more than that.
func WithStatus(status int, err error) error { return statusError{err, status} }

type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// StatusOf returns the HTTP status for err.
func StatusOf(err error) int {
	if e, ok := errors.AsType[statusError](err); ok {
		return e.status
	}
	if s, ok := reasons[fault.Code(fault.ReasonOf(err))]; ok {
		return s
	}
	return classOf(KindOf(err)).status
}

func classOf(k fault.Kind) class {
	c, ok := classes[k]
	if !ok {
		return classes[fault.Internal]
	}
	return c
}

// KindOf returns the class of err. A context's end isn't a bug.
func KindOf(err error) fault.Kind {
	k := fault.KindOf(err)
	switch {
	case k != fault.Internal:
	case errors.Is(err, context.Canceled):
		k = fault.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		k = fault.Timeout
	}
	return k
}

// ProblemOf describes err to the outside. id names the request. An error that isn't about
// the request shows only its class: the log has the rest. trusted says that the caller may
// read policy; other callers learn only the class of a refusal and the id of the decision.
func ProblemOf(err error, id string, trusted bool) Problem {
	kind := KindOf(err)
	c := classOf(kind)
	p := Problem{Type: ProblemType + kind.String(), Title: c.title, Status: StatusOf(err), Kind: kind.String()}
	if id != "" {
		p.Instance = instance + id
	}
	d := hub.DenialOf(err)
	if d != nil {
		p.Decision = d.DecisionID
	}
	switch {
	case d != nil && d.Layer == hub.LayerAccess, d == nil && errors.Is(err, fault.ErrUnauthenticated):
		// about the caller's own credential
	case !trusted && (d != nil || guarded(kind)):
		return p
	}
	if p.Reason = fault.ReasonOf(err); p.Reason == "" {
		p.Reason = kind.String()
	}
	if !c.open && !aboutPolicy(err) {
		p.Detail = "the log of palyrad has more under this instance"
		if kind == fault.Internal {
			p.Reason = kind.String()
		} else {
			p.Hint = fault.HintOf(err)
		}
		return p
	}
	p.Detail, p.Hint = oneLine(err.Error()), fault.HintOf(err)
	if d != nil {
		p.Layer, p.Rules, p.PolicySet, p.Capsule = d.Layer, d.Policies, d.PolicySet, d.Capsule
		p.Errors, p.Fix, p.Permission = d.Errors, d.Fix, d.Permission
	}
	return p
}

// aboutPolicy reports whether err says what is wrong with a policy directory: its file, its line
// and what they break, all of which a caller may see that may read policy.
func aboutPolicy(err error) bool {
	return slices.ContainsFunc([]fault.Code{fault.ErrPolicyInvalid, fault.ErrPolicyNeverMatches, fault.ErrPolicyTestFailed, fault.ErrPolicyUntested},
		func(c fault.Code) bool { return errors.Is(err, c) })
}

// guarded are the kinds whose details say how this host is protected.
func guarded(k fault.Kind) bool {
	switch k {
	case fault.Denied, fault.NotApproved, fault.Refused, fault.Integrity, fault.BadState:
		return true
	}
	return false
}

const instance = "urn:palyra:request:"

// maxDetail bounds a problem's detail, in bytes.
const maxDetail = 1024

// oneLine makes of a text one line of bounded length.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "") + "…"
	}
	return s
}

// Err turns a problem into the client's error: a fault.Error with the kind, the reason and
// the hint of the server's error, and a hub.DenialError in its chain if there was one. op
// names the operation.
func (p *Problem) Err(op string) error {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	kind := p.kind()
	if id, ok := strings.CutPrefix(p.Instance, instance); ok && !classOf(kind).open {
		text += " (request " + id + ")"
	}
	cause := errors.New(text)
	if p.Decision != "" || p.Layer != "" {
		cause = &refusal{text, hub.DenialError{Denial: hub.Denial{DecisionID: p.Decision, Layer: p.Layer, Reason: p.Reason, Policies: p.Rules,
			PolicySet: p.PolicySet, Capsule: p.Capsule, Errors: p.Errors, Fix: p.Fix, Permission: p.Permission}}}
	}
	return fault.New(kind, p.Reason, op, cause).WithHint(p.Hint)
}

// refusal is a denial with the text that it had on the other side.
type refusal struct {
	text   string
	denial hub.DenialError
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return &r.denial }

// kind finds the kind by its name, or by the status if the name isn't ours: another server
// on the way may have answered.
func (p *Problem) kind() fault.Kind {
	for k := range classes {
		if k.String() == p.Kind {
			return k
		}
	}
	switch p.Status {
	case 401, 403:
		return fault.Denied
	case 404:
		return fault.NotFound
	case 409, 412:
		return fault.Busy
	case 429, 502, 503:
		return fault.Unavailable
	case 408, 504:
		return fault.Timeout
	}
	if p.Status >= 400 && p.Status < 500 {
		return fault.Usage
	}
	return fault.Internal
}

// String is for logs: the class and where to look.
func (p *Problem) String() string {
	return fmt.Sprintf("%d %s %s %s", p.Status, p.Kind, p.Reason, p.Instance)
}

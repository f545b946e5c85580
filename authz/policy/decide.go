package policy

import (
	"crypto/rand"
	"fmt"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
)

// actionType is the entity type of actions in the schema's namespace.
const actionType = "Palyra::Action"

// Decide answers r. It never panics; what cannot be decided is denied.
func (s *Set) Decide(r Request) Decision {
	d := Decision{PolicySet: s.digest, Capsule: r.Context.CapsuleDigest}
	rand.Read(d.ID[:])
	if err := s.decide(&r, &d); err != nil {
		d.Effect, d.Policies, d.Fix = Deny, nil, ""
		d.Errors = []string{err.Error()}
	}
	return d
}

// decide fills d. An error says why r has no answer; d.Reason is set to match.
func (s *Set) decide(r *Request, d *Decision) (err error) {
	// cedar-go's evaluator is not ours. A panic in it must deny this call and
	// reach the record, not take the daemon down.
	defer func() {
		if p := recover(); p != nil {
			d.Reason, err = ReasonPolicyError, fmt.Errorf("evaluation panicked: %v", p)
		}
	}()
	if err := r.check(); err != nil {
		d.Reason = ReasonBadRequest
		return err
	}
	e := s.newEvaluation(r, s.want)
	e.verdict(d)
	if d.Effect != Allow && d.Reason != ReasonPolicyError {
		d.Fix = s.fix(r, d)
	}
	return nil
}

// evaluation is one request on its way through Cedar.
type evaluation struct {
	set      *Set
	facts    *facts
	entities store
	roles    roleSet
	action   cedar.String
	extra    []*rule // rules tried on top of the set's, for Fix
}

func (s *Set) newEvaluation(r *Request, want attr) *evaluation {
	roles := rolesOf(r.Principal.Roles)
	return &evaluation{
		set:    s,
		facts:  newFacts(r, want),
		roles:  roles,
		action: cedar.String(r.Action),
		entities: store{
			principal: cedar.Entity{UID: uid(r.Principal), Parents: roleParents[roles]},
			resource:  cedar.Entity{UID: uid(r.Resource)},
		},
	}
}

func uid(e Entity) cedar.EntityUID {
	return cedar.EntityUID{Type: cedar.EntityType(e.Type), ID: cedar.String(e.ID)}
}

// verdict asks without approval, then, if that is denied, with it.
func (e *evaluation) verdict(d *Decision) {
	plain := e.answer(false)
	switch {
	case len(plain.errors) > 0:
		d.Reason, d.Errors = ReasonPolicyError, plain.errors
		return
	case plain.allow:
		d.Effect, d.Reason, d.Policies = Allow, ReasonPermitted, plain.all()
		return
	}
	approved := plain // unless a policy looks at approval
	if e.facts.want&attrApproved != 0 {
		approved = e.answer(true)
	}
	switch {
	case len(approved.errors) > 0:
		d.Reason, d.Errors = ReasonPolicyError, approved.errors
	case approved.allow:
		d.Effect, d.Reason = NeedsApproval, ReasonApprovalRequired
		d.Policies = e.asking(plain, approved)
	case len(approved.ids) > 0:
		d.Reason, d.Policies = ReasonForbidden, approved.ids
	default:
		d.Reason, d.Policies = ReasonNotPermitted, plain.ids
	}
}

// asking names the policies that ask for approval: the forbids that it lifts,
// and the permits if every one of them hinges on it.
func (e *evaluation) asking(plain, approved answer) []string {
	for _, id := range approved.ids {
		if r := e.set.byID[id]; r == nil || !r.hinges {
			if len(plain.ids) > 0 {
				return plain.ids
			}
		}
	}
	return union(plain.ids, approved.all())
}

// answer is Cedar's answer: the determining ids and the errors, both sorted.
type answer struct {
	allow  bool
	ids    []string // permits if it allows, else forbids
	byName []string // permits of interpreter.run without which it would not allow
	errors []string
}

// all is every policy that determined the answer, sorted.
func (a answer) all() []string { return union(a.ids, a.byName) }

func union(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	ids := slices.Concat(a, b)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// answer asks Cedar, with the question about the interpreter first if the
// executable is of a dangerous kind.
func (e *evaluation) answer(approved bool) answer {
	var byName answer
	if e.facts.kind.dangerous() && e.facts.want&attrInterpreterPermitted != 0 {
		byName = e.ask(interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(e.facts.family)}, approved, false)
		if len(byName.errors) > 0 {
			return byName
		}
	}
	a := e.ask(e.action, e.entities.resource.UID, approved, byName.allow)
	if a.allow && byName.allow {
		a.byName = byName.ids
	}
	return a
}

func (e *evaluation) ask(action cedar.String, resource cedar.EntityUID, approved, byName bool) answer {
	var buf [16]*rule
	rules := e.set.index.candidates(buf[:0], e.entities.principal.UID, resource, e.roles, action)
	rules = append(rules, e.extra...)
	req := cedar.Request{
		Principal: e.entities.principal.UID,
		Action:    cedar.EntityUID{Type: actionType, ID: action},
		Resource:  resource,
		Context:   e.facts.record(approved, byName),
	}
	decision, diag := cedar.Authorize(selection(rules), &e.entities, req)
	a := answer{allow: decision == cedar.Allow && len(diag.Errors) == 0}
	for _, r := range diag.Reasons {
		a.ids = append(a.ids, string(r.PolicyID))
	}
	for _, err := range diag.Errors {
		a.errors = append(a.errors, fmt.Sprintf("policy %q: %s", err.PolicyID, err.Message))
	}
	slices.Sort(a.ids)
	slices.Sort(a.errors)
	return a
}

package policy

import (
	"crypto/rand"
	"fmt"
	"iter"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"

	"palyra/authz/access"
	"palyra/call/egress"
)

const actionType = "Palyra::Action"

// Decide answers r. It returns effect, reason and policies and no more: a requester chooses how
// often it runs, so [Set.Fix] and [Set.Explain] work out the rest on demand.
func (s *Set) Decide(r Request) Decision {
	e := s.memo.evaluation()
	e.set, e.request = s, r
	d := &e.decision
	d.PolicySet, d.Capsule = s.digest, r.Context.CapsuleDigest
	rand.Read(d.ID[:])
	if err := e.decide(); err != nil {
		d.Effect, d.Policies = Deny, nil
		d.Errors = []string{err.Error()}
	}
	out := *d
	s.memo.done(e)
	return out
}

// decide fills e.decision. It returns an error if there is no answer, with the decision's
// reason set to match.
func (e *evaluation) decide() (err error) {
	d := &e.decision
	// cedar-go's evaluator isn't ours. A panic in it must deny this call and reach the record,
	// and not take the daemon down.
	defer func() {
		if p := recover(); p != nil {
			d.Reason, err = ReasonPolicyError, fmt.Errorf("evaluation panicked: %v", p)
		}
	}()
	e.facts.Context = &e.request.Context
	if err := e.request.checkWith(&e.facts.given); err != nil {
		d.Reason = ReasonBadRequest
		return err
	}
	e.init(e.set.want)
	e.verdict()
	return nil
}

// evaluation is one request on its way through Cedar.
type evaluation struct {
	set      *Set
	request  Request
	decision Decision
	facts    facts
	entities store
	roles    roleSet
	has      access.Set // permissions that the principal holds and that the set or the request names
	action   cedar.String
	implied  *change // of the set, for permission.use
	change   *change // nil except for Fix and analyses

	buf   [16]*rule
	rules []*rule // those that Cedar is asked about
	all   iter.Seq2[cedar.PolicyID, *cedar.Policy]
}

func blankEvaluation() *evaluation {
	e := new(evaluation)
	e.all = e.each
	return e
}

// newEvaluation makes an evaluation outside of Decide. Records hold the attributes in want.
func (s *Set) newEvaluation(r *Request, want attr) *evaluation {
	e := blankEvaluation()
	e.set, e.request = s, *r
	e.init(want)
	return e
}

func (e *evaluation) init(want attr) {
	r := &e.request
	e.facts.init(r, want, e.set)
	e.roles, e.action = rolesOf(r.Principal.Roles), cedar.String(r.Action)
	matter := e.set.permissions
	e.implied = nil
	if r.Action == PermissionUse {
		one, err := access.ParseSet([]string{r.Resource.ID})
		if err == nil {
			matter |= one
		}
		e.implied = e.set.implied
	}
	if e.has = 0; matter != 0 {
		e.has = held(&r.Principal) & matter
	}
	e.entities = store{
		principal: cedar.Entity{UID: uid(r.Principal), Parents: parentsOf(e.roles, e.has)},
		resource:  resourceOf(uid(r.Resource)),
		facts:     &e.facts,
	}
}

func uid(e Entity) cedar.EntityUID {
	return cedar.EntityUID{Type: cedar.EntityType(e.Type), ID: cedar.String(e.ID)}
}

// verdict asks without approval first, and with it if that is denied.
func (e *evaluation) verdict() {
	d := &e.decision
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
	if e.facts.want.meets(attrApproved) {
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

// asking names the policies that ask for approval: the forbids that it lifts, and the permits
// if each of them hinges on it.
func (e *evaluation) asking(plain, approved answer) []string {
	for _, id := range approved.ids {
		if r := e.rule(id); r == nil || !r.hinges() {
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
	byName []string // permits of interpreter.run without which Cedar wouldn't allow
	errors []string
}

func (a answer) all() []string { return union(a.ids, a.byName) }

func union(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	ids := slices.Concat(a, b)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// answer asks Cedar, about the interpreter first if the executable is of a dangerous kind, and
// about secrets last.
func (e *evaluation) answer(approved bool) answer {
	var byName answer
	if e.facts.kind.dangerous() && e.facts.want.meets(attrInterpreterPermitted) {
		byName = e.ask(interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(e.facts.family)}, approved, false)
		if len(byName.errors) > 0 {
			return byName
		}
	}
	a := e.named(e.ask(e.action, e.entities.resource.UID, approved, byName.allow))
	if a.allow && byName.allow {
		a.byName = byName.ids
	}
	if c := &e.request.Context; a.allow && len(c.Secrets)+len(c.EgressSecrets) > 0 {
		a = e.exposures(a, approved, byName.allow)
	}
	return a
}

// named takes back the answer about a call in the host's network unless one of its permits names
// that network: what permits all calls was written for cells.
func (e *evaluation) named(a answer) answer {
	n := e.request.Context.Network
	if !a.allow || !runsProgram(e.request.Action) || n != NetworkHost && n != NetworkPreflight ||
		slices.ContainsFunc(a.ids, func(id string) bool { r := e.rule(id); return r != nil && slices.Contains(r.host, n) }) {
		return a
	}
	return answer{}
}

// exposures asks about each secret that the program of a permitted call can read, and each use of
// one that it can't. One that isn't permitted denies the call.
func (e *evaluation) exposures(a answer, approved, byName bool) answer {
	for _, ref := range e.request.Context.Secrets {
		x := e.ask(vaultExpose, secretUID(ref), approved, byName)
		if !x.allow {
			return x
		}
		a.ids = union(a.ids, x.ids)
	}
	defer e.facts.about(use{})
	for _, u := range usesOf(&e.request.Context) {
		e.facts.about(u.use)
		x := e.ask(vaultUse, secretUID(u.ref), approved, byName)
		if !x.allow {
			return x
		}
		a.ids = union(a.ids, x.ids)
	}
	return a
}

// namedUse is a use of a secret with its reference and its text.
type namedUse struct {
	use
	ref, text string
}

// usesOf reads the uses of a request that was checked.
func usesOf(c *Context) (out []namedUse) {
	for _, text := range c.EgressSecrets {
		u, err := egress.ParseUse(text)
		if err != nil {
			panic("policy: internal error: a use that wasn't checked")
		}
		out = append(out, namedUse{use{u.Rule().String(), u.Place.String(), u.Methods, u.Path, u.Keep, u.Revoke}, u.Ref, text})
	}
	return out
}

func secretUID(ref string) cedar.EntityUID {
	return cedar.EntityUID{Type: TypeSecret, ID: cedar.String(ref)}
}

func (e *evaluation) ask(action cedar.String, resource cedar.EntityUID, approved, byName bool) answer {
	e.rules = e.set.index.candidates(e.buf[:0], e.entities.principal.UID, resource, e.roles, e.has, action)
	if e.implied != nil {
		e.rules = e.implied.apply(e.rules)
	}
	if e.change != nil {
		e.rules = e.change.apply(e.rules)
	}
	e.facts.set(approved, byName)
	var reads attr // of the rules that take a context
	for _, r := range e.rules {
		if !e.quick(r) {
			reads = reads.or(r.reads)
		}
	}
	req := cedar.Request{
		Principal: e.entities.principal.UID,
		Action:    cedar.EntityUID{Type: actionType, ID: action},
		Resource:  resource,
		Context:   e.facts.recordOf(reads.and(e.facts.want)),
	}
	decision, diag := cedar.Authorize(e, &e.entities, req)
	a := answer{allow: decision == cedar.Allow && len(diag.Errors) == 0}
	if len(diag.Reasons) > 0 {
		a.ids = make([]string, len(diag.Reasons))
		for i, r := range diag.Reasons {
			a.ids[i] = string(r.PolicyID)
		}
		slices.Sort(a.ids)
	}
	for _, err := range diag.Errors {
		a.errors = append(a.errors, fmt.Sprintf("policy %q: %s", err.PolicyID, err.Message))
	}
	slices.Sort(a.errors)
	return a
}

// quick reports whether r is evaluated on facts. A rule that reads an attribute that the
// action's context lacks is evaluated as written, so that it fails as written; the validator
// lets none through.
func (e *evaluation) quick(r *rule) bool {
	return r.quick() != nil && r.reads.without(e.facts.has).isEmpty()
}

// All hands the rules to Cedar. It implements cedar.PolicyIterator.
func (e *evaluation) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] { return e.all }

func (e *evaluation) each(yield func(cedar.PolicyID, *cedar.Policy) bool) {
	for _, r := range e.rules {
		var p *cedar.Policy
		if e.quick(r) {
			p = r.quick()
		} else {
			p = r.tail()
		}
		if !yield(cedar.PolicyID(r.id), p) {
			return
		}
	}
}

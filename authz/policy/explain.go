package policy

import (
	"fmt"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"

	"palyra/authz/policy/internal/tree"
)

// Explanation is a decision with the part of each policy about the action, as far as Cedar
// tells. It evaluates without approval: a policy that asks for approval shows as an "unless"
// that isn't met.
type Explanation struct {
	Decision Decision `json:"-"`
	Fix      string   `json:"-"`      // see Set.Fix
	Kind     Kind     `json:"kind"`   // of the executable
	Family   string   `json:"family"` //
	Traces   []Trace  `json:"policies"`
}

// Trace is one policy's part in a decision.
type Trace struct {
	Info
	Question   string      `json:"question"` // the action that it was asked about; behind vault.expose, the secret; behind vault.use, the use
	Matched    bool        `json:"matched"`  // its scope and every condition hold
	Principal  bool        `json:"principal"`
	Resource   bool        `json:"resource"`
	Conditions []Condition `json:"conditions,omitempty"` // as far as evaluation went
}

// Condition is one conjunct of a when or unless clause.
type Condition struct {
	Clause string `json:"clause"` // "when" or "unless"
	Text   string `json:"text"`   // Cedar
	Result string `json:"result"` // "true", "false" or "error: …"
}

// Explain decides r, looks for its Fix and traces every policy whose scope names its action.
// Its cost grows with the set, unlike Decide's.
func (s *Set) Explain(r Request) Explanation {
	x := Explanation{Decision: s.Decide(r), Fix: s.Fix(r)}
	if x.Decision.Reason == ReasonBadRequest {
		return x
	}
	x.Kind, x.Family = s.kindOf(&r)
	e := s.newEvaluation(&r, attrAll)
	byName := false
	if x.Kind.dangerous() {
		resource := cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(x.Family)}
		byName = e.ask(interpreterRun, resource, false, false).allow
		x.Traces = s.traces(e, interpreterRun, resource, false)
	}
	x.Traces = append(x.Traces, s.traces(e, e.action, e.entities.resource.UID, byName)...)
	for _, ref := range r.Context.Secrets {
		of := s.traces(e, vaultExpose, secretUID(ref), byName)
		for i := range of {
			of[i].Question += " " + ref
		}
		x.Traces = append(x.Traces, of...)
	}
	for _, u := range usesOf(&r.Context) {
		e.facts.about(u.use)
		of := s.traces(e, vaultUse, secretUID(u.ref), byName)
		for i := range of {
			of[i].Question += " " + u.text
		}
		x.Traces = append(x.Traces, of...)
	}
	return x
}

// Reads reports whether a policy of the set, or one of those with these ids, reads
// context.NAME.
func (s *Set) Reads(name string, ids ...string) bool {
	want := attrNames[name]
	if len(ids) == 0 {
		return s.want.meets(want)
	}
	return slices.ContainsFunc(ids, func(id string) bool { r := s.byID[id]; return r != nil && r.reads.meets(want) })
}

func (s *Set) traces(e *evaluation, action cedar.String, resource cedar.EntityUID, byName bool) []Trace {
	env := eval.Env{
		Entities:  &e.entities,
		Principal: e.entities.principal.UID,
		Action:    cedar.EntityUID{Type: actionType, ID: action},
		Resource:  resource,
		Context:   e.facts.record(false, byName),
	}
	var out []Trace
	for _, r := range s.rules {
		if !scopeHolds(env, ast.Policy{Action: r.ast.Action}) {
			continue
		}
		t := Trace{Info: r.info(), Question: string(action),
			Principal: scopeHolds(env, ast.Policy{Principal: r.ast.Principal}),
			Resource:  scopeHolds(env, ast.Policy{Resource: r.ast.Resource}),
		}
		t.Matched = t.Principal && t.Resource
		if t.Matched {
			t.Conditions, t.Matched = conditions(env, r.ast)
		}
		out = append(out, t)
	}
	slices.SortStableFunc(out, func(a, b Trace) int { // matched policies first
		switch {
		case a.Matched == b.Matched:
			return 0
		case a.Matched:
			return -1
		}
		return 1
	})
	return out
}

// scopeHolds evaluates the one scope that p sets.
func scopeHolds(env eval.Env, p ast.Policy) bool {
	if p.Principal == nil {
		p.Principal = ast.ScopeTypeAll{}
	}
	if p.Action == nil {
		p.Action = ast.ScopeTypeAll{}
	}
	if p.Resource == nil {
		p.Resource = ast.ScopeTypeAll{}
	}
	v, err := eval.Eval(eval.PolicyToNode(&p).AsIsNode(), env)
	return err == nil && v == cedar.True
}

// conditions evaluates the conjuncts in order and stops where Cedar would: after the first one
// that doesn't hold.
func conditions(env eval.Env, p *ast.Policy) (out []Condition, all bool) {
	for _, c := range p.Conditions {
		clause, want, parts := "unless", cedar.Value(cedar.False), []ast.IsNode{c.Body}
		if c.Condition == ast.ConditionWhen {
			clause, want, parts = "when", cedar.True, tree.Conjuncts(c.Body)
		}
		for _, n := range parts {
			v, err := eval.Eval(n, env)
			res := fmt.Sprint(v)
			if err != nil {
				res = "error: " + err.Error()
			}
			out = append(out, Condition{Clause: clause, Text: tree.Text(n), Result: res})
			if err != nil || v != want {
				return out, false
			}
		}
	}
	return out, true
}

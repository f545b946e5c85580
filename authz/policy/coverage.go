package policy

import (
	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// Coverage is what the policy tests of a set exercise.
type Coverage struct {
	Tests     int              `json:"tests"`
	Matched   int              `json:"matched"`   // policies that match in some test
	Exercised int              `json:"exercised"` // clauses that were seen both to hold and not to
	Clauses   int              `json:"clauses"`
	Policies  []PolicyCoverage `json:"policies"` // sorted by id
}

// PolicyCoverage is one policy's part.
type PolicyCoverage struct {
	Info
	Asked   int              `json:"asked"`   // questions that its scope fits
	Matched int              `json:"matched"` // of them, those that it matches
	Clauses []ClauseCoverage `json:"clauses"`
}

// ClauseCoverage counts what a conjunct of a when, or an unless, came to. What
// stands behind a clause that did not hold is not looked at, as in Cedar.
type ClauseCoverage struct {
	Clause string `json:"clause"` // "when" or "unless"
	Text   string `json:"text"`   // Cedar
	True   int    `json:"true"`
	False  int    `json:"false"`
}

// Exercised reports whether the clause was seen to go either way.
func (c *ClauseCoverage) Exercised() bool { return c.True > 0 && c.False > 0 }

// query is one of the questions to Cedar that a decision consists of.
type query struct {
	cedar.Request
	approved, byName bool
	answer           answer
}

// queries are the questions that Decide asks Cedar about r, in order, each with
// the whole context. Nil for a request that is none.
func (s *Set) queries(r *Request) (out []query) {
	if r.check() != nil {
		return nil
	}
	e := s.newEvaluation(r, attrAll)
	ask := func(action cedar.String, resource cedar.EntityUID, approved, byName bool) answer {
		q := query{approved: approved, byName: byName, answer: e.ask(action, resource, approved, byName)}
		q.Request = cedar.Request{Principal: e.entities.principal.UID, Action: cedar.EntityUID{Type: actionType, ID: action},
			Resource: resource, Context: e.facts.record(approved, byName)}
		out = append(out, q)
		return q.answer
	}
	both := func(approved bool) answer {
		byName := false
		if e.facts.kind.dangerous() && e.facts.has&s.want&attrInterpreterPermitted != 0 {
			a := ask(interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(e.facts.family)}, approved, false)
			if len(a.errors) > 0 {
				return a
			}
			byName = a.allow
		}
		return ask(e.action, e.entities.resource.UID, approved, byName)
	}
	if a := both(false); !a.allow && len(a.errors) == 0 && e.facts.has&s.want&attrApproved != 0 {
		both(true)
	}
	return out
}

// Coverage runs the set's tests and counts.
func (s *Set) Coverage() (Coverage, error) {
	c := Coverage{Policies: make([]PolicyCoverage, len(s.rules))}
	at := make(map[*rule]*PolicyCoverage)
	for i, r := range s.rules {
		p := PolicyCoverage{Info: r.info(), Clauses: []ClauseCoverage{}}
		for _, x := range clausesOf(r.ast) {
			word := "when"
			if x.Condition == ast.ConditionUnless {
				word = "unless"
			}
			p.Clauses = append(p.Clauses, ClauseCoverage{Clause: word, Text: text(x.Body)})
		}
		c.Clauses += len(p.Clauses)
		c.Policies[i] = p
		at[r] = &c.Policies[i]
	}
	for _, f := range s.cases {
		parsed, err := parseCases(f)
		if err != nil {
			return Coverage{}, err
		}
		for _, t := range parsed.cases {
			c.Tests++
			s.cover(&t.request, at)
		}
	}
	for i := range c.Policies {
		p := &c.Policies[i]
		if p.Matched > 0 {
			c.Matched++
		}
		for j := range p.Clauses {
			if p.Clauses[j].Exercised() {
				c.Exercised++
			}
		}
	}
	return c, nil
}

func (s *Set) cover(r *Request, at map[*rule]*PolicyCoverage) {
	e := s.newEvaluation(r, attrAll)
	for _, q := range s.queries(r) {
		env := eval.Env{Entities: &e.entities, Principal: q.Principal, Action: q.Action, Resource: q.Resource, Context: q.Context}
		for _, rule := range s.index.candidates(nil, q.Principal, q.Resource, e.roles, e.has, q.Action.ID) {
			if !scopeHolds(env, ast.Policy{Principal: rule.ast.Principal, Action: rule.ast.Action, Resource: rule.ast.Resource}) {
				continue
			}
			p := at[rule]
			p.Asked++
			results, all := conditions(env, rule.ast)
			if all {
				p.Matched++
			}
			for i, res := range results {
				switch res.Result {
				case "true":
					p.Clauses[i].True++
				case "false":
					p.Clauses[i].False++
				}
			}
		}
	}
}

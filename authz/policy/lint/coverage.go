package lint

import (
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy"
	"palyra/authz/policy/internal/tree"
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
	policy.Info
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

// Cover runs the set's tests and counts.
func Cover(s *policy.Set) (Coverage, error) {
	d := s.Draft()
	rules := d.Rules()
	c := Coverage{Policies: make([]PolicyCoverage, len(rules))}
	at := make(map[string]*PolicyCoverage)
	for i, r := range rules {
		p := PolicyCoverage{Info: r.Info, Clauses: []ClauseCoverage{}}
		for _, x := range clausesOf(r.AST) {
			word := "when"
			if x.Condition == ast.ConditionUnless {
				word = "unless"
			}
			p.Clauses = append(p.Clauses, ClauseCoverage{Clause: word, Text: tree.Text(x.Body)})
		}
		c.Clauses += len(p.Clauses)
		c.Policies[i] = p
		at[r.ID] = &c.Policies[i]
	}
	err := d.EachTest(func(t policy.Test) error {
		c.Tests++
		for _, q := range d.Questions(t.Request) {
			cover(&q, at)
		}
		return nil
	})
	if err != nil {
		return Coverage{}, err
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

func cover(q *policy.Question, at map[string]*PolicyCoverage) {
	for _, r := range q.Rules {
		fits, clauses, matches := q.Ask(r)
		if !fits {
			continue
		}
		p := at[r.ID]
		p.Asked++
		if matches {
			p.Matched++
		}
		for i, c := range clauses {
			switch c.Result {
			case "true":
				p.Clauses[i].True++
			case "false":
				p.Clauses[i].False++
			}
		}
	}
}

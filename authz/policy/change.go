package policy

import (
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// change is what an evaluation tries instead of some of the set's rules. It
// costs what the changed rules cost: neither the set nor its index is made again.
type change struct {
	without []*rule // of the set
	extra   []*rule // besides; evaluated as written, scopes included
}

// apply returns the candidates as the change has them. rules is overwritten.
func (c *change) apply(rules []*rule) []*rule {
	if len(c.without) > 0 {
		rules = slices.DeleteFunc(rules, func(r *rule) bool { return slices.Contains(c.without, r) })
	}
	return append(rules, c.extra...)
}

// rule is the rule with that id, as the evaluation has it.
func (e *evaluation) rule(id string) *rule {
	for _, c := range [...]*change{e.change, e.implied} {
		if c == nil {
			continue
		}
		for _, r := range c.extra {
			if r.id == id {
				return r
			}
		}
	}
	return e.set.byID[id]
}

// newExtra is a rule outside of any set. It has no quick form and no file.
func newExtra(id string, p *ast.Policy) *rule {
	written := cedar.NewPolicyFromAST((*publicast.Policy)(p))
	return &rule{id: id, policy: written, ast: p, reads: mentions(p),
		tail: func() *cedar.Policy { return written }, quick: func() *cedar.Policy { return nil }}
}

// trial evaluates r with a change and returns the decision, without fix, id or
// digests.
func (s *Set) trial(r *Request, c *change) Decision {
	if err := r.check(); err != nil {
		return Decision{Reason: ReasonBadRequest, Errors: []string{err.Error()}}
	}
	e := s.changed(r, c)
	e.verdict()
	return e.decision
}

func (s *Set) changed(r *Request, c *change) *evaluation {
	want := s.want
	for _, x := range c.extra {
		want |= x.reads
	}
	e := s.newEvaluation(r, want)
	e.change = c
	return e
}

// Repeat is Decide for analyses: without id, digests and fix, which is most of
// what a denial costs.
func (s *Set) Repeat(r Request) Decision { return s.trial(&r, &change{}) }

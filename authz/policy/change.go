package policy

import (
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// change holds rules that an evaluation tries instead of some of the set's. It costs only those
// rules: neither the set nor its index is made again.
type change struct {
	without []*rule // of the set
	extra   []*rule // evaluated as written, scopes included
}

// apply returns the candidates after the change. It overwrites rules.
func (c *change) apply(rules []*rule) []*rule {
	if len(c.without) > 0 {
		rules = slices.DeleteFunc(rules, func(r *rule) bool { return slices.Contains(c.without, r) })
	}
	return append(rules, c.extra...)
}

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

// newExtra makes a rule outside of any set, without quick form and file.
func newExtra(id string, p *ast.Policy) *rule {
	written := cedar.NewPolicyFromAST((*publicast.Policy)(p))
	return &rule{id: id, policy: written, ast: p, reads: mentions(p),
		tail: func() *cedar.Policy { return written }, quick: func() *cedar.Policy { return nil }}
}

// trial evaluates r with a change and returns the decision, without id or digests.
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
		want = want.or(x.reads)
	}
	e := s.newEvaluation(r, want)
	e.change = c
	return e
}

// Repeat is Decide without id and digests, for analyses.
func (s *Set) Repeat(r Request) Decision { return s.trial(&r, &change{}) }

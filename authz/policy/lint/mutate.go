package lint

import (
	"fmt"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy"
	"palyra/authz/policy/internal/tree"
)

// What became of a mutant.
const (
	MutantKilled     = "killed"     // a policy test fails
	MutantSurvived   = "survived"   // no policy test notices
	MutantEquivalent = "equivalent" // it matches exactly the same requests
	MutantInvalid    = "invalid"    // the schema refuses it
	MutantExplained  = "explained"  // it survives, and the policy's @survivor annotation says why
)

// Mutant is a set with one thing in one policy weaker: a clause dropped, a part
// of the scope widened, a policy gone.
type Mutant struct {
	policy.Info
	Change string `json:"change"`         // "drop when 2", "widen resource"; stable as long as the policy is
	Cedar  string `json:"cedar"`          // what was dropped or widened
	State  string `json:"state"`          // one of the Mutant constants
	By     string `json:"by,omitempty"`   // the first test that kills it
	Note   string `json:"note,omitempty"` // of the annotation
}

// MutationReport is what the policy tests of a set make of its mutants.
type MutationReport struct {
	Tests    int            `json:"tests"`
	Counts   map[string]int `json:"counts"`  // by state
	Mutants  []Mutant       `json:"mutants"` // in the order of the policies
	Unproven []string       `json:"unproven"`
}

// Mutate changes one thing at a time and runs the policy tests each time. A
// mutant that no test kills is a part of the policies that nothing protects: it
// can be lost in an edit, and no load will say so.
//
// A policy's annotation @survivor("CHANGE: why; CHANGE: why") explains mutants
// that no test can kill, because another policy gives the same answer. An
// explained change that does not survive is listed as unproven.
func Mutate(s *policy.Set) (MutationReport, error) {
	rep := MutationReport{Counts: map[string]int{}, Mutants: []Mutant{}, Unproven: []string{}}
	d, l := s.Draft(), newLogic(nil)
	var tests []policy.Test
	err := d.EachTest(func(t policy.Test) error {
		tests = append(tests, t)
		return nil
	})
	if err != nil {
		return rep, err
	}
	rep.Tests = len(tests)
	for _, r := range d.Rules() {
		notes := survivors(r)
		for _, m := range mutantsOf(r) {
			m.State, m.By = judge(d, l, r, &m, tests)
			if why, ok := notes[m.Change]; ok && m.State == MutantSurvived {
				m.State, m.Note = MutantExplained, why
				delete(notes, m.Change)
			}
			rep.Counts[m.State]++
			rep.Mutants = append(rep.Mutants, m.Mutant)
		}
		for change := range notes {
			rep.Unproven = append(rep.Unproven, r.ID+": "+change)
		}
	}
	slices.Sort(rep.Unproven)
	return rep, nil
}

// survivors reads the annotation.
func survivors(r policy.Rule) map[string]string {
	out := make(map[string]string)
	note, _ := r.Note("survivor")
	for part := range strings.SplitSeq(note, ";") {
		if change, why, ok := strings.Cut(part, ":"); ok && strings.TrimSpace(why) != "" {
			out[strings.TrimSpace(change)] = strings.TrimSpace(why)
		}
	}
	return out
}

func judge(d *policy.Draft, l *logic, r policy.Rule, m *mutation, tests []policy.Test) (state, by string) {
	if m.p != nil {
		if d.Fits(m.p) != nil {
			return MutantInvalid, ""
		}
		if l.same(r.AST, m.p) {
			return MutantEquivalent, ""
		}
	}
	changed := d.Instead(r, m.p)
	for i := range tests {
		if !tests[i].Passes(changed.Decide(tests[i].Request)) {
			return MutantKilled, tests[i].File + ": " + tests[i].Name
		}
	}
	return MutantSurvived, ""
}

// mutation is a mutant with its policy, nil if that is dropped.
type mutation struct {
	Mutant
	p *ast.Policy
}

// mutantsOf are the mutants of a policy.
func mutantsOf(r policy.Rule) (out []mutation) {
	add := func(p *ast.Policy, cedarText, format string, args ...any) {
		out = append(out, mutation{Mutant{Info: r.Info, Change: fmt.Sprintf(format, args...), Cedar: cedarText}, p})
	}
	add(nil, r.ID, "drop policy")
	for _, side := range []string{"principal", "action", "resource"} {
		p := *r.AST
		var scope ast.IsScopeNode
		switch side {
		case "principal":
			scope, p.Principal = p.Principal, ast.ScopeTypeAll{}
		case "action":
			scope, p.Action = p.Action, ast.ScopeTypeAll{}
		default:
			scope, p.Resource = p.Resource, ast.ScopeTypeAll{}
		}
		if _, all := scope.(ast.ScopeTypeAll); !all {
			add(&p, scopeText(side, scope), "widen %s", side)
		}
		if set, ok := scope.(ast.ScopeTypeInSet); ok && len(set.Entities) > 1 {
			for i, uid := range set.Entities {
				q := *r.AST
				q.Action = ast.ScopeTypeInSet{Entities: slices.Delete(slices.Clone(set.Entities), i, i+1)}
				add(&q, uid.String(), "drop action %s", uid.ID)
			}
		}
	}
	clauses := clausesOf(r.AST)
	number := map[ast.Condition]int{}
	for i, c := range clauses {
		number[c.Condition]++
		word, n := "when", number[c.Condition]
		if c.Condition == ast.ConditionUnless {
			word = "unless"
		}
		p := *r.AST
		p.Conditions = slices.Delete(slices.Clone(clauses), i, i+1)
		add(&p, clauseText(c), "drop %s %d", word, n)
		parts := disjuncts(c.Body)
		for j := range parts {
			if len(parts) == 1 {
				break
			}
			q := *r.AST
			q.Conditions = slices.Clone(clauses)
			q.Conditions[i].Body = anyOf(slices.Delete(slices.Clone(parts), j, j+1))
			add(&q, strings.Join(strings.Fields(tree.Text(parts[j])), " "), "drop %s %d part %d", word, n, j+1)
		}
	}
	return out
}

func disjuncts(n ast.IsNode) []ast.IsNode {
	if o, ok := n.(ast.NodeTypeOr); ok {
		return append(disjuncts(o.Left), disjuncts(o.Right)...)
	}
	return []ast.IsNode{n}
}

func anyOf(parts []ast.IsNode) ast.IsNode {
	out := parts[0]
	for _, n := range parts[1:] {
		out = ast.NodeTypeOr{BinaryNode: ast.BinaryNode{Left: out, Right: n}}
	}
	return out
}

// scopeText is one part of a scope in Cedar.
func scopeText(name string, scope ast.IsScopeNode) string {
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		return name + " == " + s.Entity.String()
	case ast.ScopeTypeIn:
		return name + " in " + s.Entity.String()
	case ast.ScopeTypeIs:
		return name + " is " + string(s.Type)
	case ast.ScopeTypeIsIn:
		return name + " is " + string(s.Type) + " in " + s.Entity.String()
	case ast.ScopeTypeInSet:
		var ids []string
		for _, uid := range s.Entities {
			ids = append(ids, cedar.EntityUID(uid).String())
		}
		return name + " in [" + strings.Join(ids, ", ") + "]"
	}
	return name
}

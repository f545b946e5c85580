// Package lint looks at a policy directory without a call being made: for policies
// that cannot mean what they say (Lint), for what the policy tests exercise
// (Coverage), and for what they would not notice (Mutate).
//
//	findings, err := lint.Lint("/etc/palyra/policy.d")
//
// It reads policies as formulas (formula.go) and asks whether a request can satisfy
// them (solve.go). A finding is so; something may be missed.
//
// No program that decides calls links it; palyra-dev does. It sees a directory as a
// policy.Draft, which decides nothing.
//
// What it does not protect against: a policy that says what was meant, and was meant
// wrongly.
package lint

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy"
	"palyra/authz/policy/internal/tree"
	"palyra/internal/fault"
)

// The codes of findings besides the reason codes with which a directory is refused.
const (
	LintNeverMatches = "never_matches" // no request that the schema allows can match: conditions exclude each other, or the scope
	LintAlwaysTrue   = "always_true"   // a clause that holds whatever is asked: it says nothing
	LintAlwaysFalse  = "always_false"  // an unless that never holds: it says nothing
	LintShadowed     = "shadowed"      // another policy of the same effect matches whenever this one does
	LintOverruled    = "overruled"     // a permit: a forbid matches whenever it does
	LintUntested     = "untested"      // a permit that determines the answer of no policy test
)

// Finding is something about a policy that is not as its author meant it, or
// that nobody has shown to be.
type Finding struct {
	Code   string `json:"code"`             // a Lint code, or the reason code with which Load refuses
	Policy string `json:"policy,omitempty"` // id
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Clause string `json:"clause,omitempty"` // Cedar, where it is about one
	Text   string `json:"text"`
	Hint   string `json:"hint,omitempty"`
}

// Lint reads a policy directory and returns all that is wrong or odd in it,
// sorted by file and line. Unlike policy.Load it goes on after what Load refuses, as
// far as the files parse. An error is a directory that cannot be read.
func Lint(dir string) ([]Finding, error) {
	d, why, err := policy.ReadDraft(dir)
	return lint(d, why, err)
}

// LintFS is Lint for a directory that is not on a disk.
func LintFS(fsys fs.FS) ([]Finding, error) {
	d, why, err := policy.ReadDraftFS(fsys)
	return lint(d, why, err)
}

func lint(d *policy.Draft, why, err error) ([]Finding, error) {
	switch {
	case err != nil:
		return nil, err
	case why != nil:
		return []Finding{refused(why)}, nil
	}
	var out []Finding
	var sound []policy.Rule // what logic can be applied to
	for _, r := range d.Rules() {
		if code, err := d.Judge(r.AST); err != nil {
			out = append(out, about(r, code, "", "", "%v", err))
			continue
		}
		sound = append(sound, r)
	}
	l := newLogic(sound)
	for _, r := range sound {
		dead := l.clauses(r)
		out = append(out, dead...)
		if !slices.ContainsFunc(dead, func(f Finding) bool { return f.Code == LintNeverMatches }) {
			out = append(out, l.beside(r)...)
		}
	}
	out = append(out, ofTests(d)...)
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Code, b.Code))
	})
	return out, nil
}

// refused is the finding that stands for an error of Load.
func refused(err error) Finding {
	return Finding{Code: fault.ReasonOf(err), Text: err.Error(), Hint: fault.HintOf(err)}
}

func about(r policy.Rule, code, clause, hint, format string, args ...any) Finding {
	return Finding{Code: code, Policy: r.ID, File: r.File, Line: r.Line, Clause: clause, Text: fmt.Sprintf(format, args...), Hint: hint}
}

// permits reports whether r is a permit.
func permits(r policy.Rule) bool { return r.AST.Effect == ast.EffectPermit }

// ofTests names the tests that fail, forbids that none shows firing, and permits
// that determine the answer of none.
func ofTests(d *policy.Draft) []Finding {
	results, fired, err := d.RunTests()
	if err != nil {
		return []Finding{refused(err)}
	}
	lets, err := permitsShown(d)
	if err != nil {
		return []Finding{refused(err)}
	}
	var out []Finding
	for _, t := range results {
		if !t.Passed {
			out = append(out, Finding{Code: "policy_test_failed", File: t.File, Text: fmt.Sprintf("test %q: got %s, want %s", t.Name, t.Got, t.Want)})
		}
	}
	for _, r := range d.Rules() {
		switch _, waived := r.Note("untested"); {
		case fired[r.ID] || lets[r.ID] || waived:
		case permits(r):
			out = append(out, about(r, LintUntested, "", "add a policy test that it lets through; palyra policy coverage shows what is exercised",
				"no policy test shows what this permit permits"))
		default:
			out = append(out, about(r, "policy_untested", "", fault.HintOf(r.Untested(fired)), "no policy test shows this forbid firing"))
		}
	}
	return out
}

// permitsShown are the permits that let something through in a policy test.
func permitsShown(d *policy.Draft) (map[string]bool, error) {
	shown := make(map[string]bool)
	err := d.EachTest(func(t policy.Test) error {
		if got := d.Decide(t.Request); got.Effect == policy.Allow && t.Passes(got) {
			for _, id := range got.Policies {
				shown[id] = true
			}
		}
		return nil
	})
	return shown, err
}

// logic compares policies as formulas.
type logic struct {
	rules   []policy.Rule
	readers []reader
}

func newLogic(rules []policy.Rule) *logic {
	l := &logic{rules: rules}
	for _, a := range policy.Actions() {
		l.readers = append(l.readers, reader{a})
	}
	return l
}

// in are the readers of the actions that r's scope can have.
func (l *logic) in(p *ast.Policy) (out []reader) {
	for _, x := range l.readers {
		if x.solve(x.scope(p)) != never {
			out = append(out, x)
		}
	}
	return out
}

// clauses finds a policy that can never match, and clauses that say nothing.
func (l *logic) clauses(r policy.Rule) (out []Finding) {
	readers := l.in(r.AST)
	every := func(holds func(x reader) bool) bool {
		return len(readers) > 0 && !slices.ContainsFunc(readers, func(x reader) bool { return !holds(x) })
	}
	blamed := false
	for _, c := range clausesOf(r.AST) {
		say := clauseText(c)
		f := func(x reader) formula { return x.condition(c) }
		switch {
		case every(func(x reader) bool { return x.solve(x.scope(r.AST), f(x)) == never }):
			what := "this when can never hold"
			if c.Condition == ast.ConditionUnless {
				what = "this unless always holds"
			}
			out = append(out, about(r, LintNeverMatches, say, "", "%s: the policy never matches", what))
			blamed = true
		case every(func(x reader) bool { return x.solve(x.scope(r.AST), not{f(x)}) == never }):
			if c.Condition == ast.ConditionUnless {
				out = append(out, about(r, LintAlwaysFalse, say, "delete the clause, or write what was meant", "this unless never holds"))
			} else {
				out = append(out, about(r, LintAlwaysTrue, say, "delete the clause, or write what was meant", "this when always holds"))
			}
		}
	}
	if !blamed && (len(readers) == 0 || every(func(x reader) bool { return x.solve(x.matches(r.AST)) == never })) {
		out = append(out, about(r, LintNeverMatches, "", "", "its scope and conditions exclude each other: the policy never matches"))
	}
	return out
}

// beside finds what other policies make of r.
func (l *logic) beside(r policy.Rule) (out []Finding) {
	for _, o := range l.rules {
		if o.ID == r.ID || !covers(o.AST, r.AST) {
			continue
		}
		if !permits(r) && permits(o) || !l.within(r.AST, o.AST) {
			continue
		}
		switch {
		case permits(r) && !permits(o):
			out = append(out, about(r, LintOverruled, "", "", "forbid %q (%s:%d) matches whenever it does: it permits nothing", o.ID, o.File, o.Line))
		case o.ID < r.ID || !l.within(o.AST, r.AST): // of two that say the same, one is named
			out = append(out, about(r, LintShadowed, "", "delete one of them, or write what was meant",
				"%s %q (%s:%d) matches whenever it does: it adds nothing", o.Effect, o.ID, o.File, o.Line))
		}
	}
	return out
}

// within reports whether q matches whenever p does.
func (l *logic) within(p, q *ast.Policy) bool {
	for _, x := range l.in(p) {
		if !x.implies(x.matches(p), x.matches(q)) {
			return false
		}
	}
	return true
}

// same reports whether p and q match the same requests.
func (l *logic) same(p, q *ast.Policy) bool { return l.within(p, q) && l.within(q, p) }

// covers is a quick test that q's scope may hold whenever p's does. Without it
// comparing each policy with each would take too long for large sets.
func covers(q, p *ast.Policy) bool {
	one := func(q, p ast.IsScopeNode) bool {
		switch q := q.(type) {
		case ast.ScopeTypeEq:
			switch p := p.(type) {
			case ast.ScopeTypeEq:
				return q.Entity == p.Entity
			case ast.ScopeTypeIn:
				return q.Entity == p.Entity
			case ast.ScopeTypeInSet, ast.ScopeTypeIsIn:
				return true
			}
			return false
		}
		return true
	}
	return one(q.Action, p.Action) && one(q.Principal, p.Principal) && one(q.Resource, p.Resource)
}

// clausesOf are the conjuncts of when clauses, and unless clauses, in order.
func clausesOf(p *ast.Policy) (out []ast.ConditionType) {
	for _, c := range p.Conditions {
		if c.Condition == ast.ConditionUnless {
			out = append(out, c)
			continue
		}
		for _, n := range tree.Conjuncts(c.Body) {
			out = append(out, ast.ConditionType{Condition: ast.ConditionWhen, Body: n})
		}
	}
	return out
}

// clauseText is a clause on one line.
func clauseText(c ast.ConditionType) string {
	word := "when"
	if c.Condition == ast.ConditionUnless {
		word = "unless"
	}
	return word + " { " + strings.Join(strings.Fields(tree.Text(c.Body)), " ") + " }"
}

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

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
// sorted by file and line. Unlike Load it goes on after what Load refuses, as far
// as the files parse. An error is a directory that cannot be read.
func Lint(dir string) ([]Finding, error) {
	files, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	return lint(files), nil
}

// LintFS is Lint for a directory that is not on a disk.
func LintFS(fsys fs.FS) ([]Finding, error) {
	files, err := readFS(fsys)
	if err != nil {
		return nil, err
	}
	return lint(files), nil
}

func lint(files []file) []Finding {
	s, err := compile(files)
	if err != nil {
		return []Finding{refused(err)}
	}
	var out []Finding
	sound := make([]*rule, 0, len(s.rules)) // what logic can be applied to
	v := validate.New(resolvedSchema())
	for _, r := range s.rules {
		if f := s.invalid(v, r); f != nil {
			out = append(out, *f)
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
	out = append(out, s.lintTests()...)
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// refused is the finding that stands for an error of Load.
func refused(err error) Finding {
	return Finding{Code: fault.ReasonOf(err), Text: err.Error(), Hint: fault.HintOf(err)}
}

func (r *rule) finding(code, clause, hint, format string, args ...any) Finding {
	return Finding{Code: code, Policy: r.id, File: r.file, Line: r.line, Clause: clause, Text: fmt.Sprintf(format, args...), Hint: hint}
}

// invalid is what Load would refuse r for.
func (s *Set) invalid(v *validate.Validator, r *rule) *Finding {
	code, err := "policy_invalid", guarded(v, r.ast)
	if err == nil {
		code, err = "policy_never_matches", checkLiterals(r.ast)
	}
	if err == nil && neverMatches(v, r.ast) {
		err = errors.New("its conditions can never hold for any request of its scope")
	}
	if err == nil {
		return nil
	}
	f := r.finding(code, "", "", "%v", flatten(err))
	return &f
}

// lintTests names the tests that fail, forbids that none shows firing, and
// permits that determine the answer of none.
func (s *Set) lintTests() []Finding {
	results, fired, err := s.tests(context.Background())
	if err != nil {
		return []Finding{refused(err)}
	}
	lets, err := s.permitsShown()
	if err != nil {
		return []Finding{refused(err)}
	}
	var out []Finding
	for _, t := range results {
		if !t.Passed {
			out = append(out, Finding{Code: "policy_test_failed", File: t.File, Text: fmt.Sprintf("test %q: got %s, want %s", t.Name, t.Got, t.Want)})
		}
	}
	for _, r := range s.rules {
		switch _, waived := r.policy.Annotations()["untested"]; {
		case fired[r.id] || lets[r.id] || waived:
		case r.permits():
			out = append(out, r.finding(LintUntested, "", "add a policy test that it lets through; palyra policy coverage shows what is exercised",
				"no policy test shows what this permit permits"))
		default:
			err := r.untested(fired)
			out = append(out, r.finding("policy_untested", "", fault.HintOf(err), "no policy test shows this forbid firing"))
		}
	}
	return out
}

// permitsShown are the permits that let something through in a policy test.
func (s *Set) permitsShown() (map[string]bool, error) {
	shown := make(map[string]bool)
	var spent tested
	for _, f := range s.cases {
		err := eachCase(context.Background(), f, &spent, func(c *testCase) error {
			if d := s.Repeat(c.request); d.Effect == Allow && c.matches(d) {
				for _, id := range d.Policies {
					shown[id] = true
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return shown, nil
}

// logic compares policies as formulas.
type logic struct {
	rules   []*rule
	readers map[string]reader
}

func newLogic(rules []*rule) *logic {
	l := &logic{rules: rules, readers: make(map[string]reader)}
	for a := range actionTypes() {
		l.readers[a] = readerFor(a)
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
func (l *logic) clauses(r *rule) (out []Finding) {
	readers := l.in(r.ast)
	every := func(holds func(x reader) bool) bool {
		return len(readers) > 0 && !slices.ContainsFunc(readers, func(x reader) bool { return !holds(x) })
	}
	blamed := false
	for _, c := range clausesOf(r.ast) {
		say := clauseText(c)
		f := func(x reader) formula { return x.condition(c) }
		switch {
		case every(func(x reader) bool { return x.solve(x.scope(r.ast), f(x)) == never }):
			what := "this when can never hold"
			if c.Condition == ast.ConditionUnless {
				what = "this unless always holds"
			}
			out = append(out, r.finding(LintNeverMatches, say, "", "%s: the policy never matches", what))
			blamed = true
		case every(func(x reader) bool { return x.solve(x.scope(r.ast), not{f(x)}) == never }):
			if c.Condition == ast.ConditionUnless {
				out = append(out, r.finding(LintAlwaysFalse, say, "delete the clause, or write what was meant", "this unless never holds"))
			} else {
				out = append(out, r.finding(LintAlwaysTrue, say, "delete the clause, or write what was meant", "this when always holds"))
			}
		}
	}
	if !blamed && (len(readers) == 0 || every(func(x reader) bool { return x.solve(x.matches(r.ast)) == never })) {
		out = append(out, r.finding(LintNeverMatches, "", "", "its scope and conditions exclude each other: the policy never matches"))
	}
	return out
}

// beside finds what other policies make of r.
func (l *logic) beside(r *rule) (out []Finding) {
	for _, o := range l.rules {
		if o == r || !covers(o.ast, r.ast) {
			continue
		}
		if !r.permits() && o.permits() || !l.within(r.ast, o.ast) {
			continue
		}
		switch {
		case r.permits() && !o.permits():
			out = append(out, r.finding(LintOverruled, "", "", "forbid %q (%s:%d) matches whenever it does: it permits nothing", o.id, o.file, o.line))
		case o.id < r.id || !l.within(o.ast, r.ast): // of two that say the same, one is named
			out = append(out, r.finding(LintShadowed, "", "delete one of them, or write what was meant",
				"%s %q (%s:%d) matches whenever it does: it adds nothing", o.info().Effect, o.id, o.file, o.line))
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
		for _, n := range conjuncts(c.Body) {
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
	return word + " { " + strings.Join(strings.Fields(text(c.Body)), " ") + " }"
}

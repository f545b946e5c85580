package policy

import (
	"context"
	"io/fs"
	"slices"

	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

// Draft is a policy directory for analyses (palyra/authz/policy/lint). Its files parse; nothing
// else was checked. It isn't a Set, so unchecked policies can't decide a call.
type Draft struct {
	set       *Set
	change    *change
	validator *validate.Validator
}

// ReadDraft reads a policy directory. If the files can be read but not parsed, the Draft is nil
// and refused is Load's error.
func ReadDraft(dir string) (d *Draft, refused, err error) {
	files, err := readDir(dir)
	return draftOf(files, err)
}

// ReadDraftFS is ReadDraft for a directory that isn't on a disk.
func ReadDraftFS(fsys fs.FS) (d *Draft, refused, err error) {
	files, err := readFS(fsys)
	return draftOf(files, err)
}

func draftOf(files []file, err error) (*Draft, error, error) {
	if err != nil {
		return nil, nil, err
	}
	s, refused := compile(files)
	if refused != nil {
		return nil, refused, nil
	}
	return s.Draft(), nil, nil
}

// Draft returns the set's directory for analyses.
func (s *Set) Draft() *Draft {
	return &Draft{set: s.directory(), change: &change{}, validator: validate.New(resolvedSchema())}
}

// Rule is one policy of a Draft.
type Rule struct {
	Info
	AST *ast.Policy // must not be changed

	rule *rule
}

func (r *rule) exported() Rule { return Rule{Info: r.info(), AST: r.ast, rule: r} }

// Note returns the policy's annotation with that name.
func (r Rule) Note(name string) (text string, ok bool) {
	v, ok := r.rule.policy.Annotations()[types.AnnotationKey(name)]
	return string(v), ok
}

// Untested returns Load's error for a forbid that fired in no policy test, else nil.
func (r Rule) Untested(fired map[string]bool) error { return r.rule.untested(fired) }

// Rules returns the policies, sorted by id.
func (d *Draft) Rules() []Rule {
	out := make([]Rule, len(d.set.rules))
	for i, r := range d.set.rules {
		out[i] = r.exported()
	}
	return out
}

// Instead returns the draft with p in place of one of its rules, or without that rule if p is
// nil. Only Decide sees the change; Rules doesn't.
func (d *Draft) Instead(r Rule, p *ast.Policy) *Draft {
	c := &change{without: []*rule{r.rule}}
	if p != nil {
		c.extra = append(c.extra, newExtra(r.ID, p))
	}
	return &Draft{set: d.set, change: c, validator: d.validator}
}

// Decide returns the draft's decision, without id and digests.
func (d *Draft) Decide(r Request) Decision { return d.set.trial(&r, d.change) }

// Fits returns the error for which the schema refuses p, or nil.
func (d *Draft) Fits(p *ast.Policy) error { return guarded(d.validator, p) }

// Judge returns the error for which Load would refuse p by itself, and Load's reason code.
func (d *Draft) Judge(p *ast.Policy) (reason string, err error) {
	reason, err = "policy_invalid", guarded(d.validator, p)
	if err == nil {
		reason, err = "policy_never_matches", checkLiterals(p)
	}
	if err == nil && neverMatches(d.validator, p) {
		err = errNever
	}
	if err == nil {
		return "", nil
	}
	return reason, flatten(err)
}

// Test is one policy test.
type Test struct {
	File, Name string
	Request    Request

	want testCase
}

// Passes reports whether the test expects d.
func (t *Test) Passes(d Decision) bool { return t.want.matches(d) }

// EachTest calls do with each policy test, in file order.
func (d *Draft) EachTest(do func(Test) error) error {
	var spent tested
	for _, f := range d.set.cases {
		err := eachCase(context.Background(), f, &spent, func(c *testCase) error {
			return do(Test{File: f.name, Name: c.Name, Request: c.request, want: *c})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RunTests runs the policy tests, and returns the forbids that fired in one that passes.
func (d *Draft) RunTests() (results []TestResult, fired map[string]bool, err error) {
	return d.set.tests(context.Background())
}

// Question is one of a decision's questions to Cedar.
type Question struct {
	Rules []Rule // rules whose scope may fit

	env eval.Env
}

// Questions returns the questions that a request raises, in order. It returns nil for a request
// that doesn't fit the schema.
func (d *Draft) Questions(r Request) (out []Question) {
	e := d.set.newEvaluation(&r, attrAll)
	for _, q := range d.set.queries(&r) {
		x := Question{env: eval.Env{Entities: &e.entities, Principal: q.Principal, Action: q.Action, Resource: q.Resource, Context: q.Context}}
		for _, rule := range d.set.index.candidates(nil, q.Principal, q.Resource, e.roles, e.has, q.Action.ID) {
			x.Rules = append(x.Rules, rule.exported())
		}
		out = append(out, x)
	}
	return out
}

// Ask evaluates one rule. It reports whether the rule's scope fits, the values of its clauses
// as far as Cedar looks, and whether all of them hold.
func (q *Question) Ask(r Rule) (fits bool, clauses []Condition, matches bool) {
	if !scopeHolds(q.env, ast.Policy{Principal: r.AST.Principal, Action: r.AST.Action, Resource: r.AST.Resource}) {
		return false, nil, false
	}
	clauses, matches = conditions(q.env, r.AST)
	return true, clauses, matches
}

// TypeAction is the entity type of actions.
const TypeAction = actionType

// Action describes the requests with one action, as the schema has it.
type Action struct {
	Name     string // without namespace: "tool.execute"
	Resource string // the type of its resource

	has attr
}

// Actions returns all actions of the schema, with those that only Decide asks about.
func Actions() (out []Action) {
	for name, resource := range resourceType {
		out = append(out, Action{name, resource, contextOf(name)})
	}
	return append(out, Action{interpreterRun, TypeExecutable, contextOf(interpreterRun)}, Action{vaultExpose, TypeSecret, contextOf(vaultExpose)}, Action{vaultUse, TypeSecret, contextOf(vaultUse)})
}

// Has reports whether the context of the action's requests has the attribute with this path
// below context. known is false if no action has it.
func (a Action) Has(path string) (has, known bool) {
	bits := attrNames[path]
	return bits.meets(a.has), !bits.isEmpty()
}

// ToolsOf returns the tools of a group.
func ToolsOf(group string) (names []string) {
	for tool, g := range toolGroups {
		if string(g.ID) == group {
			names = append(names, string(tool.ID))
		}
	}
	return names
}

// Attribute describes an attribute of the context to analyses and to engines that repeat
// decisions.
type Attribute struct {
	Path     string   `json:"path"`             // below context: "executable.path"
	Type     string   `json:"type"`             // in Cedar: "String", "Set<String>", "Bool", "Long"
	Contexts []string `json:"contexts"`         // the schema's context types that have it: "Call"
	From     string   `json:"from,omitempty"`   // its place in a request's context; "" if it follows from others
	Absent   string   `json:"absent,omitempty"` // a String's value if the request has none
	Values   []string `json:"values,omitempty"` // the closed list of its values, or of a set's elements
}

// Attributes returns all attributes of the context, in the order of the schema.
func Attributes() []Attribute {
	out := make([]Attribute, len(attributes))
	for i := range attributes {
		a := &attributes[i]
		out[i] = Attribute{Path: a.path, Type: a.cedarType(), Contexts: a.in.names(), From: a.from, Absent: a.absent, Values: slices.Clone(a.of)}
	}
	return out
}

func (a *attribute) cedarType() string {
	switch {
	case a.text != nil, a.digest != nil:
		return "String"
	case a.set != nil:
		return "Set<String>"
	case a.truth != nil:
		return "Bool"
	}
	return "Long"
}

// contextNames are the schema's names of the context types, by bit.
var contextNames = [...]string{"Origin", "Call", "Use", "Answer"}

func (c contexts) names() (names []string) {
	for i, name := range contextNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

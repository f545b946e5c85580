package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"palyra/authz/access"
	"palyra/authz/policy/internal/tree"
	"palyra/internal/fault"
)

// schemaText returns the program's schema, which a policy directory may repeat.
var schemaText = sync.OnceValue(func() string {
	b, err := embedded.ReadFile("default/" + SchemaFile)
	if err != nil {
		panic("policy: internal error: " + err.Error()) // embedded
	}
	return string(b)
})

// Schema returns the Cedar schema that every policy is checked against.
func Schema() string { return schemaText() }

var resolvedSchema = sync.OnceValue(func() *resolved.Schema {
	r, err := resolve(schemaText())
	if err != nil {
		panic("policy: internal error: " + err.Error()) // embedded
	}
	return r.Schema
})

func resolve(text string) (old, error) {
	var s schema.Schema
	s.SetFilename(SchemaFile)
	if err := s.UnmarshalCedar([]byte(text)); err != nil {
		return old{}, err
	}
	r, err := s.Resolve()
	return old{r}, err
}

// validate refuses rules that Cedar would accept but that could never do as they say: those
// that don't fit the schema, that can never match, or that have literals outside a closed
// vocabulary.
func (s *Set) validate(ctx context.Context) error {
	v := validate.New(resolvedSchema())
	sound := make(map[string]bool) // shapes that passed; the validator would repeat itself
	for _, r := range s.rules {
		if err := left(ctx, "check policies"); err != nil {
			return err
		}
		like := shape(s.source(r))
		if !sound[like] {
			if err := guarded(v, r.ast); err != nil {
				return r.fault("policy_invalid", flatten(err))
			}
		}
		if err := checkLiterals(r.ast); err != nil {
			return r.fault("policy_never_matches", err)
		}
		if !sound[like] && neverMatches(v, r.ast) {
			return r.fault("policy_never_matches", errNever)
		}
		sound[like] = true
	}
	return nil
}

// errNever refuses a policy that the schema's types alone make idle.
var errNever = errors.New("its conditions can never hold for any request of its scope")

func (s *Set) source(r *rule) []byte {
	data, from := s.text(r.file), r.policy.Position().Offset
	return data[from:min(from+r.size, len(data))]
}

// guarded runs the experimental validator. A panic in it refuses the policy.
func guarded(v *validate.Validator, p *ast.Policy) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("the validator cannot judge this policy: %v", x)
		}
	}()
	return v.Policy("", p)
}

// neverMatches reports whether the schema's types alone make p's conditions false in every
// request of its scope: `resource is Palyra::Skill` under tool.execute, `context has colour`,
// `false`. The validator knows the type "false" and skips the rest of the expression, but
// doesn't report it. So neverMatches appends a node with a type error; if the validator doesn't
// report that, the conditions are impossible. p itself must have passed the validator.
func neverMatches(v *validate.Validator, p *ast.Policy) bool {
	if len(p.Conditions) == 0 {
		return false // the validator itself reports an impossible scope
	}
	// The conditions are joined first: (a && b) && error. Otherwise the error would be beside b
	// alone.
	all := condition(p.Conditions[0])
	for _, c := range p.Conditions[1:] {
		all = all.And(condition(c))
	}
	probe := *p
	probe.Conditions = []ast.ConditionType{{
		Condition: ast.ConditionWhen,
		Body:      all.And(ast.Context().Access("palyra no such attribute")).AsIsNode(),
	}}
	return guarded(v, &probe) == nil
}

func condition(c ast.ConditionType) ast.Node {
	n := ast.NewNode(c.Body)
	if c.Condition == ast.ConditionUnless {
		return ast.Not(n)
	}
	return n
}

func flatten(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// checkLiterals refuses literals outside the closed vocabularies: unknown roles, groups,
// permissions and executable families anywhere, and unknown values beside a closed attribute.
func checkLiterals(p *ast.Policy) error {
	var errs []error
	for _, scope := range [...]ast.IsScopeNode{p.Principal, p.Resource} {
		if uid, ok := scopeEntity(scope); ok {
			errs = append(errs, checkEntity(uid))
		}
	}
	for _, c := range p.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			switch n := n.(type) {
			case ast.NodeValue:
				if uid, ok := n.Value.(cedar.EntityUID); ok {
					errs = append(errs, checkEntity(uid))
				}
			case ast.NodeTypeIs:
				errs = append(errs, checkType(n.EntityType))
			case ast.NodeTypeIsIn:
				errs = append(errs, checkType(n.EntityType))
			case ast.NodeTypeEquals:
				errs = append(errs, checkPair(n.Left, n.Right))
			case ast.NodeTypeNotEquals:
				errs = append(errs, checkPair(n.Left, n.Right))
			case ast.NodeTypeContains:
				errs = append(errs, checkPair(n.Left, n.Right))
			case ast.NodeTypeContainsAll:
				errs = append(errs, checkPair(n.Left, n.Right))
			case ast.NodeTypeContainsAny:
				errs = append(errs, checkPair(n.Left, n.Right))
			}
			return true
		})
	}
	return errors.Join(errs...)
}

func scopeEntity(scope ast.IsScopeNode) (cedar.EntityUID, bool) {
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		return s.Entity, true
	case ast.ScopeTypeIn:
		return s.Entity, true
	case ast.ScopeTypeIsIn:
		return s.Entity, true
	}
	return cedar.EntityUID{}, false
}

func checkEntity(uid cedar.EntityUID) error {
	id := string(uid.ID)
	switch uid.Type {
	case TypeRole:
		if !slices.Contains(vocabRole, id) {
			return fmt.Errorf("unknown role %q: want one of %s", id, strings.Join(vocabRole, ", "))
		}
	case TypeToolGroup:
		if !slices.Contains(vocabToolGroup, id) {
			return fmt.Errorf("unknown group of tools %q: want one of %s", id, strings.Join(vocabToolGroup, ", "))
		}
	case TypePermission:
		if _, err := access.ParseSet([]string{id}); err != nil {
			return fmt.Errorf("unknown permission %q: want one of %s", id, access.All())
		}
	case TypeExecutable:
		if _, ok := families()[id]; !ok && !strings.HasPrefix(id, "#!") {
			return fmt.Errorf("%q is not the family name of a shell, interpreter, loader or wrapper", id)
		}
	}
	return nil
}

// checkType refuses an `is` with a type that the schema doesn't have; the validator takes it
// for a test that is false.
func checkType(t cedar.EntityType) error {
	if _, ok := resolvedSchema().Entities[t]; !ok {
		return fmt.Errorf("unknown entity type %s", t)
	}
	return nil
}

// checkPair checks the literals that are compared with an attribute that has a closed list.
// Another value is a typo and would silently never match.
func checkPair(a, b ast.IsNode) error {
	row := closed(tree.Path(b))
	if row != nil {
		a, b = b, a
	} else if row = closed(tree.Path(a)); row == nil {
		return nil
	}
	for _, lit := range stringLiterals(b) {
		if !slices.Contains(row.of, lit) {
			return row.refusal(lit)
		}
	}
	return nil
}

// closed returns the attribute with a closed list that path names, else nil.
func closed(path string) *attribute {
	below, found := strings.CutPrefix(path, "context.")
	if m := attrNames[below]; found && m.len() == 1 && attributes[m.bit()].of != nil {
		return &attributes[m.bit()]
	}
	return nil
}

func stringLiterals(n ast.IsNode) (out []string) {
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		if v, ok := n.(ast.NodeValue); ok {
			if s, ok := v.Value.(cedar.String); ok {
				out = append(out, string(s))
			}
		}
		return true
	})
	return out
}

// untested reports a forbid that no policy test shows firing. An @untested("why") annotation on
// the policy permits it.
func (r *rule) untested(fired map[string]bool) error {
	if r.permits() || fired[r.id] {
		return nil
	}
	if _, ok := r.policy.Annotations()["untested"]; ok {
		return nil
	}
	return fault.New(fault.BadState, "policy_untested", fmt.Sprintf("%s:%d: policy %q", r.file, r.line, r.id),
		fault.Mark(errors.New("no policy test shows this forbid firing"), ErrTests)).
		WithHint("add a test to a *.test.json file that expects it in \"policies\"; a forbid that never fires protects nothing")
}

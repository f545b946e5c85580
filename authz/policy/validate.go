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
	"palyra/internal/fault"
)

// schemaText is the program's schema, as a policy directory may repeat it.
var schemaText = sync.OnceValue(func() string {
	b, err := embedded.ReadFile("default/palyra.cedarschema")
	if err != nil {
		panic("policy: internal error: " + err.Error()) // embedded
	}
	return string(b)
})

// Schema returns the Cedar schema that every policy is checked against.
func Schema() string { return schemaText() }

var resolvedSchema = sync.OnceValue(func() *resolved.Schema {
	var s schema.Schema
	s.SetFilename("palyra.cedarschema")
	if err := s.UnmarshalCedar([]byte(schemaText())); err != nil {
		panic("policy: internal error: " + err.Error()) // embedded
	}
	r, err := s.Resolve()
	if err != nil {
		panic("policy: internal error: " + err.Error())
	}
	return r
})

// validate refuses rules that Cedar would accept and that could never do what
// they say: what does not fit the schema, what can never match, and literals
// outside a closed vocabulary.
func (s *Set) validate(ctx context.Context) error {
	v := validate.New(resolvedSchema())
	sound := make(map[string]bool) // shapes: the validator would say the same again
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
			return r.fault("policy_never_matches", errors.New("its conditions can never hold for any request of its scope"))
		}
		sound[like] = true
	}
	return nil
}

// source is the text of a rule, with what stands behind it up to the next.
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

// neverMatches asks whether the schema's types alone make p's conditions false
// in every request of its scope: `resource is Palyra::Skill` under tool.execute,
// `context has colour`, `false`. The validator knows the type "false" but does
// not report it; it skips what stands behind it, though. So a node with a type
// error is put behind the conditions, and they are impossible exactly if it is
// not reported. p itself has been validated without an error before.
func neverMatches(v *validate.Validator, p *ast.Policy) bool {
	if len(p.Conditions) == 0 {
		return false // an impossible scope is an error of the validator's own
	}
	// The conditions are joined first: (a && b) && error. Grouped the other way
	// the error would sit beside b alone.
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

// flatten puts the validator's joined errors on one line.
func flatten(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// closedAttrs are the context attributes whose values come from a closed list.
// A comparison with anything else is a typo that would silently never match.
var closedAttrs = map[string][]string{
	"context.executable.kind": vocabKind,
	"context.tier":            vocabTier,
	"context.stdin":           vocabStdin,
	"context.network":         vocabNetwork,
	"context.certificate":     vocabCertificate,
	"context.scope":           vocabScope,
	"context.capabilities":    vocabCapabilities[:], // a set: its elements
	"context.features":        vocabFeature,         // a set as well
	"context.unpinned":        vocabUnpinned,        // and this
}

// checkLiterals refuses literals outside the closed vocabularies: unknown roles
// and executable families anywhere, and unknown values beside a closed attribute.
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

// checkType refuses an `is` with a type that the schema does not have; the
// validator takes it for a test that is merely false.
func checkType(t cedar.EntityType) error {
	if _, ok := resolvedSchema().Entities[t]; !ok {
		return fmt.Errorf("unknown entity type %s", t)
	}
	return nil
}

// checkPair compares a closed attribute on one side with the literals on the other.
func checkPair(a, b ast.IsNode) error {
	if _, ok := closedAttrs[pathOf(b)]; ok {
		a, b = b, a
	}
	path := pathOf(a)
	vocab, ok := closedAttrs[path]
	if !ok {
		return nil
	}
	for _, lit := range stringLiterals(b) {
		if !slices.Contains(vocab, lit) {
			return fmt.Errorf("%s is never %q: want one of %s", path, lit, strings.Join(vocab, ", "))
		}
	}
	return nil
}

// pathOf spells an attribute access, "context.executable.kind", or is "". One of
// more than maxPath names is in no schema of ours.
func pathOf(n ast.IsNode) string { return pathWithin(n, maxPath) }

const maxPath = 16

func pathWithin(n ast.IsNode, most int) string {
	switch n := n.(type) {
	case ast.NodeTypeVariable:
		return string(n.Name)
	case ast.NodeTypeAccess:
		if most == 1 {
			return ""
		}
		if p := pathWithin(n.Arg, most-1); p != "" {
			return p + "." + string(n.Value)
		}
	}
	return ""
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

// untested reports a forbid that no policy test shows firing. @untested("why")
// on the policy is the way out.
func (r *rule) untested(fired map[string]bool) error {
	if r.permits() || fired[r.id] {
		return nil
	}
	if _, ok := r.policy.Annotations()["untested"]; ok {
		return nil
	}
	return fault.New(fault.BadState, "policy_untested", fmt.Sprintf("%s:%d: policy %q", r.file, r.line, r.id),
		errors.New("no policy test shows this forbid firing")).
		WithHint("add a test to a *.test.json file that expects it in \"policies\"; a forbid that never fires protects nothing")
}

package lint

import (
	"fmt"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy"
	"palyra/authz/policy/internal/tree"
)

// What a policy says, as a formula of propositional logic over atoms, for one
// action at a time: whether two policies say the same, or one can never hold,
// is then a question to solve (solve.go). What has no better reading is an atom
// by its text. So "no request satisfies it" is never wrong, but may be missed.

// formula is true, false, an atom, or made of formulas.
type formula interface{ isFormula() }

type (
	constant bool
	not      struct{ f formula }
	and      []formula
	or       []formula
	// truth is an expression of type Bool that is known by its text alone, and
	// "the set term holds value", and "principal in role".
	truth struct{ text string }
	// among says that term, a string or an entity, is one of values, sorted.
	among struct {
		term   string
		values []string
	}
	// below says that term, a number, is less than n.
	below struct {
		term string
		n    int64
	}
	// like says that the string term matches a pattern.
	like struct {
		term, text string
		pattern    types.Pattern
	}
	// empty says that the set term has no element.
	empty struct{ term string }
)

func (constant) isFormula() {}
func (not) isFormula()      {}
func (and) isFormula()      {}
func (or) isFormula()       {}
func (truth) isFormula()    {}
func (among) isFormula()    {}
func (below) isFormula()    {}
func (like) isFormula()     {}
func (empty) isFormula()    {}

// holds is the element of a set, roleHeld a role of the principal, as truths.
func holds(term, value string) formula { return truth{term + "∋" + value} }
func roleHeld(role string) formula     { return truth{"principal∈" + role} }

// permissionHeld is no role's: a credential can hold less than its principal's roles.
func permissionHeld(p string) formula { return truth{"principal∈permission " + p} }

// typeOf is the type of an entity term, as a term.
func typeOf(term string) string { return "type of " + term }

// reader makes formulas for one action.
type reader struct{ action policy.Action }

// matches is the condition under which p matches a request with the reader's action.
func (x reader) matches(p *ast.Policy) formula {
	out := and{x.scope(p)}
	for _, c := range p.Conditions {
		out = append(out, x.condition(c))
	}
	return out
}

func (x reader) condition(c ast.ConditionType) formula {
	if f := x.expr(c.Body); c.Condition == ast.ConditionWhen {
		return f
	} else {
		return not{f}
	}
}

// scope is the condition of p's scope.
func (x reader) scope(p *ast.Policy) formula {
	return and{x.side("principal", p.Principal), x.side("action", p.Action), x.side("resource", p.Resource)}
}

func (x reader) side(name string, scope ast.IsScopeNode) formula {
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		return x.equal(name, s.Entity)
	case ast.ScopeTypeIn:
		return x.in(name, s.Entity)
	case ast.ScopeTypeInSet:
		var out or
		for _, uid := range s.Entities {
			out = append(out, x.in(name, uid))
		}
		return out
	case ast.ScopeTypeIs:
		return x.is(name, s.Type)
	case ast.ScopeTypeIsIn:
		return and{x.is(name, s.Type), x.in(name, s.Entity)}
	}
	return constant(true)
}

func (x reader) equal(term string, uid cedar.EntityUID) formula {
	if term == "action" {
		return constant(uid.Type == policy.TypeAction && string(uid.ID) == x.action.Name)
	}
	return and{among{term, []string{uid.String()}}, x.is(term, uid.Type)}
}

// in is equality but for roles, permissions and groups of tools: nothing else has
// members.
func (x reader) in(term string, uid cedar.EntityUID) formula {
	switch {
	case term == "principal" && uid.Type == policy.TypeRole:
		return roleHeld(string(uid.ID))
	case term == "resource" && uid.Type == policy.TypeToolGroup:
		var names []string
		for _, tool := range policy.ToolsOf(string(uid.ID)) {
			names = append(names, cedar.NewEntityUID(policy.TypeTool, cedar.String(tool)).String())
		}
		slices.Sort(names)
		return and{among{term, names}, x.is(term, policy.TypeTool)}
	case term == "principal" && uid.Type == policy.TypePermission:
		return permissionHeld(string(uid.ID))
	}
	return x.equal(term, uid)
}

func (x reader) is(term string, t cedar.EntityType) formula {
	if term == "action" {
		return constant(t == policy.TypeAction)
	}
	return among{typeOf(term), []string{string(t)}}
}

// expr is an expression of type Bool.
func (x reader) expr(n ast.IsNode) formula {
	switch v := n.(type) {
	case ast.NodeValue:
		if b, ok := v.Value.(cedar.Boolean); ok {
			return constant(b)
		}
	case ast.NodeTypeAnd:
		return and{x.expr(v.Left), x.expr(v.Right)}
	case ast.NodeTypeOr:
		return or{x.expr(v.Left), x.expr(v.Right)}
	case ast.NodeTypeNot:
		return not{x.expr(v.Arg)}
	case ast.NodeTypeIfThenElse:
		c := x.expr(v.If)
		return or{and{c, x.expr(v.Then)}, and{not{c}, x.expr(v.Else)}}
	case ast.NodeTypeEquals:
		return x.equals(n, v.Left, v.Right)
	case ast.NodeTypeNotEquals:
		// The text of the equality, so that a == b and a != b exclude each other.
		return not{x.equals(ast.NodeTypeEquals(v), v.Left, v.Right)}
	case ast.NodeTypeLessThan:
		return x.less(n, v.Left, v.Right, false)
	case ast.NodeTypeLessThanOrEqual:
		return x.less(n, v.Left, v.Right, true)
	case ast.NodeTypeGreaterThan:
		return not{x.less(n, v.Left, v.Right, true)}
	case ast.NodeTypeGreaterThanOrEqual:
		return not{x.less(n, v.Left, v.Right, false)}
	case ast.NodeTypeIn:
		return x.member(n, v.Left, v.Right)
	case ast.NodeTypeIs:
		if term := tree.Path(v.Left); term != "" {
			return x.is(term, v.EntityType)
		}
	case ast.NodeTypeIsIn:
		if term := tree.Path(v.Left); term != "" {
			return and{x.is(term, v.EntityType), x.member(n, v.Left, v.Entity)}
		}
	case ast.NodeTypeHas:
		return x.has(n, v)
	case ast.NodeTypeContains, ast.NodeTypeContainsAll, ast.NodeTypeContainsAny:
		return x.contains(n)
	case ast.NodeTypeIsEmpty:
		if term := tree.Path(v.Arg); term != "" {
			return empty{term}
		}
	case ast.NodeTypeLike:
		if term := tree.Path(v.Arg); term != "" {
			return like{term, string(v.Value.MarshalCedar()), v.Value}
		}
	}
	return truth{tree.Text(n)}
}

func (x reader) equals(n, a, b ast.IsNode) formula {
	term, lit := tree.Path(a), literal(b)
	if term == "" || lit == nil {
		term, lit = tree.Path(b), literal(a)
	}
	switch v := lit.(type) {
	case cedar.Boolean:
		if f := formula(truth{term}); term != "" {
			if v {
				return f
			}
			return not{f}
		}
	case cedar.String:
		if term != "" {
			return among{term, []string{string(v)}}
		}
	case cedar.EntityUID:
		if term != "" {
			return x.equal(term, v)
		}
	case cedar.Long:
		if term != "" {
			return and{not{below{term, int64(v)}}, notAbove(term, int64(v))}
		}
	}
	if la, lb := literal(a), literal(b); la != nil && lb != nil {
		return constant(la.Equal(lb))
	}
	if ta, tb := tree.Text(a), tree.Text(b); ta == tb {
		return constant(true)
	}
	return truth{tree.Text(n)}
}

// notAbove is term <= n.
func notAbove(term string, n int64) formula {
	if n+1 < n {
		return constant(true)
	}
	return below{term, n + 1}
}

// less is a < b, or a <= b.
func (x reader) less(n, a, b ast.IsNode, orEqual bool) formula {
	if l, ok := literal(b).(cedar.Long); ok && tree.Path(a) != "" {
		if orEqual {
			return notAbove(tree.Path(a), int64(l))
		}
		return below{tree.Path(a), int64(l)}
	}
	if l, ok := literal(a).(cedar.Long); ok && tree.Path(b) != "" {
		if orEqual { // l <= b
			return not{below{tree.Path(b), int64(l)}}
		}
		return not{notAbove(tree.Path(b), int64(l))}
	}
	op := " < "
	if orEqual {
		op = " <= "
	}
	return truth{tree.Text(a) + op + tree.Text(b)}
}

// member is a in b.
func (x reader) member(n, a, b ast.IsNode) formula {
	term := tree.Path(a)
	if term == "" {
		return truth{tree.Text(n)}
	}
	if set, ok := b.(ast.NodeTypeSet); ok {
		var out or
		for _, e := range set.Elements {
			out = append(out, x.member(n, a, e))
		}
		return out
	}
	if uid, ok := literal(b).(cedar.EntityUID); ok {
		return x.in(term, uid)
	}
	return truth{term + " in " + tree.Text(b)}
}

// has knows that the schema has no optional attribute.
func (x reader) has(n ast.IsNode, v ast.NodeTypeHas) formula {
	path := tree.Path(v.Arg)
	if path == "" {
		return truth{tree.Text(n)}
	}
	below, ok := strings.CutPrefix(path+"."+string(v.Value), "context.")
	if !ok {
		return truth{tree.Text(n)}
	}
	if has, known := x.action.Has(below); known {
		return constant(has)
	}
	return constant(false)
}

func (x reader) contains(n ast.IsNode) formula {
	var left, right ast.IsNode
	switch v := n.(type) {
	case ast.NodeTypeContains:
		left, right = v.Left, v.Right
	case ast.NodeTypeContainsAll:
		left, right = v.Left, v.Right
	case ast.NodeTypeContainsAny:
		left, right = v.Left, v.Right
	}
	values, whole := literals(left)
	term := tree.Path(left)
	switch n.(type) {
	case ast.NodeTypeContains:
		switch lit := literal(right); {
		case whole && tree.Path(right) != "": // ["a", "b"].contains(context.tier)
			var out or
			for _, v := range values {
				out = append(out, x.equals(n, right, ast.NodeValue{Value: v}))
			}
			return x.joined(tree.Path(right), out)
		case term != "" && lit != nil: // context.args.contains("-v")
			return holds(term, lit.String())
		}
	case ast.NodeTypeContainsAny:
		if whole { // it is symmetric
			term = tree.Path(right)
		} else {
			values, whole = literals(right)
		}
		if whole && term != "" {
			var out or
			for _, v := range values {
				out = append(out, holds(term, v.String()))
			}
			return out
		}
	case ast.NodeTypeContainsAll:
		if values, whole = literals(right); whole && term != "" {
			var out and
			for _, v := range values {
				out = append(out, holds(term, v.String()))
			}
			return out
		}
	}
	return truth{tree.Text(n)}
}

// joined makes one atom of equalities of one string, so that a long list does
// not make many cases.
func (x reader) joined(term string, equalities or) formula {
	var values []string
	for _, f := range equalities {
		a, ok := f.(among)
		if !ok || len(a.values) != 1 || a.term != term {
			return equalities
		}
		values = append(values, a.values[0])
	}
	slices.Sort(values)
	return among{term, slices.Compact(values)}
}

// literal is the value of a node that is one, else nil.
func literal(n ast.IsNode) cedar.Value {
	if v, ok := n.(ast.NodeValue); ok {
		return v.Value
	}
	return nil
}

// literals are the elements of a set of literals.
func literals(n ast.IsNode) (out []cedar.Value, ok bool) {
	switch v := n.(type) {
	case ast.NodeTypeSet:
		for _, e := range v.Elements {
			lit := literal(e)
			if lit == nil {
				return nil, false
			}
			out = append(out, lit)
		}
		return out, true
	case ast.NodeValue:
		if s, isSet := v.Value.(cedar.Set); isSet {
			for e := range s.All() {
				out = append(out, e)
			}
			slices.SortFunc(out, func(a, b cedar.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			return out, true
		}
	}
	return nil, false
}

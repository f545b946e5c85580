package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
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

// every action of the schema, interpreter.run too, with the type of its resource.
func actionTypes() map[string]string {
	m := maps.Clone(resourceType)
	m[interpreterRun] = TypeExecutable
	return m
}

// reader makes formulas for one action.
type reader struct {
	action string
	holds  attr // what its context has
}

func readerFor(action string) reader {
	switch {
	case runsProgram(action), action == interpreterRun:
		return reader{action, attrCall}
	case answers(action):
		return reader{action, attrAnswer}
	case action == PermissionUse:
		return reader{action, attrUse}
	}
	return reader{action, attrOrigin}
}

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
		return constant(uid.Type == actionType && string(uid.ID) == x.action)
	}
	return and{among{term, []string{uid.String()}}, x.is(term, uid.Type)}
}

// in is equality but for roles and permissions: nothing else has members.
func (x reader) in(term string, uid cedar.EntityUID) formula {
	switch {
	case term == "principal" && uid.Type == TypeRole:
		return roleHeld(string(uid.ID))
	case term == "principal" && uid.Type == TypePermission:
		return permissionHeld(string(uid.ID))
	}
	return x.equal(term, uid)
}

func (x reader) is(term string, t cedar.EntityType) formula {
	if term == "action" {
		return constant(t == actionType)
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
		if term := pathOf(v.Left); term != "" {
			return x.is(term, v.EntityType)
		}
	case ast.NodeTypeIsIn:
		if term := pathOf(v.Left); term != "" {
			return and{x.is(term, v.EntityType), x.member(n, v.Left, v.Entity)}
		}
	case ast.NodeTypeHas:
		return x.has(n, v)
	case ast.NodeTypeContains, ast.NodeTypeContainsAll, ast.NodeTypeContainsAny:
		return x.contains(n)
	case ast.NodeTypeIsEmpty:
		if term := pathOf(v.Arg); term != "" {
			return empty{term}
		}
	case ast.NodeTypeLike:
		if term := pathOf(v.Arg); term != "" {
			return like{term, string(v.Value.MarshalCedar()), v.Value}
		}
	}
	return truth{text(n)}
}

func (x reader) equals(n, a, b ast.IsNode) formula {
	term, lit := pathOf(a), literal(b)
	if term == "" || lit == nil {
		term, lit = pathOf(b), literal(a)
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
	if ta, tb := text(a), text(b); ta == tb {
		return constant(true)
	}
	return truth{text(n)}
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
	if l, ok := literal(b).(cedar.Long); ok && pathOf(a) != "" {
		if orEqual {
			return notAbove(pathOf(a), int64(l))
		}
		return below{pathOf(a), int64(l)}
	}
	if l, ok := literal(a).(cedar.Long); ok && pathOf(b) != "" {
		if orEqual { // l <= b
			return not{below{pathOf(b), int64(l)}}
		}
		return not{notAbove(pathOf(b), int64(l))}
	}
	op := " < "
	if orEqual {
		op = " <= "
	}
	return truth{text(a) + op + text(b)}
}

// member is a in b.
func (x reader) member(n, a, b ast.IsNode) formula {
	term := pathOf(a)
	if term == "" {
		return truth{text(n)}
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
	return truth{term + " in " + text(b)}
}

// has knows that the schema has no optional attribute.
func (x reader) has(n ast.IsNode, v ast.NodeTypeHas) formula {
	path := pathOf(v.Arg)
	if path == "" {
		return truth{text(n)}
	}
	below, ok := strings.CutPrefix(path+"."+string(v.Value), "context.")
	if !ok {
		return truth{text(n)}
	}
	if a := attrNames[below]; a != 0 {
		return constant(a&x.holds != 0)
	}
	if strings.HasPrefix(below, "limits.") {
		return truth{text(n)}
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
	term := pathOf(left)
	switch n.(type) {
	case ast.NodeTypeContains:
		switch lit := literal(right); {
		case whole && pathOf(right) != "": // ["a", "b"].contains(context.tier)
			var out or
			for _, v := range values {
				out = append(out, x.equals(n, right, ast.NodeValue{Value: v}))
			}
			return x.joined(pathOf(right), out)
		case term != "" && lit != nil: // context.args.contains("-v")
			return holds(term, lit.String())
		}
	case ast.NodeTypeContainsAny:
		if whole { // it is symmetric
			term = pathOf(right)
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
	return truth{text(n)}
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

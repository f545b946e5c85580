package policy

import (
	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/access"
)

// index finds the rules whose scope can match a request, so that a decision's cost doesn't grow
// with the set. It must yield every rule that matches and may yield others; a test compares it
// with the linear scan. Cedar doesn't look again at scopes that the index matches exactly: the
// action always, principal and resource mostly (exactScope).
//
// Rules are filed by action, then by a number each for the scope's principal and resource: 0
// for any, else the number of the entity that the scope names (== and in alike) or of its type
// (is). A request looks under any, its type, itself and its ancestors. Immutable after
// newIndex.
type index struct {
	numbers map[cedar.EntityUID]uint32 // a type is filed as the entity with an empty id
	actions map[cedar.String]map[scopeKey][]*rule
	any     map[scopeKey][]*rule // rules for every action
}

type scopeKey struct{ principal, resource uint32 }

func newIndex(rules []*rule) index {
	x := index{
		numbers: make(map[cedar.EntityUID]uint32),
		actions: make(map[cedar.String]map[scopeKey][]*rule),
		any:     make(map[scopeKey][]*rule),
	}
	for _, r := range rules {
		k := scopeKey{x.number(r.ast.Principal), x.number(r.ast.Resource)}
		switch a := r.ast.Action.(type) {
		case ast.ScopeTypeEq:
			x.file(a.Entity, k, r)
		case ast.ScopeTypeIn: // the schema has no action groups
			x.file(a.Entity, k, r)
		case ast.ScopeTypeInSet:
			filed := make(map[cedar.EntityUID]bool)
			for _, uid := range a.Entities {
				if !filed[uid] {
					filed[uid] = true
					x.file(uid, k, r)
				}
			}
		default:
			x.any[k] = append(x.any[k], r)
		}
	}
	return x
}

func (x *index) file(action cedar.EntityUID, k scopeKey, r *rule) {
	m := x.actions[action.ID]
	if m == nil {
		m = make(map[scopeKey][]*rule)
		x.actions[action.ID] = m
	}
	m[k] = append(m[k], r)
}

func (x *index) number(scope ast.IsScopeNode) uint32 {
	var uid cedar.EntityUID
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		uid = s.Entity
	case ast.ScopeTypeIn:
		uid = s.Entity
	case ast.ScopeTypeIsIn:
		uid = s.Entity
	case ast.ScopeTypeIs:
		uid.Type = s.Type
	default:
		return 0
	}
	n, ok := x.numbers[uid]
	if !ok {
		n = uint32(len(x.numbers)) + 1
		x.numbers[uid] = n
	}
	return n
}

// candidates appends to buf the rules whose scope can match.
func (x *index) candidates(buf []*rule, principal, resource cedar.EntityUID, roles roleSet, has access.Set, action cedar.String) []*rule {
	var ps, rs [40]uint32 // zero first, for any; an access.Set has at most 32
	np, nr := 1, 1
	add := func(list *[40]uint32, n *int, uid cedar.EntityUID) {
		if num, ok := x.numbers[uid]; ok {
			list[*n] = num
			*n++
		}
	}
	add(&ps, &np, cedar.EntityUID{Type: principal.Type})
	add(&ps, &np, principal)
	for i, uid := range roleUIDs {
		if roles&(1<<i) != 0 {
			add(&ps, &np, uid)
		}
	}
	if has != 0 {
		for _, p := range has.List() {
			add(&ps, &np, permissionUID(p))
		}
	}
	add(&rs, &nr, cedar.EntityUID{Type: resource.Type})
	add(&rs, &nr, resource)
	if group, ok := toolGroups[resource]; ok {
		add(&rs, &nr, group)
	}
	for _, m := range [...]map[scopeKey][]*rule{x.actions[action], x.any} {
		if len(m) == 0 {
			continue
		}
		for _, p := range ps[:np] {
			for _, r := range rs[:nr] {
				buf = append(buf, m[scopeKey{p, r}]...)
			}
		}
	}
	return buf
}

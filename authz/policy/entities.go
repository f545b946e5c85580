package policy

import (
	"errors"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/access"
	"palyra/internal/tools"
)

// roleSet is a set of roles, closed under the hierarchy.
type roleSet uint8

var roleUIDs = [...]cedar.EntityUID{
	{Type: TypeRole, ID: RoleOwner},
	{Type: TypeRole, ID: RoleAdmin},
	{Type: TypeRole, ID: RoleOperator},
}

const (
	bitOwner roleSet = 1 << iota
	bitAdmin
	bitOperator
)

// rolesOf closes the named roles: owner holds admin, admin holds operator.
func rolesOf(names []string) (s roleSet) {
	for _, n := range names {
		switch n {
		case RoleOwner:
			s |= bitOwner | bitAdmin | bitOperator
		case RoleAdmin:
			s |= bitAdmin | bitOperator
		case RoleOperator:
			s |= bitOperator
		}
	}
	return s
}

// roleParents are the Cedar parents for every roleSet; roleEntities are the roles themselves.
// Immutable.
var (
	roleParents = func() (out [8]cedar.EntityUIDSet) {
		for s := range out {
			var uids []cedar.EntityUID
			for i, uid := range roleUIDs {
				if s&(1<<i) != 0 {
					uids = append(uids, uid)
				}
			}
			out[s] = cedar.NewEntityUIDSet(uids...)
		}
		return out
	}()
	roleEntities = cedar.EntityMap{
		roleUIDs[0]: {UID: roleUIDs[0], Parents: roleParents[bitAdmin|bitOperator]},
		roleUIDs[1]: {UID: roleUIDs[1], Parents: roleParents[bitOperator]},
		roleUIDs[2]: {UID: roleUIDs[2]},
	}
)

// held returns the permissions of a principal's roles, limited to the scopes of its credential.
func held(e *Entity) (s access.Set) {
	for _, r := range e.Roles {
		s |= access.Role(r).Permissions()
	}
	if e.Scopes != nil {
		scopes, err := access.ParseSet(e.Scopes)
		if err != nil { // check has refused it
			return 0
		}
		s &= scopes
	}
	return s
}

func permissionUID(p access.Permission) cedar.EntityUID {
	return cedar.EntityUID{Type: TypePermission, ID: cedar.String(p)}
}

// parentsOf returns the Cedar parents of a principal: its roles and the permissions in has. A
// permission that no policy names, and that the request doesn't ask about, can't change an
// answer and isn't in has.
func parentsOf(roles roleSet, has access.Set) cedar.EntityUIDSet {
	if has == 0 {
		return roleParents[roles]
	}
	var uids []cedar.EntityUID
	for uid := range roleParents[roles].All() {
		uids = append(uids, uid)
	}
	for _, p := range has.List() {
		uids = append(uids, permissionUID(p))
	}
	return cedar.NewEntityUIDSet(uids...)
}

// The groups of tools. The program's table assigns a tool to a group by name; a request can't
// choose one.
const (
	GroupReads   = "reads"
	GroupWrites  = "writes"
	GroupVault   = "vault"
	GroupNetwork = "network"
	GroupMemory  = "memory"
)

var vocabToolGroup = []string{GroupReads, GroupWrites, GroupVault, GroupNetwork, GroupMemory}

var toolGroups = func() map[cedar.EntityUID]cedar.EntityUID {
	m := make(map[cedar.EntityUID]cedar.EntityUID)
	for _, t := range tools.All() {
		group := GroupReads
		switch {
		case t.Access.Writing():
			group = GroupWrites
		case t.Vault:
			group = GroupVault
		case t.Reaches:
			group = GroupNetwork
		case t.Remembers:
			group = GroupMemory
		}
		m[cedar.EntityUID{Type: TypeTool, ID: cedar.String(t.Name)}] = cedar.EntityUID{Type: TypeToolGroup, ID: cedar.String(group)}
	}
	return m
}()

var toolGroupParents = map[cedar.EntityUID]cedar.EntityUIDSet{
	{Type: TypeToolGroup, ID: GroupReads}:   cedar.NewEntityUIDSet(cedar.EntityUID{Type: TypeToolGroup, ID: GroupReads}),
	{Type: TypeToolGroup, ID: GroupWrites}:  cedar.NewEntityUIDSet(cedar.EntityUID{Type: TypeToolGroup, ID: GroupWrites}),
	{Type: TypeToolGroup, ID: GroupVault}:   cedar.NewEntityUIDSet(cedar.EntityUID{Type: TypeToolGroup, ID: GroupVault}),
	{Type: TypeToolGroup, ID: GroupMemory}:  cedar.NewEntityUIDSet(cedar.EntityUID{Type: TypeToolGroup, ID: GroupMemory}),
	{Type: TypeToolGroup, ID: GroupNetwork}: cedar.NewEntityUIDSet(cedar.EntityUID{Type: TypeToolGroup, ID: GroupNetwork}),
}

func resourceOf(uid cedar.EntityUID) cedar.Entity {
	return cedar.Entity{UID: uid, Parents: toolGroupParents[toolGroups[uid]]}
}

func permissionsIn(p *ast.Policy) (s access.Set) {
	add := func(uid cedar.EntityUID) {
		if uid.Type == TypePermission {
			if one, err := access.ParseSet([]string{string(uid.ID)}); err == nil {
				s |= one
			}
		}
	}
	for _, scope := range [...]ast.IsScopeNode{p.Principal, p.Resource} {
		if uid, ok := scopeEntity(scope); ok {
			add(uid)
		}
	}
	for _, c := range p.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			if v, ok := n.(ast.NodeValue); ok {
				if uid, ok := v.Value.(cedar.EntityUID); ok {
					add(uid)
				}
			}
			return true
		})
	}
	return s
}

// impliedText is the permit added to a set in which no permit names permission.use: holding a
// permission is enough to use it, and policies can only take away. Without it a directory that
// is about tools would lock everyone out.
const impliedText = `@id("` + impliedID + `")
permit (principal, action == Palyra::Action::"permission.use", resource)
when { principal in resource };
`

const impliedID = "holders_use_permissions"

// impliedChange returns that addition, nil for a set that permits permission.use itself.
func (s *Set) impliedChange() (*change, error) {
	if s.Permits(PermissionUse) {
		return nil, nil
	}
	if r := s.byID[impliedID]; r != nil {
		return nil, r.fault("policy_invalid", errors.New("@id is already that of the permit that a set without one about permission.use has"))
	}
	return addition(impliedText)
}

// Permits reports whether a permit of the set names an action in its scope. One of any action names
// none.
func (s *Set) Permits(action string) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool { return r.permits() && namesAction(r.ast.Action, cedar.String(action)) })
}

// namesAction reports whether a scope names an action; "any" names none.
func namesAction(scope ast.IsScopeNode, action cedar.String) bool {
	switch a := scope.(type) {
	case ast.ScopeTypeEq:
		return a.Entity.ID == action
	case ast.ScopeTypeIn:
		return a.Entity.ID == action
	case ast.ScopeTypeInSet:
		for _, uid := range a.Entities {
			if uid.ID == action {
				return true
			}
		}
	}
	return false
}

// store holds the entities of one request: the principal with its roles, the resource, the role
// hierarchy, and the stand-ins for the context (record.go).
type store struct {
	principal, resource cedar.Entity
	facts               *facts
}

// Get implements cedar.EntityGetter.
func (s *store) Get(uid cedar.EntityUID) (cedar.Entity, bool) {
	if uid.Type == factType && len(uid.ID) == 1 {
		return cedar.Entity{Attributes: s.facts.fact(int(uid.ID[0]))}, true
	}
	switch uid {
	case s.principal.UID:
		return s.principal, true
	case s.resource.UID:
		return s.resource, true
	}
	return roleEntities.Get(uid)
}

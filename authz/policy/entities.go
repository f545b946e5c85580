package policy

import (
	cedar "github.com/cedar-policy/cedar-go"
)

// roleSet is a set of roles, closed under the hierarchy.
type roleSet uint8

// roleUIDs are the roles by their bit.
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

// roleParents holds the Cedar parents of every roleSet, roleEntities the roles
// themselves. Immutable.
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

// store is the entities of one request: the principal with its roles, the
// resource, the role hierarchy, and what stands for the context (record.go).
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

package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/fault"
)

// Bootstrap makes principal the first owner. It can be done once, while there is no member.
func (r *Registry) Bootstrap(ctx context.Context, principal string) error {
	if err := CheckPrincipal(principal); err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.Generation() != 0 {
		return fault.New(fault.Denied, "permission_denied", "make first owner", errors.New("there are members already"))
	}
	return r.commit(ctx, Holder{Principal: principal}, Change{
		Act: "access.bootstrap", Subject: principal, Detail: map[string]string{"role": string(Owner)},
		Members: []Member{{Principal: principal, Role: Owner}},
	}, true)
}

// SetMember gives principal a role, which replaces its old one. version is that of the
// Member that by saw, 0 for none; another one is fault.Busy "version_conflict". by must
// hold member.manage, and everything that the new role and the old one hold.
func (r *Registry) SetMember(ctx context.Context, by Holder, principal string, role Role, version uint64) (*Member, error) {
	const op = "set member"
	if err := CheckPrincipal(principal); err != nil {
		return nil, err
	}
	if _, err := ParseRole(string(role)); err != nil {
		return nil, err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	old, owners, err := r.manage(op, by, principal, version)
	if err != nil {
		return nil, err
	}
	held := r.Permissions(by)
	if missing := role.Permissions() &^ held; missing != 0 {
		return nil, exceeds(op, by, missing)
	}
	was, narrows := Role(""), false
	if old != nil {
		was, narrows = old.Role, role.Permissions().Within(old.Role.Permissions())
		if was == Owner && role != Owner && owners == 1 {
			return nil, lastOwner(op)
		}
	}
	err = r.commit(ctx, by, Change{Act: "member.set", Subject: principal,
		Detail: map[string]string{"role": string(role), "was": string(was)}, Members: []Member{{Principal: principal, Role: role}}}, !narrows)
	if err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	m := *r.members[principal]
	return &m, nil
}

// RemoveMember takes a principal's role away, revokes its tokens for good and removes its
// passkeys.
func (r *Registry) RemoveMember(ctx context.Context, by Holder, principal string, version uint64) error {
	const op = "remove member"
	r.changing.Lock()
	defer r.changing.Unlock()
	old, owners, err := r.manage(op, by, principal, version)
	switch {
	case err != nil:
		return err
	case old == nil:
		return fault.New(fault.NotFound, "not_found", op, fmt.Errorf("%.80q", principal)).WithHint(fault.Lists("member"))
	case old.Role == Owner && owners == 1:
		return lastOwner(op)
	}
	return r.commit(ctx, by, Change{Act: "member.remove", Subject: principal, Detail: map[string]string{"was": string(old.Role)},
		Removed: []string{principal}, Forgotten: r.PasskeysOf(principal), Tokens: r.revoked(func(t *token) bool { return t.principal == principal })}, false)
}

// manage checks that by may change the membership of principal at all, and returns the
// membership and the number of owners. The caller holds r.changing.
func (r *Registry) manage(op string, by Holder, principal string, version uint64) (*Member, int, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	held := r.permissionsLocked(by)
	if !held.Has(MemberManage) {
		return nil, 0, denied(by, MemberManage)
	}
	old := r.members[principal]
	have := uint64(0)
	if old != nil {
		have = old.Version
		if missing := old.Role.Permissions() &^ held; missing != 0 {
			return nil, 0, exceeds(op, by, missing)
		}
	}
	if version != have {
		return nil, 0, fault.New(fault.Busy, "version_conflict", op, errors.New("another request changed it first"))
	}
	return old, r.owners, nil
}

func exceeds(op string, by Holder, missing Set) error {
	return fault.New(fault.Denied, "permission_denied", op, fmt.Errorf("%.80q does not hold %s", by.Principal, missing)).
		WithHint("members give, take and change only what they hold; ask an owner")
}

func lastOwner(op string) error {
	return fault.New(fault.Denied, "permission_denied", op, errors.New("no owner would be left")).WithHint("make another member an owner first")
}

// Members lists the members by name. Without member.manage the list has only by's own
// membership.
func (r *Registry) Members(by Holder) []Member {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := r.permissionsLocked(by).Has(MemberManage)
	out := []Member{}
	for _, m := range r.members {
		if all || m.Principal == by.Principal {
			out = append(out, *m)
		}
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Principal, b.Principal) })
	return out
}

// Package authz turns a policy decision, and where the policy asks for one an
// approval, into a grant.
//
// [Authority.Decide] answers a request with a [Decision] that only this package
// can make; [Authority.Grant] mints the grant for it, once. A grant exists only
// for a call that policy allows, or that it wants approved and that a person
// approved: the same decision, the same capsule, the same policy set, in time.
//
//	a := authz.New(policy.Default(), key)
//	d := a.Decide(req)
//	var rec *approval.Record
//	if d.View().Effect == policy.NeedsApproval {
//		rec = approval.Resolve(ctx, approver, question)
//	}
//	g, err := a.Grant(d, rec, capsule, spec, time.Minute)
//
// The package doesn't protect against a kernel that describes another call to policy than
// the one it seals. The capsule digest ties the two together; the kernel promises that the
// request is a faithful reading of the capsule.
package authz

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/authz/internal/mint"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// MaxTTL is the longest that a grant may live. A grant is for a runner that is
// about to start; waiting happens before it is minted.
const MaxTTL = 10 * time.Minute

// Authority decides with one policy set and mints for one runner. It is
// immutable and safe for concurrent use; a reloaded set is a new Authority.
type Authority struct {
	set *policy.Set
	key grant.Key
}

// New returns the Authority for set and for the runner that shares key.
func New(set *policy.Set, key grant.Key) *Authority {
	if set == nil {
		panic("authz: internal error: nil policy set")
	}
	return &Authority{set: set, key: key}
}

// Set returns the policy set that decides.
func (a *Authority) Set() *policy.Set { return a.set }

// Decision is a policy.Decision that this package vouches for. The zero
// Decision denies. It is good for one grant, copies included.
type Decision struct {
	view policy.Decision
	by   *Authority
	used *atomic.Bool // a grant was minted
}

// View returns the decision for receipts and people. Changing it changes nothing.
func (d Decision) View() policy.Decision {
	v := d.view
	v.Policies = append([]string(nil), v.Policies...)
	v.Errors = append([]string(nil), v.Errors...)
	return v
}

// Decide asks the policy set.
func (a *Authority) Decide(r policy.Request) Decision {
	return Decision{view: a.set.Decide(r), by: a, used: new(atomic.Bool)}
}

// Grant mints the permission to run spec, which was derived from capsule, once
// within ttl. rec is ignored for an allowed call and required for one that
// needs approval. Everything else is refused: kind Denied for a denial,
// NotApproved for a missing or refused approval, Internal for a caller that
// mixed up calls.
func (a *Authority) Grant(d Decision, rec *approval.Record, capsule, spec canon.Digest, ttl time.Duration) (grant.Grant, error) {
	const op = "mint grant"
	switch {
	case d.by == nil:
		return grant.Grant{}, fault.New(fault.Denied, "policy_denied", op, errors.New("the zero decision denies"))
	case d.by != a:
		return grant.Grant{}, fault.New(fault.Internal, "internal", op, errors.New("decision of another authority"))
	}
	if err := d.fits(op, capsule, spec, ttl); err != nil {
		return grant.Grant{}, err
	}
	switch d.view.Effect {
	case policy.Allow:
	case policy.NeedsApproval:
		if err := rec.Use(d.view.ID, capsule, d.view.PolicySet); err != nil {
			return grant.Grant{}, fault.New(fault.NotApproved, "not_approved", op, err)
		}
	default:
		return grant.Grant{}, fault.New(fault.Denied, "policy_denied", op, fmt.Errorf("policy: %s", d.view.Reason))
	}
	if d.used.Swap(true) {
		return grant.Grant{}, fault.New(fault.Internal, "internal", op, errors.New("a grant was minted for this decision before"))
	}
	return mint.Mint(a.key, capsule, spec, d.view.ID, expiry(ttl)), nil
}

// fits refuses to mint for another call than d is about, or for too long.
func (d Decision) fits(op string, capsule, spec canon.Digest, ttl time.Duration) error {
	switch {
	case capsule.IsZero() || spec.IsZero():
		return fault.New(fault.Internal, "internal", op, errors.New("capsule or spec digest is missing"))
	case d.view.Capsule != capsule:
		return fault.New(fault.Internal, "internal", op, errors.New("decision is about another capsule"))
	case ttl <= 0 || ttl > MaxTTL:
		return fault.New(fault.Internal, "internal", op, fmt.Errorf("ttl %v: want at most %v", ttl, MaxTTL))
	}
	return nil
}

// expiry is when a grant that is to live for ttl ends. It has whole seconds and is
// cut, not rounded: what is cut is added.
func expiry(ttl time.Duration) time.Time { return time.Now().Add(ttl + time.Second - time.Nanosecond) }

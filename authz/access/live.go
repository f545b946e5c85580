package access

import (
	"time"

	"palyra/internal/fault"
)

// Longest returns the longest life that a new token may have.
func (r *Registry) Longest() time.Duration { return r.cfg.Longest }

// Live returns nil if h may do anything now: its principal is a member, and its token stands. A
// device's authority is a token whose text was thrown away, so this is how a device ends. An error
// is fault.Denied "not_a_member", "token_revoked" or "token_expired".
func (r *Registry) Live(h Holder) error {
	const op = "check token"
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.members[h.Principal] == nil {
		return fault.New(fault.Denied, "not_a_member", op, nil).WithHint("an owner can make it a member: palyra members set")
	}
	id, err := parseTokenID(h.Token)
	if err != nil {
		return fault.New(fault.Denied, "token_revoked", op, nil)
	}
	t := r.tokens[id]
	if t == nil || t.principal != h.Principal || t.revoked != 0 {
		return fault.New(fault.Denied, "token_revoked", op, nil)
	}
	if at := r.now().Unix(); at >= t.expires || at < t.created {
		return fault.New(fault.Denied, "token_expired", op, nil)
	}
	return nil
}

// TokenOf returns a token as it's kept, whoever holds it; false if it was forgotten.
func (r *Registry) TokenOf(id string) (Token, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n, err := parseTokenID(id)
	if err != nil || r.tokens[n] == nil {
		return Token{}, false
	}
	return r.tokens[n].view(), true
}

// Unused returns the ids of a principal's tokens with this name that are good and were never used.
func (r *Registry) Unused(principal, name string) (ids []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	at := r.now().Unix()
	for _, t := range r.order {
		if t.principal == principal && t.name == name && t.used.Load() == 0 && t.revoked == 0 && at < t.expires {
			ids = append(ids, t.id.String())
		}
	}
	return ids
}

package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"palyra/internal/fault"
	"palyra/internal/ident"
)

// MaxPasskeys bounds the passkeys of one member.
const MaxPasskeys = 16

// Passkey is a key whose holder signs in as its member. The registry keeps it; whoever asks for a
// signature verifies that (palyra/crypt/passkey).
type Passkey struct {
	ID         string // "psk_…"
	Principal  string
	Name       string // for people
	Credential []byte // its authenticator's id of it
	Key        []byte // SubjectPublicKeyInfo in DER
	Count      uint32 // of signatures, as the authenticator counts; 0: it doesn't
	Created    time.Time
	LastUsed   time.Time // zero: never
	Halted     time.Time // when its count went back, as a copy's does; zero: it did not
}

// AddPasskey adds a passkey of by's own. Name, Credential, Key and Count of p count. by must hold
// token.manage. A seventeenth is fault.Unavailable "quota", and a credential that is known is
// fault.Busy "exists".
func (r *Registry) AddPasskey(ctx context.Context, by Holder, p Passkey) (*Passkey, error) {
	const op = "add passkey"
	if err := checkName(op, p.Name); err != nil {
		return nil, err
	}
	if len(p.Credential) == 0 || len(p.Key) == 0 {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("it has no id or no key"))
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if err := r.Allow(by, TokenManage); err != nil {
		return nil, err
	}
	r.mu.RLock()
	_, known := r.passkeys[string(p.Credential)]
	n := 0
	for _, o := range r.passkeys {
		if o.Principal == by.Principal {
			n++
		}
	}
	r.mu.RUnlock()
	switch {
	case known:
		return nil, fault.New(fault.Busy, "exists", op, errors.New("this passkey is there"))
	case n >= MaxPasskeys:
		return nil, fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80q has %d passkeys", by.Principal, n)).
			WithHint("revoke one: palyra passkeys ls")
	}
	p.ID, p.Principal, p.Created, p.LastUsed, p.Halted = ident.New(ident.Passkey), by.Principal, r.now().Truncate(time.Second), time.Time{}, time.Time{}
	p.Credential, p.Key = slices.Clone(p.Credential), slices.Clone(p.Key)
	sum := sha256.Sum256(p.Key)
	err := r.commit(ctx, by, Change{Act: "passkey.add", Subject: p.ID, Passkeys: []Passkey{p}, Detail: map[string]string{
		"principal": p.Principal, "key": "sha256:" + hex.EncodeToString(sum[:])}}, true)
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// RemovePasskey removes a passkey for good, and revokes its member's tokens of the name of
// sessions, but for the one that by shows: it may have opened any of them. by is as for Revoke. It
// returns the passkey and the number of ended tokens.
func (r *Registry) RemovePasskey(ctx context.Context, by Holder, id, sessions string) (*Passkey, int, error) {
	const op = "remove passkey"
	r.changing.Lock()
	defer r.changing.Unlock()
	held := r.Permissions(by)
	p := r.passkey(id)
	switch {
	case p == nil || p.Principal != by.Principal && !held.Has(MemberManage):
		return nil, 0, fault.New(fault.NotFound, "not_found", op, fmt.Errorf("%.80q", id)).WithHint(fault.Lists("passkey"))
	case p.Principal == by.Principal && !held.Has(TokenManage):
		return nil, 0, denied(by, TokenManage)
	case p.Principal != by.Principal:
		if missing := r.Role(p.Principal).Permissions() &^ held; missing != 0 {
			return nil, 0, exceeds(op, by, missing)
		}
	}
	ends := map[tokenID]bool{}
	gone := r.revoked(func(t *token) bool { // parents come before children
		ends[t.id] = t.principal == p.Principal && t.name == sessions && t.id.String() != by.Token || ends[t.parent]
		return ends[t.id]
	})
	err := r.commit(ctx, by, Change{Act: "passkey.remove", Subject: id, Forgotten: []Passkey{*p}, Tokens: gone,
		Detail: map[string]string{"principal": p.Principal, "tokens": fmt.Sprint(len(gone))}}, false)
	if err != nil {
		return nil, 0, err
	}
	return p, len(gone), nil
}

// HaltPasskey makes a passkey good for nothing but its removal. Halting twice is no error.
func (r *Registry) HaltPasskey(ctx context.Context, id string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	p := r.passkey(id)
	if p == nil || !p.Halted.IsZero() {
		return nil
	}
	h := *p
	h.Halted = r.now().Truncate(time.Second)
	return r.commit(ctx, Holder{Principal: p.Principal}, Change{Act: "passkey.halt", Subject: id, Passkeys: []Passkey{h},
		Detail: map[string]string{"principal": p.Principal, "count": fmt.Sprint(p.Count)}}, false)
}

// UsePasskey notes a signature of a passkey and its count, durably.
func (r *Registry) UsePasskey(ctx context.Context, id string, count uint32) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	p := r.passkey(id)
	if p == nil {
		return fault.New(fault.NotFound, "not_found", "use passkey", fmt.Errorf("%.80q", id))
	}
	u := *p
	u.Count, u.LastUsed = count, r.now().Truncate(time.Second)
	if err := r.cfg.Storage.UsePasskey(ctx, id, count, u.LastUsed); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passkeys[string(u.Credential)] = &u
	return nil
}

// PasskeyOf returns the passkey of a credential, whoever asks.
func (r *Registry) PasskeyOf(credential []byte) (Passkey, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := r.passkeys[string(credential)]
	if p == nil {
		return Passkey{}, false
	}
	return *p, true
}

// Passkeys lists by's own passkeys, or with member.manage all, oldest first. by must hold
// token.manage or member.manage.
func (r *Registry) Passkeys(by Holder) ([]Passkey, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	held := r.permissionsLocked(by)
	all := held.Has(MemberManage)
	if !all && !held.Has(TokenManage) {
		return nil, denied(by, TokenManage)
	}
	out := []Passkey{}
	for _, p := range r.passkeys {
		if all || p.Principal == by.Principal {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b Passkey) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// HasPasskey reports whether a passkey is there and wasn't halted.
func (r *Registry) HasPasskey(id string) bool {
	p := r.passkey(id)
	return p != nil && p.Halted.IsZero()
}

// passkey returns a passkey by id, nil if there is none. It isn't changed.
func (r *Registry) passkey(id string) *Passkey {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.passkeys {
		if p.ID == id {
			return p
		}
	}
	return nil
}

// PasskeysOf returns the passkeys of a principal, whoever asks.
func (r *Registry) PasskeysOf(principal string) (out []Passkey) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.passkeys {
		if p.Principal == principal {
			out = append(out, *p)
		}
	}
	return out
}

package access

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"

	"palyra/internal/fault"
)

// Request describes a new token.
type Request struct {
	Name     string        // for people; at most 100 printable characters
	Scopes   Set           // a part of what the holder holds; empty holds nothing
	Lifetime time.Duration // more than 0, at most Config.Longest
	Passkey  string        // the one that its holder signed in with; "": none, for the journal
}

// Mint makes a token for by's own principal; there is no way to make one for another. by
// must hold token.manage and every scope. A token that was minted with another ends with it
// at the latest, and is revoked with it.
func (r *Registry) Mint(ctx context.Context, by Holder, q Request) (Secret, *Token, error) {
	const op = "mint token"
	if err := checkName(op, q.Name); err != nil {
		return Secret{}, nil, err
	}
	if err := r.checkLife(op, q.Lifetime); err != nil {
		return Secret{}, nil, err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	held := r.Permissions(by)
	if !held.Has(TokenManage) {
		return Secret{}, nil, denied(by, TokenManage)
	}
	if missing := q.Scopes &^ held; missing != 0 {
		return Secret{}, nil, exceeds(op, by, missing)
	}
	if err := r.room(op, by.Principal, r.cfg.Each); err != nil {
		return Secret{}, nil, err
	}
	t, s := r.newToken(by, q.Name, q.Scopes, q.Lifetime)
	if p := r.find(by.Token); p != nil {
		t.Expires = earlier(t.Expires, p.Expires)
	}
	if !t.Expires.After(t.Created) {
		return Secret{}, nil, fault.New(fault.Usage, "invalid_input", op, errors.New("the token that asks ends at once"))
	}
	detail := map[string]string{"principal": t.Principal, "scopes": t.Scopes.String(), "expires": t.Expires.Format(time.RFC3339)}
	if q.Passkey != "" {
		detail["passkey"] = q.Passkey
	}
	err := r.commit(ctx, by, Change{Act: "token.mint", Subject: t.ID, Tokens: []Token{t}, Detail: detail}, true)
	if err != nil {
		return Secret{}, nil, err
	}
	return s, &t, nil
}

func (r *Registry) checkLife(op string, life time.Duration) error {
	switch {
	case life < time.Second || life > MaxLifetime:
		return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("%v is not between a second and %v", life, MaxLifetime))
	case life > r.cfg.Longest:
		return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("a life of %v is longer than access.token_max_age, %v", life, r.cfg.Longest)).
			WithHint("ask for a shorter one and rotate it")
	}
	return nil
}

// Rotate makes a successor of one of by's own tokens, with the same name and scopes. It
// lives for life; 0 means as long as the old one did, within today's bound. The old token
// ends after overlap. A revoked, expired or already rotated token can't be rotated. by must
// still hold the scopes.
func (r *Registry) Rotate(ctx context.Context, by Holder, id string, life, overlap time.Duration) (Secret, *Token, error) {
	const op = "rotate token"
	if overlap < 0 || overlap > MaxOverlap {
		return Secret{}, nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("%v is not between 0 and %v", overlap, MaxOverlap))
	}
	if life != 0 {
		if err := r.checkLife(op, life); err != nil {
			return Secret{}, nil, err
		}
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	held := r.Permissions(by)
	if !held.Has(TokenManage) {
		return Secret{}, nil, denied(by, TokenManage)
	}
	old := r.find(id)
	if old == nil || old.Principal != by.Principal {
		return Secret{}, nil, noToken(op, id) // that of another is none of by's business
	}
	at := r.now()
	reason := ""
	switch {
	case !old.Revoked.IsZero():
		reason = "token_revoked"
	case r.Expired(old):
		reason = "token_expired"
	case old.Successor != "":
		reason = "token_revoked"
	}
	if reason != "" {
		return Secret{}, nil, fault.New(fault.Denied, reason, op, nil).WithHint("mint a new token")
	}
	if missing := old.Scopes &^ held; missing != 0 {
		return Secret{}, nil, exceeds(op, by, missing)
	}
	if err := r.room(op, by.Principal, math.MaxInt); err != nil {
		return Secret{}, nil, err
	}
	if life == 0 {
		life = min(old.Expires.Sub(old.Created), r.cfg.Longest)
	}
	t, s := r.newToken(by, old.Name, old.Scopes, life)
	for _, limit := range []string{by.Token, old.Parent} {
		// A token renews itself, and gives no other more time than it has.
		if p := r.find(limit); p != nil && p.ID != old.ID {
			t.Expires = earlier(t.Expires, p.Expires)
		}
	}
	if !t.Expires.After(t.Created) {
		return Secret{}, nil, fault.New(fault.Denied, "token_expired", op, nil).WithHint("mint a new token")
	}
	old.Successor = t.ID
	old.Expires = earlier(old.Expires, at.Add(overlap))
	if old.Expires.Unix() <= old.Created.Unix() { // a row expires after it begins
		old.Expires = old.Created.Add(time.Second)
	}
	err := r.commit(ctx, by, Change{Act: "token.rotate", Subject: id, Tokens: []Token{*old, t}, Detail: map[string]string{
		"successor": t.ID, "old_expires": old.Expires.Format(time.RFC3339), "expires": t.Expires.Format(time.RFC3339)}}, true)
	if err != nil {
		return Secret{}, nil, err
	}
	return s, &t, nil
}

// Revoke ends a token for good, and every token that was minted or rotated with it as the
// credential, and so on. by must be its holder with token.manage or that very token, or
// hold member.manage and everything that the other's role holds. Revoking twice is no
// error. It returns the number of ended tokens.
func (r *Registry) Revoke(ctx context.Context, by Holder, id string) (int, error) {
	const op = "revoke token"
	r.changing.Lock()
	defer r.changing.Unlock()
	held := r.Permissions(by)
	t := r.find(id)
	switch {
	case t == nil || t.Principal != by.Principal && !held.Has(MemberManage):
		return 0, noToken(op, id)
	case t.Principal == by.Principal && by.Token != id && !held.Has(TokenManage):
		return 0, denied(by, TokenManage)
	case t.Principal != by.Principal:
		if missing := r.Role(t.Principal).Permissions() &^ held; missing != 0 {
			return 0, exceeds(op, by, missing)
		}
	}
	if !t.Revoked.IsZero() {
		return 0, nil
	}
	ends := map[tokenID]bool{}
	root, err := parseTokenID(id)
	if err != nil {
		return 0, err
	}
	ends[root] = true
	gone := r.revoked(func(t *token) bool { // parents come before children
		ends[t.id] = ends[t.id] || ends[t.parent]
		return ends[t.id]
	})
	err = r.commit(ctx, by, Change{Act: "token.revoke", Subject: id, Tokens: gone, Detail: map[string]string{
		"principal": t.Principal, "count": fmt.Sprint(len(gone))}}, false)
	return len(gone), err
}

// Tokens lists by's own tokens, or with member.manage all tokens, in the order of their
// making: at most limit of them after the one with the id after ("": from the beginning).
// Expired and revoked ones are among them.
func (r *Registry) Tokens(by Holder, after string, limit int) ([]Token, error) {
	const op = "list tokens"
	r.mu.RLock()
	defer r.mu.RUnlock()
	held := r.permissionsLocked(by)
	all := held.Has(MemberManage)
	if !all && !held.Has(TokenManage) {
		return nil, denied(by, TokenManage)
	}
	from := 0
	if after != "" {
		id, err := parseTokenID(after)
		if err != nil {
			return nil, err
		}
		t := r.tokens[id]
		if t == nil || !all && t.principal != by.Principal {
			return nil, noToken(op, after)
		}
		from = t.place + 1
	}
	out := []Token{}
	for _, t := range r.order[from:] {
		if len(out) >= limit {
			break
		}
		if all || t.principal == by.Principal {
			out = append(out, t.view())
		}
	}
	return out, nil
}

// room returns fault.Unavailable "quota" if a principal has most valid tokens, or
// made Config.Each within a day.
func (r *Registry) room(op, principal string, most int) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	now := r.now().Unix()
	good, made := 0, 0
	for _, t := range r.order {
		if t.principal != principal {
			continue
		}
		if t.revoked == 0 && t.expires > now {
			good++
		}
		if t.created > now-int64(24*time.Hour/time.Second) {
			made++
		}
	}
	switch {
	case good >= most:
		return fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80q has %d tokens that are good", principal, good)).
			WithHint("revoke one, or give tokens a shorter life: palyra token ls")
	case made >= r.cfg.Each:
		return fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80q has made %d tokens within a day", principal, made)).
			WithHint("use those that there are, or wait")
	}
	return nil
}

// keepEnded is how long the registry knows an ended token: its holder learns why it no
// longer works, and lists have it. The journal has it for ever.
const keepEnded = 30 * 24 * time.Hour

// forgetMost bounds the tokens that one Forget removes.
const forgetMost = 64

// Forget forgets tokens that ended long ago, a few at a time. A token that minted or
// rotated another stays until that one is gone: revoking it ends the other. Call it now and
// then.
func (r *Registry) Forget(ctx context.Context) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	if len(r.unlogged) > 0 { // the journal does not have all of them
		return nil
	}
	before := r.cfg.Clock.Earliest().Add(-keepEnded).Unix()
	named := make(map[tokenID]bool)
	gone := make(map[tokenID]bool)
	var ids []string
	r.mu.RLock()
	for _, t := range r.order {
		named[t.parent] = true
	}
	for _, t := range r.order {
		end := t.expires
		if t.revoked != 0 {
			end = min(end, t.revoked)
		}
		if end < before && !named[t.id] && len(ids) < forgetMost {
			gone[t.id] = true
			ids = append(ids, t.id.String())
		}
	}
	r.mu.RUnlock()
	if len(ids) == 0 {
		return nil
	}
	if err := r.cfg.Storage.Forget(ctx, ids); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range gone {
		delete(r.tokens, id)
	}
	kept := make([]*token, 0, len(r.order)-len(gone))
	for _, t := range r.order {
		if !gone[t.id] {
			t.place = len(kept)
			kept = append(kept, t)
		}
	}
	r.order = kept
	return nil
}

func noToken(op, id string) error {
	return fault.New(fault.NotFound, "not_found", op, fmt.Errorf("%.80q", id)).WithHint(fault.Lists("token"))
}

// newToken makes a token for by. The caller bounds its life.
func (r *Registry) newToken(by Holder, name string, scopes Set, life time.Duration) (Token, Secret) {
	id, secret, s := newSecret()
	created := r.now().Truncate(time.Second)
	return Token{ID: id.String(), Principal: by.Principal, Name: name, Hash: r.cfg.Key.hash(id, secret), Scopes: scopes, Parent: by.Token,
		Created: created, Expires: created.Add(life.Truncate(time.Second))}, s
}

// find returns a token by id, nil if there is none.
func (r *Registry) find(id string) *Token {
	tid, err := parseTokenID(id)
	if err != nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.tokens[tid]
	if t == nil {
		return nil
	}
	v := t.view()
	return &v
}

// revoked returns, in their revoked form, the tokens that which chooses and that aren't
// revoked yet. which sees all tokens, in order.
func (r *Registry) revoked(which func(*token) bool) []Token {
	r.mu.RLock()
	defer r.mu.RUnlock()
	at := r.now().Truncate(time.Second)
	var out []Token
	for _, t := range r.order {
		if which(t) && t.revoked == 0 {
			v := t.view()
			v.Revoked = at
			out = append(out, v)
		}
	}
	return out
}

// view returns a copy for the outside. The caller holds Registry.mu.
func (t *token) view() Token {
	return Token{ID: t.id.String(), Principal: t.principal, Name: t.name, Hash: t.hash, Scopes: t.scopes, Parent: t.parent.String(),
		Successor: t.successor.String(), Created: timeOf(t.created), Expires: timeOf(t.expires), Revoked: timeOf(t.revoked), LastUsed: timeOf(t.used.Load())}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// checkName accepts names that a person can read on one line and a terminal shows as they
// are: printable characters without tricks of direction or width.
func checkName(op, s string) error {
	ok := utf8.ValidString(s) && utf8.RuneCountInString(s) <= maxName
	for _, c := range s {
		ok = ok && unicode.IsPrint(c)
	}
	if !ok {
		return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("a name has at most %d printable characters", maxName))
	}
	return nil
}

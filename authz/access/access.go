// Package access says who holds which permission: members with roles, API tokens that carry a
// part of their holder's permissions, and passkeys with which members sign in.
//
//	reg, err := access.Open(ctx, access.Config{Storage: st.Access(), Key: key, Record: journal})
//	h, err := reg.Authenticate(bearer)                  // a token was shown
//	h := access.Holder{Principal: "uid:1000"}           // the kernel said who sits at the socket
//	if err := reg.Allow(h, access.RunStart); err != nil // fault.Denied "permission_denied"
//
// # Contract
//
// The registry works out a holder's permissions anew at every use: those of the principal's
// role and, for a token, those of its scopes that are among them. A principal without
// membership, a token without scopes and the zero Holder hold nothing. No holder gives more
// than it holds, be it a role or a token's scope, and none changes a member who holds more.
// Once there was an owner, there always is one. A token is for the principal that minted it
// and for no other. A revoked token stays revoked. An expired token stays expired while the
// process lives, whatever the host's clock is set to, and after that too if a token was
// minted or used since.
//
// A change is durable and has its entry in the journal before any holder gains by it; a
// change that takes something away counts as soon as it is durable. A change that couldn't
// be journaled is journaled before the next one, or refuses it.
//
// Every error of Authenticate that a stranger can cause is the same "unauthenticated". Only a
// caller who knows the secret learns that a token is "token_expired" or "token_revoked".
//
// # What it does not protect against
//
// A stolen token: it works for everyone who has it, on any device and from any address. The
// package doesn't slow guessing down: 256 bits aren't guessed, and surfaces limit rates. A
// user who may write the state directory can add members; Config.Floor finds an older copy
// put in place of the registry, not an edited one.
//
// The format of a token: docs/formats/store.md.
package access

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"palyra/internal/clock"
	"palyra/internal/fault"
)

// Limits of tokens.
const (
	MaxLifetime = 366 * 24 * time.Hour
	MaxOverlap  = 7 * 24 * time.Hour
	maxName     = 100
)

// lastUseGrain is the precision of the time of last use.
const lastUseGrain = time.Minute

// Holder is the asking principal, as a surface authenticated it. It carries no authority:
// the Registry says what it may do. The zero Holder may do nothing.
type Holder struct {
	Principal string `json:"principal"`       // "uid:1000", "user:alice", …
	Token     string `json:"token,omitempty"` // id; "" for a peer on the socket
}

// Member is a principal with a role.
type Member struct {
	Principal string    `json:"principal"`
	Role      Role      `json:"role"`
	AddedBy   string    `json:"added_by"`
	Changed   time.Time `json:"changed"`
	Version   uint64    `json:"version"` // generation of the registry that changed it
}

// Token describes an API token without its secret, of which only a keyed hash is kept.
type Token struct {
	ID        string    `json:"id"` // "tok_…"
	Principal string    `json:"principal"`
	Name      string    `json:"name"` // for people
	Hash      [32]byte  `json:"-"`
	Scopes    Set       `json:"scopes"`
	Parent    string    `json:"parent"`    // the token that minted it, "" if none did
	Successor string    `json:"successor"` // what it was rotated into, "" if it was not
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	Revoked   time.Time `json:"revoked"`   // zero: it is not
	LastUsed  time.Time `json:"last_used"` // to a minute; zero: never
}

// Change is one transaction of the registry, and its entry in the journal.
type Change struct {
	Generation uint64 // that it makes; one more than before
	Time       time.Time
	Actor      string // principal, and the token it used: "uid:1000 tok_…"
	Act        string // "member.set", "token.mint", "passkey.add", …
	Subject    string // the principal, token or passkey that it is about
	Detail     map[string]string

	Members []Member // to set
	Removed []string // principals to remove
	Tokens  []Token  // to add or update

	Passkeys  []Passkey // to add or halt
	Forgotten []Passkey // to remove
}

// State is everything that a Storage keeps.
type State struct {
	Generation uint64
	Members    []Member
	Tokens     []Token // in the order in which they were added
	Passkeys   []Passkey
	Unlogged   []Change // without an entry in the journal, oldest first; effects left out
}

// Storage keeps the registry. hub/store has the one that lasts.
type Storage interface {
	// Load returns everything.
	Load(ctx context.Context) (*State, error)
	// Apply makes one change durable, all of it or nothing. A generation that
	// does not follow the current one is fault.Busy "version_conflict".
	Apply(ctx context.Context, c Change) error
	// Logged says that the change of a generation is in the journal at index.
	Logged(ctx context.Context, generation, index uint64) error
	// Touch records the last use of tokens.
	Touch(ctx context.Context, used map[string]time.Time) error
	// UsePasskey records a signature of a passkey and its count.
	UsePasskey(ctx context.Context, id string, count uint32, at time.Time) error
	// Forget removes tokens that ended and are no other's parent, all or none.
	Forget(ctx context.Context, ids []string) error
}

// Config says how to open a Registry.
type Config struct {
	Storage Storage
	// Key keys the hashes of secrets. With another key no token works.
	Key Key
	// Record writes a change into the journal and returns its index. nil: changes
	// wait in the storage for a Registry that has one.
	Record func(ctx context.Context, c Change) (index uint64, err error)
	// Floor is the highest generation that the journal knows; a registry of a
	// lower one is an older copy, fault.Integrity "rolled_back".
	Floor uint64
	// Each bounds the valid tokens of one principal, and those that it makes in a day.
	// Default 256.
	Each int
	// Longest bounds the life of a new token. Default MaxLifetime.
	Longest time.Duration
	// Clock is the host's, to end tokens by. Default: a new one.
	Clock *clock.Clock
}

// Registry is the open registry. Its methods may be called concurrently.
type Registry struct {
	cfg Config

	// The steps that check a shown secret; a test counts them. Immutable after Open.
	hash  func(k Key, id tokenID, secret [32]byte) [32]byte
	equal func(a, b [32]byte) bool

	changing sync.Mutex // held through a change
	unlogged []Change   // durable, not in the journal; guarded by changing

	mu         sync.RWMutex
	generation uint64             // guarded by mu
	members    map[string]*Member // guarded by mu; a Member is replaced, never mutated
	owners     int                // guarded by mu
	tokens     map[tokenID]*token // guarded by mu
	order      []*token           // as they were added; guarded by mu

	passkeys map[string]*Passkey // by credential; guarded by mu; a Passkey is replaced, never mutated

	usedMu sync.Mutex
	used   map[tokenID]int64 // unix seconds, since the last Flush; guarded by usedMu
}

// tokenID is the binary form of a token's id.
type tokenID [16]byte

// token is the form of a Token in memory: small, since there may be many. All but used is
// guarded by Registry.mu.
type token struct {
	id, parent, successor     tokenID
	principal, name           string
	hash                      [32]byte
	scopes                    Set
	place                     int // in order
	created, expires, revoked int64
	used                      atomic.Int64 // unix seconds
}

// Open loads the registry and journals changes that the journal lacks.
func Open(ctx context.Context, cfg Config) (*Registry, error) {
	st, err := cfg.Storage.Load(ctx)
	if err != nil {
		return nil, err
	}
	if st.Generation < cfg.Floor {
		return nil, fault.New(fault.Integrity, "rolled_back", "open access registry",
			fmt.Errorf("it is at generation %d and the journal knows of %d", st.Generation, cfg.Floor)).
			WithHint("an older copy of the store was put in place; restore the newest one")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.New()
	}
	if cfg.Each <= 0 {
		cfg.Each = 256
	}
	if cfg.Longest <= 0 {
		cfg.Longest = MaxLifetime
	}
	for _, t := range st.Tokens {
		if t.Revoked.IsZero() {
			cfg.Clock.AtLeast(t.Created)
			cfg.Clock.AtLeast(t.LastUsed)
		}
	}
	r := &Registry{cfg: cfg, hash: Key.hash, equal: equal, unlogged: st.Unlogged, members: make(map[string]*Member, len(st.Members)),
		tokens: make(map[tokenID]*token, len(st.Tokens)), used: make(map[tokenID]int64), passkeys: make(map[string]*Passkey, len(st.Passkeys))}
	if err := r.apply(Change{Generation: st.Generation, Members: st.Members, Tokens: st.Tokens, Passkeys: st.Passkeys}); err != nil {
		return nil, err
	}
	return r, r.log(ctx)
}

// apply makes a durable change count.
func (r *Registry) apply(c Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range c.Removed {
		if m := r.members[p]; m != nil && m.Role == Owner {
			r.owners--
		}
		delete(r.members, p)
	}
	for _, m := range c.Members {
		if m.Role.Permissions() == 0 {
			return fault.New(fault.Integrity, "store_corrupt", "read members", fmt.Errorf("%.20q", m.Role))
		}
		if old := r.members[m.Principal]; old != nil && old.Role == Owner {
			r.owners--
		}
		if m.Role == Owner {
			r.owners++
		}
		r.members[m.Principal] = &m
	}
	for _, t := range c.Tokens {
		id, err := parseTokenID(t.ID)
		if err != nil {
			return err
		}
		n := r.tokens[id]
		if n == nil {
			n = &token{id: id, principal: t.Principal, name: t.Name, hash: t.Hash, scopes: t.Scopes, created: unix(t.Created), place: len(r.order)}
			if m := r.members[t.Principal]; m != nil {
				n.principal = m.Principal // one string for all tokens of a member
			}
			n.parent, _ = parseTokenID(t.Parent) // "" is none
			n.used.Store(unix(t.LastUsed))
			r.tokens[id] = n
			r.order = append(r.order, n)
		}
		n.successor, _ = parseTokenID(t.Successor)
		n.expires, n.revoked = unix(t.Expires), unix(t.Revoked)
	}
	for _, p := range c.Forgotten {
		delete(r.passkeys, string(p.Credential))
	}
	for _, p := range c.Passkeys {
		r.passkeys[string(p.Credential)] = &p
	}
	r.generation = c.Generation
	return nil
}

// commit makes c the next change. The caller holds r.changing, and c's Time, Generation and
// Actor are set here. widens says that some holder holds more after it: then it counts only
// once the journal has it.
func (r *Registry) commit(ctx context.Context, by Holder, c Change, widens bool) error {
	if err := r.log(ctx); err != nil {
		return err
	}
	r.mu.RLock()
	c.Generation = r.generation + 1
	r.mu.RUnlock()
	c.Time = r.cfg.Clock.Now()
	c.Actor = strings.TrimSpace(by.Principal + " " + by.Token)
	for i := range c.Members {
		c.Members[i].Version, c.Members[i].Changed, c.Members[i].AddedBy = c.Generation, c.Time, by.Principal
	}
	if err := r.cfg.Storage.Apply(ctx, c); err != nil {
		return err
	}
	if !widens {
		if err := r.apply(c); err != nil {
			return err
		}
	}
	r.unlogged = append(r.unlogged, c)
	// It is durable now. Even if the caller gives up, the entry is still owed.
	return r.log(context.WithoutCancel(ctx))
}

// log journals the changes that wait for it, in order, and makes them count.
func (r *Registry) log(ctx context.Context) error {
	for r.cfg.Record != nil && len(r.unlogged) > 0 {
		c := r.unlogged[0]
		index, err := r.cfg.Record(ctx, c)
		if err != nil {
			return err
		}
		if err := r.cfg.Storage.Logged(ctx, c.Generation, index); err != nil {
			return err
		}
		if err := r.count(c); err != nil {
			return err
		}
		r.unlogged = r.unlogged[1:]
	}
	if r.cfg.Record == nil {
		for _, c := range r.unlogged {
			if err := r.count(c); err != nil {
				return err
			}
		}
		r.unlogged = nil // the storage remembers
	}
	return nil
}

// count applies a change that does not count yet.
func (r *Registry) count(c Change) error {
	r.mu.RLock()
	have := r.generation
	r.mu.RUnlock()
	if c.Generation <= have {
		return nil
	}
	return r.apply(c)
}

// Authenticate returns the holder of a token. It takes the same time for every token that
// isn't ours.
func (r *Registry) Authenticate(text string) (Holder, error) {
	id, secret, err := parse(text)
	if err != nil {
		return Holder{}, err
	}
	hash := r.hash(r.cfg.Key, id, secret)
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.tokens[id]
	var want [32]byte
	if t != nil {
		want = t.hash
	}
	if !r.equal(hash, want) || t == nil {
		return Holder{}, fault.New(fault.Denied, "unauthenticated", "authenticate", errBadToken)
	}
	switch at := r.now().Unix(); {
	case t.revoked != 0:
		return Holder{}, fault.New(fault.Denied, "token_revoked", "authenticate", nil)
	case at >= t.expires || at < t.created:
		// Made by a clock that was ahead, it would live too long.
		return Holder{}, fault.New(fault.Denied, "token_expired", "authenticate", nil).WithHint("mint a new token")
	case at-t.used.Load() >= int64(lastUseGrain/time.Second):
		t.used.Store(at)
		r.usedMu.Lock()
		r.used[id] = at
		r.usedMu.Unlock()
	}
	return Holder{Principal: t.principal, Token: id.String()}, nil
}

var errBadToken = errors.New("no such token")

// Permissions returns what h may do now.
func (r *Registry) Permissions(h Holder) Set {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.permissionsLocked(h)
}

func (r *Registry) permissionsLocked(h Holder) Set {
	m := r.members[h.Principal]
	if m == nil {
		return 0
	}
	set := m.Role.Permissions()
	if h.Token == "" {
		return set
	}
	id, err := parseTokenID(h.Token)
	if err != nil {
		return 0
	}
	t := r.tokens[id]
	if t == nil || t.principal != h.Principal || t.revoked != 0 {
		return 0
	}
	if at := r.now().Unix(); at >= t.expires || at < t.created {
		return 0
	}
	return set & t.scopes
}

// Stands returns what h may do for work that it began with p, if that may go on: the role of its
// principal and the scopes of its token still have p, and neither that token nor its successors
// have been revoked. An expired token doesn't end the work that it began: rotating isn't revoking.
func (r *Registry) Stands(h Holder, p Permission) (Set, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	m := r.members[h.Principal]
	if m == nil {
		return 0, fault.New(fault.Denied, "not_a_member", fmt.Sprintf("find role of %.80q", h.Principal), nil).
			WithHint("an owner can make it a member: palyra members set")
	}
	set := m.Role.Permissions()
	if h.Token != "" {
		id, err := parseTokenID(h.Token)
		t := r.tokens[id]
		if err != nil || t == nil || t.principal != h.Principal {
			return 0, denied(h, p)
		}
		set &= t.scopes
		for ; t != nil; t = r.tokens[t.successor] {
			if t.revoked != 0 && set.Has(p) {
				return 0, fault.New(fault.Denied, "token_revoked", "check permission", nil).WithHint("mint a new token")
			}
		}
	}
	if !set.Has(p) {
		return 0, denied(h, p)
	}
	return set, nil
}

// Allow returns nil if h holds p now, and fault.Denied "permission_denied" otherwise.
func (r *Registry) Allow(h Holder, p Permission) error {
	if r.Permissions(h).Has(p) {
		return nil
	}
	return denied(h, p)
}

func denied(h Holder, p Permission) error {
	return fault.New(fault.Denied, "permission_denied", "check permission", fmt.Errorf("%.80q does not hold %s", h.Principal, p)).
		WithHint("ask an owner for a role, or a token with this scope")
}

// Role returns the role of a principal, "" for none.
func (r *Registry) Role(principal string) Role {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if m := r.members[principal]; m != nil {
		return m.Role
	}
	return ""
}

// Generation counts the changes of the registry.
func (r *Registry) Generation() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.generation
}

// Flush makes the times of last use durable. Call it now and then, and at the end.
func (r *Registry) Flush(ctx context.Context) error {
	r.usedMu.Lock()
	used := r.used
	r.used = make(map[tokenID]int64)
	r.usedMu.Unlock()
	if len(used) == 0 {
		return nil
	}
	times := make(map[string]time.Time, len(used))
	for id, at := range used {
		times[id.String()] = timeOf(at)
	}
	err := r.cfg.Storage.Touch(ctx, times)
	if err != nil { // keep them for the next time
		r.usedMu.Lock()
		for id, at := range used {
			r.used[id] = max(at, r.used[id])
		}
		r.usedMu.Unlock()
	}
	return err
}

// CheckPrincipal returns fault.Usage "invalid_input" unless p is a principal in
// its one spelling: "uid:" and a decimal number, or "user:", "service:",
// "device:" or "agent:" and a name of lower-case letters, digits and "._-@",
// which begins with a letter or digit. Two spellings of one principal would be
// two members.
func CheckPrincipal(p string) error {
	kind, name, ok := strings.Cut(p, ":")
	switch kind {
	case "uid":
		n, err := strconv.ParseUint(name, 10, 32)
		ok = ok && err == nil && strconv.FormatUint(n, 10) == name
	case "user", "service", "device", "agent":
		ok = ok && name != "" && len(name) <= maxName && !strings.ContainsAny(name[:1], "._-@")
		for _, c := range []byte(name) {
			ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("._-@", c) >= 0)
		}
	default:
		ok = false
	}
	if !ok {
		return fault.New(fault.Usage, "invalid_input", "parse principal", fmt.Errorf("%.80q", p)).
			WithHint(`principals look like "uid:1000", "user:alice" or "service:ci"`)
	}
	return nil
}

// now returns the time by which tokens begin and end. A clock that goes back prolongs no token,
// and a process that begins with a clock behind a token's last use brings none back.
func (r *Registry) now() time.Time { return r.cfg.Clock.Latest() }

// Expired reports whether a token's time is over.
func (r *Registry) Expired(t *Token) bool {
	at := r.now()
	return !at.Before(t.Expires) || at.Before(t.Created)
}

// Times are kept to the second in memory.

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func timeOf(s int64) time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(s, 0).UTC()
}

package access

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/fault"
)

// memory is a Storage in memory. It keeps copies: what it was given does not
// change under it.
type memory struct {
	mu      sync.Mutex
	state   State
	members map[string]Member
	fail    error // of the next Apply
	logged  map[uint64]uint64
}

func newMemory() *memory {
	return &memory{members: make(map[string]Member), logged: make(map[uint64]uint64)}
}

var _ Storage = (*memory)(nil)

func (m *memory) Load(context.Context) (*State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	s.Members = slices.Collect(maps.Values(m.members))
	s.Tokens = slices.Clone(s.Tokens)
	s.Unlogged = slices.Clone(s.Unlogged)
	s.Passkeys = slices.Clone(s.Passkeys)
	return &s, nil
}

func (m *memory) Apply(_ context.Context, c Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail; err != nil {
		m.fail = nil
		return err
	}
	if c.Generation != m.state.Generation+1 {
		return fault.New(fault.Busy, "version_conflict", "apply", nil)
	}
	m.state.Generation++
	for _, p := range c.Removed {
		delete(m.members, p)
	}
	for _, x := range c.Members {
		m.members[x.Principal] = x
	}
	for _, t := range c.Tokens {
		i := slices.IndexFunc(m.state.Tokens, func(o Token) bool { return o.ID == t.ID })
		if i < 0 {
			m.state.Tokens = append(m.state.Tokens, t)
		} else {
			m.state.Tokens[i] = t
		}
	}
	for _, p := range c.Forgotten {
		m.state.Passkeys = slices.DeleteFunc(m.state.Passkeys, func(o Passkey) bool { return o.ID == p.ID })
	}
	for _, p := range c.Passkeys {
		if i := slices.IndexFunc(m.state.Passkeys, func(o Passkey) bool { return o.ID == p.ID }); i >= 0 {
			m.state.Passkeys[i] = p
		} else {
			m.state.Passkeys = append(m.state.Passkeys, p)
		}
	}
	m.state.Unlogged = append(m.state.Unlogged, Change{Generation: c.Generation, Act: c.Act, Subject: c.Subject, Actor: c.Actor, Detail: c.Detail})
	return nil
}

func (m *memory) Logged(_ context.Context, generation, index uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logged[generation] = index
	m.state.Unlogged = slices.DeleteFunc(m.state.Unlogged, func(c Change) bool { return c.Generation == generation })
	return nil
}

func (m *memory) Forget(_ context.Context, ids []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Tokens = slices.DeleteFunc(m.state.Tokens, func(t Token) bool { return slices.Contains(ids, t.ID) })
	return nil
}

func (m *memory) UsePasskey(_ context.Context, id string, count uint32, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail; err != nil {
		m.fail = nil
		return err
	}
	for i := range m.state.Passkeys {
		if p := &m.state.Passkeys[i]; p.ID == id {
			p.Count, p.LastUsed = count, at
		}
	}
	return nil
}

func (m *memory) Touch(_ context.Context, used map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail; err != nil {
		m.fail = nil
		return err
	}
	for i := range m.state.Tokens {
		if at, ok := used[m.state.Tokens[i].ID]; ok {
			m.state.Tokens[i].LastUsed = at
		}
	}
	return nil
}

// office is a registry with an owner, an admin and an operator, and the journal
// that it writes.
type office struct {
	*Registry
	mem     *memory
	journal []Change
	broken  error // what the journal answers
}

var (
	owner    = Holder{Principal: "uid:0"}
	admin    = Holder{Principal: "user:ada"}
	operator = Holder{Principal: "user:oli"}
	nobody   = Holder{Principal: "user:nobody"}
)

func newOffice(t testing.TB) *office {
	t.Helper()
	o := &office{mem: newMemory()}
	o.reopen(t)
	ctx := context.Background()
	must(t, o.Bootstrap(ctx, owner.Principal))
	for p, r := range map[string]Role{admin.Principal: Admin, operator.Principal: Operator} {
		if _, err := o.SetMember(ctx, owner, p, r, 0); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// reopen is what a restart does.
func (o *office) reopen(t testing.TB) {
	t.Helper()
	r, err := Open(context.Background(), Config{Storage: o.mem, Key: Key{b: [32]byte{1}}, Record: o.record})
	if err != nil {
		t.Fatal(err)
	}
	o.Registry = r
}

func (o *office) record(_ context.Context, c Change) (uint64, error) {
	if o.broken != nil {
		return 0, o.broken
	}
	o.journal = append(o.journal, c)
	return uint64(len(o.journal)), nil
}

// mint makes a token or fails the test.
func (o *office) mint(t testing.TB, by Holder, life time.Duration, scopes ...Permission) (string, Holder) {
	t.Helper()
	var set Set
	for _, p := range scopes {
		set |= bit(p)
	}
	s, tok, err := o.Mint(context.Background(), by, Request{Name: "t", Scopes: set, Lifetime: life})
	if err != nil {
		t.Fatal(err)
	}
	return s.Reveal(), Holder{Principal: tok.Principal, Token: tok.ID}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, err error, k fault.Kind, reason string) { // and behind ": " a part of the text
	t.Helper()
	reason, text, _ := strings.Cut(reason, ": ")
	if fault.KindOf(err) != k || fault.ReasonOf(err) != reason || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%v (%v, %q), want %v, %q: %q", err, fault.KindOf(err), fault.ReasonOf(err), k, reason, text)
	}
}

// version is what SetMember and RemoveMember expect for a principal.
func (o *office) version(p string) uint64 {
	for _, m := range o.Members(owner) {
		if m.Principal == p {
			return m.Version
		}
	}
	return 0
}

func TestRoles(t *testing.T) {
	if all := Owner.Permissions(); all != All() || len(all.List()) != 19 {
		t.Errorf("an owner holds %s", all)
	}
	for _, c := range []struct{ lower, higher Role }{{"", Operator}, {Operator, Admin}, {Admin, Owner}} {
		if l, h := c.lower.Permissions(), c.higher.Permissions(); !l.Within(h) || h.Within(l) {
			t.Errorf("%q holds %s, and %q %s", c.lower, l, c.higher, h)
		}
	}
	if s := Role("root").Permissions() | Role("").Permissions() | Role("Owner").Permissions(); s != 0 {
		t.Errorf("what is no role holds %s", s)
	}
	for _, p := range []Permission{TrustOperate, BackupManage} {
		if Admin.Permissions().Has(p) {
			t.Errorf("an admin holds %s", p)
		}
	}
	if Set(0).Has("") || All().Has("no.such") {
		t.Error("an unknown permission is held")
	}
	set, err := ParseSet(strings.Fields(All().String()))
	if err != nil || set != All() {
		t.Errorf("%s, %v", set, err)
	}
	if set, err := ParseSet(nil); set != 0 || err != nil {
		t.Errorf("no scopes are %s, %v", set, err)
	}
	_, err = ParseSet([]string{"run.start", "*"})
	wants(t, err, fault.Usage, "invalid_input")
}

func TestAllow(t *testing.T) {
	o := newOffice(t)
	_, weak := o.mint(t, owner, time.Hour, JournalRead, TokenManage)
	_, none := o.mint(t, owner, time.Hour)
	for _, c := range []struct {
		name string
		h    Holder
		p    Permission
		want bool
	}{
		{"owner", owner, TrustOperate, true},
		{"admin", admin, PolicyManage, true},
		{"admin beyond", admin, TrustOperate, false},
		{"operator", operator, RunStart, true},
		{"operator beyond", operator, PolicyManage, false},
		{"no member", nobody, SessionRead, false},
		{"nobody at all", Holder{}, SessionRead, false},
		{"scope", weak, JournalRead, true},
		{"outside of scope", weak, SessionRead, false},
		{"no scopes", none, SessionRead, false},
		{"another's token", Holder{Principal: admin.Principal, Token: weak.Token}, JournalRead, false},
		{"no such token", Holder{Principal: owner.Principal, Token: "tok_00000000000000000000000000000001"}, JournalRead, false},
		{"no token at all", Holder{Principal: owner.Principal, Token: "x"}, JournalRead, false},
		{"no such permission", owner, "everything", false},
	} {
		err := o.Allow(c.h, c.p)
		if (err == nil) != c.want {
			t.Errorf("%s: %s for %+v: %v", c.name, c.p, c.h, err)
		}
		if err != nil {
			wants(t, err, fault.Denied, "permission_denied")
		}
	}
}

func TestAuthenticate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		text, h := o.mint(t, operator, time.Hour, RunStart)
		for range 2 { // also after a restart
			got, err := o.Authenticate(text)
			if err != nil || got != h {
				t.Errorf("%+v, %v, want %+v", got, err, h)
			}
			must(t, o.Flush(context.Background()))
			o.reopen(t)
		}
		stranger := &office{mem: newMemory()}
		stranger.reopen(t)
		must(t, stranger.Bootstrap(context.Background(), owner.Principal))
		foreign, _ := stranger.mint(t, owner, time.Hour, RunStart)
		id, secret, err := parse(text)
		must(t, err)
		secret[0]++
		for _, bad := range []string{"", "palyra", text[:len(text)-1], text + "x", strings.ToUpper(text), foreign, format(id, secret)} {
			_, err := o.Authenticate(bad)
			wants(t, err, fault.Denied, "unauthenticated")
			if bad != "" && strings.Contains(err.Error(), bad) {
				t.Errorf("the error repeats what was shown: %v", err)
			}
		}
		pass(time.Hour)
		_, err = o.Authenticate(text)
		wants(t, err, fault.Denied, "token_expired")
		wants(t, o.Allow(h, RunStart), fault.Denied, "permission_denied")
	})
}

func TestLastUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		text, h := o.mint(t, operator, 10*time.Hour, RunStart)
		last := func() time.Time { return o.find(h.Token).LastUsed }
		if !last().IsZero() {
			t.Errorf("used at %v before it was", last())
		}
		use := func() {
			if _, err := o.Authenticate(text); err != nil {
				t.Error(err)
			}
		}
		use()
		first := last()
		pass(lastUseGrain - time.Second)
		use()
		if last() != first || first.IsZero() {
			t.Errorf("used at %v, then %v: it is kept to a minute", first, last())
		}
		pass(time.Second)
		use()
		if last() == first {
			t.Error("a minute later it has not moved")
		}
		o.mem.fail = errors.New("disk")
		if err := o.Flush(context.Background()); err == nil {
			t.Error("the storage failed and Flush did not")
		}
		want := last()
		must(t, o.Flush(context.Background()))
		o.reopen(t)
		if last() != want {
			t.Errorf("after a restart %v, want %v", last(), want)
		}
	})
}

// TestConcurrent is for the race detector, and holds the owner rule under load.
func TestConcurrent(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	text, _ := o.mint(t, operator, time.Hour, SessionRead)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := o.Authenticate(text); err != nil {
					t.Error(err)
				}
				o.Members(owner)
				switch i {
				case 0:
					_, _, _ = o.Mint(ctx, owner, Request{Lifetime: time.Hour})
				case 1, 2: // both owners try to remove each other and themselves
					other := []string{"uid:0", "uid:1"}[i-1]
					_, _ = o.SetMember(ctx, owner, "uid:1", Owner, o.version("uid:1"))
					_ = o.RemoveMember(ctx, Holder{Principal: "uid:1"}, other, o.version(other))
					_ = o.RemoveMember(ctx, owner, other, o.version(other))
				case 3:
					_ = o.Flush(ctx)
				}
			}
		})
	}
	wg.Wait()
	o.mu.RLock()
	defer o.mu.RUnlock()
	n := 0
	for _, m := range o.members {
		if m.Role == Owner {
			n++
		}
	}
	if n < 1 || n != o.owners {
		t.Errorf("%d owners, counted %d", n, o.owners)
	}
}

func TestCheckPrincipal(t *testing.T) {
	for _, p := range []string{"uid:0", "uid:4294967295", "user:a", "service:ci.build-1@host_x", "device:9f"} {
		if err := CheckPrincipal(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"", "uid:", "uid:00", "uid:+1", "uid: 1", "uid:4294967296", "uid:-1", "user:", "user:Ada", "user:.a", "user:a b",
		"user:é", "user:a\n", "root", "owner:a", "user", ":a", "USER:a", "user:" + strings.Repeat("a", 101)} {
		wants(t, CheckPrincipal(p), fault.Usage, "invalid_input")
	}
}

// pass lets time go by in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// TestStands: who may begin nothing more, because a time is over, has what was
// begun all the same; who lost the right has not.
func TestStands(t *testing.T) {
	o, ctx := newOffice(t), t.Context()
	stands := func(h Holder, reason string) {
		t.Helper()
		_, err := o.Stands(h, RunStart)
		if reason == "" {
			must(t, err)
			return
		}
		wants(t, err, fault.Denied, reason)
	}
	_, begun := o.mint(t, operator, time.Hour, RunStart)
	_, other := o.mint(t, operator, time.Hour, SessionRead)
	stands(operator, "")
	stands(begun, "")
	stands(other, "permission_denied")
	stands(nobody, "not_a_member")
	stands(Holder{Principal: admin.Principal, Token: begun.Token}, "permission_denied")
	stands(Holder{Principal: operator.Principal, Token: "tok_"}, "permission_denied")
	_, next, err := o.Rotate(ctx, operator, begun.Token, 0, 0) // the old one is over
	must(t, err)
	stands(begun, "")
	_, err = o.Revoke(ctx, operator, next.ID)
	must(t, err)
	stands(begun, "token_revoked")
	must(t, o.RemoveMember(ctx, owner, operator.Principal, o.version(operator.Principal)))
	stands(operator, "not_a_member")
	stands(begun, "not_a_member")
}

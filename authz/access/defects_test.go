package access

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/fault"
)

// The known defects of the original that issue 5 wants ruled out, and others of
// their kind.

// TestAdminCannotBecomeOwner: a member can't give a role that holds more than they do,
// neither to themselves nor to a second principal that would return the favour.
func TestAdminCannotBecomeOwner(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	set := func(by Holder, p string, r Role) error {
		_, err := o.SetMember(ctx, by, p, r, o.version(p))
		return err
	}
	wants(t, set(admin, admin.Principal, Owner), fault.Denied, "permission_denied: does not hold")
	wants(t, set(admin, "user:accomplice", Owner), fault.Denied, "permission_denied: does not hold")
	wants(t, set(operator, operator.Principal, Admin), fault.Denied, "permission_denied")
	wants(t, set(nobody, nobody.Principal, Operator), fault.Denied, "permission_denied")
	wants(t, set(Holder{}, nobody.Principal, Operator), fault.Denied, "permission_denied")
	// Nor does pulling another member down raise them.
	wants(t, set(admin, owner.Principal, Operator), fault.Denied, "permission_denied: does not hold")
	wants(t, o.RemoveMember(ctx, admin, owner.Principal, o.version(owner.Principal)), fault.Denied, "permission_denied: does not hold")
	wants(t, o.Bootstrap(ctx, admin.Principal), fault.Denied, "permission_denied: there are members")
	// They may manage their equals and below.
	must(t, set(admin, "user:equal", Admin))
	must(t, set(admin, "user:equal", Operator))
	must(t, o.RemoveMember(ctx, admin, "user:equal", o.version("user:equal")))
	if r := o.Role(admin.Principal); r != Admin {
		t.Errorf("after all that the admin is %q", r)
	}
}

// TestTokenLimitsMembership: an owner's token gives away no more than its scopes.
func TestTokenLimitsMembership(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	_, h := o.mint(t, owner, time.Hour, MemberManage, SessionRead)
	_, err := o.SetMember(ctx, h, "user:new", Operator, 0)
	wants(t, err, fault.Denied, "permission_denied: does not hold")
	wants(t, o.RemoveMember(ctx, h, operator.Principal, o.version(operator.Principal)), fault.Denied, "permission_denied: does not hold")
	_, h = o.mint(t, owner, time.Hour, append(Operator.Permissions().List(), MemberManage)...)
	_, err = o.SetMember(ctx, h, "user:new", Operator, 0)
	must(t, err)
}

// TestMintIsForOneself: a token is bound to the principal that minted it, and
// there is nothing in a request that could say otherwise.
func TestMintIsForOneself(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	text, _ := o.mint(t, admin, time.Hour, SessionRead)
	h, err := o.Authenticate(text)
	must(t, err)
	if h.Principal != admin.Principal {
		t.Errorf("the admin's token speaks for %s", h.Principal)
	}
	// A holder put together from one's own token and another's name holds nothing.
	_, _, err = o.Mint(ctx, Holder{Principal: owner.Principal, Token: h.Token}, Request{Lifetime: time.Hour})
	wants(t, err, fault.Denied, "permission_denied")
	_, _, err = o.Mint(ctx, operator, Request{Scopes: bit(PolicyManage), Lifetime: time.Hour})
	wants(t, err, fault.Denied, "permission_denied: does not hold")
	_, _, err = o.Mint(ctx, nobody, Request{Lifetime: time.Hour})
	wants(t, err, fault.Denied, "permission_denied")
	// Rotating another's token would hand its successor over.
	_, theirs := o.mint(t, operator, time.Hour, SessionRead)
	_, _, err = o.Rotate(ctx, owner, theirs.Token, 0, 0)
	wants(t, err, fault.NotFound, "not_found")
}

// TestTokenMintsNoMore: what is minted with a token holds no more, lives no
// longer and ends with it.
func TestTokenMintsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		ctx := context.Background()
		_, parent := o.mint(t, owner, time.Hour, TokenManage, SessionRead)
		_, _, err := o.Mint(ctx, parent, Request{Scopes: bit(RunStart), Lifetime: time.Minute})
		wants(t, err, fault.Denied, "permission_denied: does not hold")
		_, child := o.mint(t, parent, 24*time.Hour, TokenManage, SessionRead)
		if c := o.find(child.Token); !c.Expires.Equal(o.find(parent.Token).Expires) || c.Parent != parent.Token {
			t.Errorf("the child: %+v", c)
		}
		// Nor does it get there by rotating itself.
		pass(30 * time.Minute)
		_, next, err := o.Rotate(ctx, child, child.Token, 0, 0)
		must(t, err)
		if next.Expires.After(o.find(parent.Token).Expires) {
			t.Errorf("rotated, the child ends at %v, after its parent", next.Expires)
		}
		n, err := o.Revoke(ctx, owner, parent.Token)
		if err != nil || n != 3 {
			t.Errorf("revoked %d, %v: want parent, child and grandchild", n, err)
		}
		wants(t, o.Allow(Holder{Principal: owner.Principal, Token: next.ID}, SessionRead), fault.Denied, "permission_denied")
	})
}

// TestRevokedForGood: there is no way back for a revoked token, and none for an
// expired or rotated one either.
func TestRevokedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		ctx := context.Background()
		text, h := o.mint(t, operator, time.Hour, TokenManage, SessionRead)
		_, err := o.Revoke(ctx, operator, h.Token)
		must(t, err)
		for range 2 { // also after a restart
			_, err = o.Authenticate(text)
			wants(t, err, fault.Denied, "token_revoked")
			_, _, err = o.Rotate(ctx, operator, h.Token, 0, time.Hour)
			wants(t, err, fault.Denied, "token_revoked")
			_, _, err = o.Rotate(ctx, h, h.Token, 0, time.Hour)
			wants(t, err, fault.Denied, "permission_denied")
			n, err := o.Revoke(ctx, operator, h.Token)
			if n != 0 || err != nil {
				t.Errorf("revoked again: %d, %v", n, err)
			}
			o.reopen(t)
		}
		_, h = o.mint(t, operator, time.Minute, SessionRead)
		pass(time.Minute)
		_, _, err = o.Rotate(ctx, operator, h.Token, 0, time.Hour)
		wants(t, err, fault.Denied, "token_expired")
	})
}

func TestRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		ctx := context.Background()
		text, h := o.mint(t, operator, 10*time.Hour, TokenManage, SessionRead)
		pass(5 * time.Hour)
		s, next, err := o.Rotate(ctx, operator, h.Token, 0, time.Hour)
		must(t, err)
		if next.Scopes != o.find(h.Token).Scopes || next.Principal != operator.Principal || next.Expires.Sub(next.Created) != 10*time.Hour {
			t.Errorf("the successor: %+v", next)
		}
		_, _, err = o.Rotate(ctx, operator, h.Token, 0, time.Hour)
		wants(t, err, fault.Denied, "token_revoked")
		for _, x := range []string{text, s.Reveal()} {
			if _, err := o.Authenticate(x); err != nil {
				t.Errorf("during the overlap: %v", err)
			}
		}
		pass(time.Hour)
		_, err = o.Authenticate(text)
		wants(t, err, fault.Denied, "token_expired")
		if _, err := o.Authenticate(s.Reveal()); err != nil {
			t.Error(err)
		}
		// At once: rotated in the second in which it was minted, without overlap.
		text, h = o.mint(t, operator, time.Hour, SessionRead)
		_, _, err = o.Rotate(ctx, operator, h.Token, 0, 0)
		must(t, err)
		pass(time.Second)
		_, err = o.Authenticate(text)
		wants(t, err, fault.Denied, "token_expired")
		_, third, err := o.Rotate(ctx, operator, next.ID, time.Minute, 0)
		must(t, err)
		if third.Expires.Sub(third.Created) != time.Minute {
			t.Errorf("a successor for a minute: %+v", third)
		}
		next = third
		for _, life := range []time.Duration{-1, time.Millisecond, MaxLifetime + 1} {
			_, _, err = o.Rotate(ctx, operator, next.ID, life, 0)
			wants(t, err, fault.Usage, "invalid_input")
		}
		_, _, err = o.Rotate(ctx, operator, next.ID, 0, -1)
		wants(t, err, fault.Usage, "invalid_input")
	})
}

// TestScopelessStaysSo: a token without scopes holds nothing, and no road leads
// from there to more.
func TestScopelessStaysSo(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	text, h := o.mint(t, owner, time.Hour)
	got, err := o.Authenticate(text)
	must(t, err)
	if s := o.Permissions(got); s != 0 {
		t.Errorf("it holds %s", s)
	}
	_, _, err = o.Mint(ctx, got, Request{Scopes: bit(SessionRead), Lifetime: time.Minute})
	wants(t, err, fault.Denied, "permission_denied")
	s, next, err := o.Rotate(ctx, owner, h.Token, 0, 0)
	must(t, err)
	if next.Scopes != 0 {
		t.Errorf("rotated it holds %s", next.Scopes)
	}
	o.reopen(t)
	got, err = o.Authenticate(s.Reveal())
	must(t, err)
	if s := o.Permissions(got); s != 0 {
		t.Errorf("after a restart it holds %s", s)
	}
}

// TestLastOwner: there is one member per principal, so the last owner is
// counted right, and stays.
func TestLastOwner(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	for range 3 { // the same principal again and again is one owner
		_, err := o.SetMember(ctx, owner, owner.Principal, Owner, o.version(owner.Principal))
		must(t, err)
	}
	for _, spelling := range []string{"uid:00", "uid:+0", " uid:0", "uid:0 ", "UID:0"} {
		_, err := o.SetMember(ctx, owner, spelling, Owner, 0)
		wants(t, err, fault.Usage, "invalid_input")
	}
	if o.owners != 1 {
		t.Errorf("%d owners", o.owners)
	}
	last := func() {
		t.Helper()
		wants(t, o.RemoveMember(ctx, owner, owner.Principal, o.version(owner.Principal)), fault.Denied, "permission_denied: no owner would be left")
		_, err := o.SetMember(ctx, owner, owner.Principal, Admin, o.version(owner.Principal))
		wants(t, err, fault.Denied, "permission_denied: no owner would be left")
	}
	last()
	o.reopen(t)
	last()
	_, err := o.SetMember(ctx, owner, "uid:1", Owner, 0)
	must(t, err)
	must(t, o.RemoveMember(ctx, owner, "uid:1", o.version("uid:1")))
	last()
	_, err = o.SetMember(ctx, owner, "uid:1", Owner, 0)
	must(t, err)
	_, err = o.SetMember(ctx, owner, owner.Principal, Operator, o.version(owner.Principal))
	must(t, err)
	if o.owners != 1 || o.Role("uid:1") != Owner {
		t.Errorf("%d owners", o.owners)
	}
}

// TestRemovalRevokes: who comes back does not find their old tokens working.
func TestRemovalRevokes(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	text, h := o.mint(t, operator, time.Hour, SessionRead)
	must(t, o.RemoveMember(ctx, admin, operator.Principal, o.version(operator.Principal)))
	wants(t, o.Allow(operator, SessionRead), fault.Denied, "permission_denied")
	_, err := o.SetMember(ctx, admin, operator.Principal, Operator, 0)
	must(t, err)
	_, err = o.Authenticate(text)
	wants(t, err, fault.Denied, "token_revoked")
	wants(t, o.Allow(h, SessionRead), fault.Denied, "permission_denied")
	must(t, o.Allow(operator, SessionRead))
}

// TestDemotionCountsAtUse: a token of a member that was pulled down holds what
// the new role leaves of its scopes.
func TestDemotionCountsAtUse(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	_, h := o.mint(t, admin, time.Hour, PolicyManage, SessionRead, TokenManage)
	_, err := o.SetMember(ctx, owner, admin.Principal, Operator, o.version(admin.Principal))
	must(t, err)
	wants(t, o.Allow(h, PolicyManage), fault.Denied, "permission_denied")
	must(t, o.Allow(h, SessionRead))
	_, _, err = o.Rotate(ctx, admin, h.Token, 0, 0) // its scopes are more than the holder has now
	wants(t, err, fault.Denied, "permission_denied: does not hold")
}

func TestRevokeWhose(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	_, owners := o.mint(t, owner, time.Hour, SessionRead)
	_, ops := o.mint(t, operator, time.Hour, SessionRead)
	for _, c := range []struct {
		by     Holder
		id     string
		kind   fault.Kind
		reason string
	}{
		{operator, owners.Token, fault.NotFound, "not_found"},
		{nobody, ops.Token, fault.NotFound, "not_found"},
		{admin, owners.Token, fault.Denied, "permission_denied: does not hold"},
		{admin, "tok_x", fault.NotFound, "not_found"},
	} {
		_, err := o.Revoke(ctx, c.by, c.id)
		wants(t, err, c.kind, c.reason)
	}
	if n, err := o.Revoke(ctx, admin, ops.Token); n != 1 || err != nil {
		t.Errorf("an admin revokes an operator's token: %d, %v", n, err)
	}
	if n, err := o.Revoke(ctx, owners, owners.Token); n != 1 || err != nil {
		t.Errorf("a token revokes itself: %d, %v", n, err)
	}
}

func TestVersions(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	v := o.version(operator.Principal)
	_, err := o.SetMember(ctx, admin, operator.Principal, Admin, v)
	must(t, err)
	_, err = o.SetMember(ctx, owner, operator.Principal, Operator, v)
	wants(t, err, fault.Busy, "version_conflict")
	_, err = o.SetMember(ctx, owner, operator.Principal, Operator, 0)
	wants(t, err, fault.Busy, "version_conflict")
	wants(t, o.RemoveMember(ctx, owner, operator.Principal, v), fault.Busy, "version_conflict")
	wants(t, o.RemoveMember(ctx, owner, "user:ghost", 0), fault.NotFound, "not_found")
}

func TestLists(t *testing.T) {
	o := newOffice(t)
	_, a := o.mint(t, operator, time.Hour, SessionRead)
	_, b := o.mint(t, admin, time.Hour, SessionRead)
	ids := func(by Holder, after string, limit int) (out []string) {
		list, err := o.Tokens(by, after, limit)
		must(t, err)
		for _, x := range list {
			out = append(out, x.ID)
		}
		return out
	}
	if got := ids(operator, "", 10); len(got) != 1 || got[0] != a.Token {
		t.Errorf("an operator sees %v", got)
	}
	if got := ids(owner, "", 1); len(got) != 1 || got[0] != a.Token {
		t.Errorf("first page %v", got)
	}
	if got := ids(owner, a.Token, 10); len(got) != 1 || got[0] != b.Token {
		t.Errorf("second page %v", got)
	}
	_, err := o.Tokens(operator, b.Token, 1)
	wants(t, err, fault.NotFound, "not_found")
	_, err = o.Tokens(a, "", 1)
	wants(t, err, fault.Denied, "permission_denied")
	if got := o.Members(operator); len(got) != 1 || got[0].Principal != operator.Principal {
		t.Errorf("an operator sees members %v", got)
	}
	if got := o.Members(admin); len(got) != 3 || got[0].Principal != owner.Principal {
		t.Errorf("an admin sees members %v", got)
	}
}

func TestMintRefuses(t *testing.T) {
	o := newOffice(t)
	for _, q := range []Request{{}, {Lifetime: -1}, {Lifetime: MaxLifetime + 1}} {
		_, _, err := o.Mint(context.Background(), owner, q)
		wants(t, err, fault.Usage, "invalid_input")
	}
	for _, n := range []string{"a\nb", "\x1b[31m", "\u202e", "\u200b", "\xff", string(make([]byte, 101))} {
		_, _, err := o.Mint(context.Background(), owner, Request{Name: n, Lifetime: time.Hour})
		wants(t, err, fault.Usage, "invalid_input")
	}
}

// TestJournalBeforeMore: while the journal can't be written, no holder gains anything and
// every holder can lose it; owed entries are written first.
func TestJournalBeforeMore(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	full := errors.New("the disk is full")
	_, h := o.mint(t, operator, time.Hour, SessionRead)
	n := len(o.journal)

	o.broken = full
	if _, err := o.SetMember(ctx, owner, "user:new", Admin, 0); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
	if o.Role("user:new") != "" {
		t.Error("a role counts that the journal does not have")
	}
	if _, _, err := o.Mint(ctx, owner, Request{Lifetime: time.Hour}); !errors.Is(err, full) {
		t.Errorf("with an entry owed: %v, want %v", err, full)
	}
	if got := o.mem.state.Generation; got != uint64(n)+1 {
		t.Errorf("generation %d, want %d: one change was stored and the next was not", got, n+1)
	}
	o.broken = nil
	_, err := o.Revoke(ctx, operator, h.Token)
	must(t, err)
	if o.Role("user:new") != Admin {
		t.Error("a role does not count that the journal has")
	}
	if len(o.journal) != n+2 || o.journal[n].Act != "member.set" || o.journal[n+1].Act != "token.revoke" {
		t.Errorf("journal: %+v", o.journal[n:])
	}

	_, h = o.mint(t, operator, time.Hour, SessionRead)
	o.broken = full
	if _, err := o.Revoke(ctx, operator, h.Token); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
	wants(t, o.Allow(h, SessionRead), fault.Denied, "permission_denied") // it counts at once
	n = len(o.journal)
	o.broken = nil
	o.reopen(t) // a crash before the entry
	if len(o.journal) != n+1 || o.journal[n].Act != "token.revoke" || len(o.mem.state.Unlogged) != 0 {
		t.Errorf("after a restart: %+v", o.journal[n:])
	}
	for i, c := range o.journal {
		if c.Generation != uint64(i+1) {
			t.Errorf("entry %d is of generation %d", i, c.Generation)
		}
	}
}

// TestStorageFails: what is not stored does not count.
func TestStorageFails(t *testing.T) {
	o := newOffice(t)
	_, h := o.mint(t, operator, time.Hour, SessionRead)
	o.mem.fail = errors.New("disk")
	if _, err := o.Revoke(context.Background(), operator, h.Token); err == nil {
		t.Error("it was not stored and there is no error")
	}
	must(t, o.Allow(h, SessionRead))
}

// TestRolledBack: an older copy of the registry is not opened.
func TestRolledBack(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	old, err := o.mem.Load(ctx)
	must(t, err)
	_, h := o.mint(t, operator, time.Hour, SessionRead)
	_, err = o.Revoke(ctx, operator, h.Token)
	must(t, err)
	copied := newMemory()
	copied.state = *old
	_, err = Open(ctx, Config{Storage: copied, Floor: o.Generation()})
	wants(t, err, fault.Integrity, "rolled_back")
	_, err = Open(ctx, Config{Storage: o.mem, Floor: o.Generation()})
	must(t, err)
}

// TestLongest: no token lives longer than it may now, also not the successor of one
// that was made when tokens could live longer.
func TestLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		ctx := context.Background()
		_, h := o.mint(t, operator, 90*24*time.Hour, TokenManage, SessionRead)
		o.cfg.Longest = 24 * time.Hour // as the next Open would have it
		for range 2 {
			_, next, err := o.Rotate(ctx, operator, h.Token, 0, time.Hour)
			must(t, err)
			if got := next.Expires.Sub(next.Created); got != 24*time.Hour {
				t.Errorf("a successor lives %v", got)
			}
			h.Token = next.ID
		}
		_, _, err := o.Rotate(ctx, operator, h.Token, 25*time.Hour, 0)
		wants(t, err, fault.Usage, "invalid_input")
		_, _, err = o.Mint(ctx, operator, Request{Name: "t", Scopes: bit(SessionRead), Lifetime: 25 * time.Hour})
		wants(t, err, fault.Usage, "invalid_input")
	})
}

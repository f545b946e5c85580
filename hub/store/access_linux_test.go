package store

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/internal/fault"
)

// TestAccess puts a registry on the real storage, restarts it, and compares.
func TestAccess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, Options{})
	ctx := context.Background()
	index := uint64(0)
	cfg := access.Config{Record: func(context.Context, access.Change) (uint64, error) { index++; return index, nil }}
	open := func() *access.Registry {
		t.Helper()
		cfg.Storage = s.Access()
		r, err := access.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	reg := open()
	owner := access.Holder{Principal: "uid:0"}
	if err := reg.Bootstrap(ctx, owner.Principal); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"user:a", "user:b"} {
		if _, err := reg.SetMember(ctx, owner, p, access.Operator, 0); err != nil {
			t.Fatal(err)
		}
	}
	scopes, err := access.ParseSet([]string{"session.read", "token.manage"})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	var toks []*access.Token
	for range 3 {
		x, tok, err := reg.Mint(ctx, access.Holder{Principal: "user:a"}, access.Request{Name: "ci", Scopes: scopes, Lifetime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		texts, toks = append(texts, x.Reveal()), append(toks, tok)
	}
	if _, err := reg.Authenticate(texts[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.Revoke(ctx, owner, toks[1].ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := reg.Rotate(ctx, access.Holder{Principal: "user:a"}, toks[2].ID, 0, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := reg.RemoveMember(ctx, owner, "user:b", reg.Members(owner)[2].Version); err != nil {
		t.Fatal(err)
	}
	if err := reg.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	look := func(r *access.Registry) (m []access.Member, tk []access.Token, g uint64) {
		tk, err := r.Tokens(owner, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		return r.Members(owner), tk, r.Generation()
	}
	m1, t1, g1 := look(reg)
	check(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	again := open()
	m2, t2, g2 := look(again)
	if !reflect.DeepEqual(m1, m2) || !reflect.DeepEqual(t1, t2) || g1 != g2 || g1 != index {
		t.Errorf("before: %+v %+v %d\nafter: %+v %+v %d, journal %d", m1, t1, g1, m2, t2, g2, index)
	}
	if len(t2) != 4 || t2[0].LastUsed.IsZero() || t2[1].Revoked.IsZero() || t2[2].Successor != t2[3].ID {
		t.Errorf("tokens: %+v", t2)
	}
	_, err = again.Authenticate(texts[1])
	wants(t, err, fault.Denied, "token_revoked")
	st, err := s.Access().Load(ctx)
	if err != nil || len(st.Unlogged) != 0 {
		t.Errorf("unlogged: %+v, %v", st.Unlogged, err)
	}

	// What the journal did not take is owed after a restart, in full.
	full := errors.New("full")
	cfg.Record = func(context.Context, access.Change) (uint64, error) { return 0, full }
	if _, err := open().Revoke(ctx, owner, toks[0].ID); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	var owed []access.Change
	cfg.Record = func(_ context.Context, c access.Change) (uint64, error) { owed = append(owed, c); return 1, nil }
	open()
	if len(owed) != 1 || owed[0].Act != "token.revoke" || owed[0].Subject != toks[0].ID || owed[0].Detail["principal"] != "user:a" || owed[0].Actor != "uid:0" {
		t.Errorf("owed: %+v", owed)
	}
	check(t, s)
}

// TestAccessSchema: what the registry must never do, the schema refuses even to a
// program with a bug.
func TestAccessSchema(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	tok := access.Token{ID: "tok_1", Principal: "uid:0", Created: time.Unix(1, 0), Expires: time.Unix(100, 0), Revoked: time.Unix(5, 0)}
	n := uint64(0)
	apply := func(c access.Change) error {
		c.Generation, c.Act = n+1, "test"
		err := s.Access().Apply(ctx, c)
		if err == nil {
			n++
		}
		return err
	}
	if err := apply(access.Change{Tokens: []access.Token{tok}}); err != nil {
		t.Fatal(err)
	}
	back := tok
	back.Revoked = time.Time{}
	wants(t, apply(access.Change{Tokens: []access.Token{back}}), fault.Usage, "invalid_input", "a revoked token stays revoked")
	longer := tok
	longer.Expires = time.Unix(200, 0)
	wants(t, apply(access.Change{Tokens: []access.Token{longer}}), fault.Usage, "invalid_input", "a token is not prolonged")
	// Neither a token that is good nor one that minted another can be deleted.
	names := func(id, parent string, expires time.Time) access.Token {
		return access.Token{ID: id, Principal: "uid:0", Created: time.Unix(1, 0), Expires: expires, Parent: parent, Successor: "tok_4"}
	}
	ended := time.Unix(100, 0)
	if err := apply(access.Change{Tokens: []access.Token{names("tok_2", "", time.Now().Add(time.Hour)), names("tok_3", "", ended), names("tok_4", "tok_3", ended)}}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"tok_2", "tok_3"} {
		wants(t, s.Access().Forget(ctx, []string{id}), fault.Usage, "invalid_input", "when they have ended, leaves first")
	}
	for _, id := range []string{"tok_4", "tok_3"} {
		if err := s.Access().Forget(ctx, []string{id}); err != nil {
			t.Errorf("forget %s: %v", id, err)
		}
	}
	for q, says := range map[string]string{`UPDATE tokens SET principal = 'uid:1'`: "is fixed", `UPDATE tokens SET scopes = 'run.start'`: "is fixed",
		`UPDATE tokens SET hash = randomblob(32)`: "is fixed", `UPDATE tokens SET revoked = 0`: "stays revoked"} {
		wants(t, s.Update(ctx, func(tx *Tx) error { _, err := tx.exec("test", q); return err }), fault.Usage, "invalid_input", says)
	}
	wants(t, s.Access().Apply(ctx, access.Change{Generation: n, Act: "again"}), fault.Busy, "version_conflict")
	wants(t, s.Access().Apply(ctx, access.Change{Generation: n + 2, Act: "gap"}), fault.Busy, "version_conflict")
	// A duplicate membership cannot be stored: there is one row per principal.
	m := access.Member{Principal: "uid:0", Role: access.Owner, Version: 1}
	if err := apply(access.Change{Members: []access.Member{m, m}}); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Access().Load(ctx); err != nil || len(st.Members) != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	wants(t, apply(access.Change{Members: []access.Member{{Principal: "uid:1", Role: "root", Version: 1}}}), fault.Usage, "invalid_input", "role IN")
}

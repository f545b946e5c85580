package store

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	var keys []*access.Passkey
	for i, p := range []string{"user:a", "user:a", "user:a", "user:b"} {
		k, err := reg.AddPasskey(ctx, access.Holder{Principal: p}, access.Passkey{Name: "laptop", Credential: []byte{byte(i)}, Key: []byte("key"), Count: 4294967290})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	if err := errors.Join(reg.UsePasskey(ctx, keys[0].ID, 4294967295), reg.HaltPasskey(ctx, keys[1].ID)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := reg.RemovePasskey(ctx, owner, keys[2].ID, "console"); err != nil {
		t.Fatal(err)
	}
	if err := reg.RemoveMember(ctx, owner, "user:b", reg.Members(owner)[2].Version); err != nil {
		t.Fatal(err)
	}
	if err := reg.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	passkeys := func(r *access.Registry) []access.Passkey {
		ps, err := r.Passkeys(owner)
		if err != nil {
			t.Fatal(err)
		}
		return ps
	}
	look := func(r *access.Registry) (m []access.Member, tk []access.Token, g uint64) {
		tk, err := r.Tokens(owner, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		return r.Members(owner), tk, r.Generation()
	}
	m1, t1, g1 := look(reg)
	p1 := passkeys(reg)
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
	if p2 := passkeys(again); !reflect.DeepEqual(p1, p2) || len(p2) != 2 || p2[0].Halted.IsZero() == p2[1].Halted.IsZero() {
		t.Errorf("passkeys before: %+v\nafter: %+v", p1, p2)
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
	m0 := access.Member{Principal: "uid:9", Role: access.Owner, Version: 1}
	if err := apply(access.Change{Members: []access.Member{m0}, Passkeys: []access.Passkey{{ID: "psk_1", Principal: "uid:9", Credential: []byte("c"), Key: []byte("k"), Count: 2, Halted: time.Unix(5, 0)}}}); err != nil {
		t.Fatal(err)
	}
	for q, says := range map[string]string{`UPDATE passkeys SET principal = 'uid:1'`: "are fixed", `UPDATE passkeys SET key = x'00'`: "are fixed",
		`UPDATE passkeys SET credential = x'00'`: "are fixed", `UPDATE passkeys SET count = 1`: "counts no lower", `UPDATE passkeys SET halted = 0`: "stays halted"} {
		wants(t, s.Update(ctx, func(tx *Tx) error { _, err := tx.exec("test", q); return err }), fault.Usage, "invalid_input", says)
	}
	two := access.Passkey{ID: "psk_2", Principal: "uid:9", Credential: []byte("c"), Key: []byte("k")}
	wants(t, apply(access.Change{Passkeys: []access.Passkey{two}}), fault.Usage, "invalid_input", "credential")
	wants(t, s.Access().Apply(ctx, access.Change{Generation: n, Act: "again"}), fault.Busy, "version_conflict")
	wants(t, s.Access().Apply(ctx, access.Change{Generation: n + 2, Act: "gap"}), fault.Busy, "version_conflict")
	// A duplicate membership cannot be stored: there is one row per principal.
	m := access.Member{Principal: "uid:0", Role: access.Owner, Version: 1}
	if err := apply(access.Change{Members: []access.Member{m, m}}); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Access().Load(ctx); err != nil || len(st.Members) != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	wants(t, apply(access.Change{Members: []access.Member{{Principal: "uid:1", Role: "root", Version: 1}}}), fault.Usage, "invalid_input", "role IN")
}

// TestPasskeySchema: a store from before passkeys gets them, and keeps its members and tokens.
func TestPasskeySchema(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := open(dir, Options{}, migrations()[:6])
	if err != nil {
		t.Fatal(err)
	}
	raw(t, s, `INSERT INTO members VALUES ('uid:0', 'owner', 'uid:0', 1, 1)`, `INSERT INTO access_changes VALUES (1, 1, 'uid:0', 'access.bootstrap', 'uid:0', CAST('{}' AS BLOB), 1)`)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	check(t, s)
	reg, err := access.Open(ctx, access.Config{Storage: s.Access()})
	if err != nil {
		t.Fatal(err)
	}
	if reg.Role("uid:0") != access.Owner {
		t.Error("the owner is lost")
	}
	if _, err := reg.AddPasskey(ctx, access.Holder{Principal: "uid:0"}, access.Passkey{Credential: []byte("c"), Key: []byte("k")}); err != nil {
		t.Error(err)
	}
	check(t, s)
	if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("before-schema-%d-from-6.db", len(migrations())))); err != nil {
		t.Error(err)
	}
}

package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

// passkey adds one or fails the test.
func (o *office) passkey(t testing.TB, by Holder, credential string) *Passkey {
	t.Helper()
	p, err := o.AddPasskey(context.Background(), by, Passkey{Name: "laptop", Credential: []byte(credential), Key: []byte("key of " + credential), Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPasskeys(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	p := o.passkey(t, operator, "a")
	if !strings.HasPrefix(p.ID, "psk_") || p.Principal != operator.Principal || p.Created.IsZero() {
		t.Errorf("%+v", p)
	}
	last := o.journal[len(o.journal)-1]
	if last.Act != "passkey.add" || last.Subject != p.ID || last.Detail["principal"] != operator.Principal || !strings.HasPrefix(last.Detail["key"], "sha256:") {
		t.Errorf("the journal has %+v", last)
	}
	must(t, o.UsePasskey(ctx, p.ID, 9))
	for range 2 { // also after a restart
		got, ok := o.PasskeyOf([]byte("a"))
		if !ok || got.Count != 9 || got.LastUsed.IsZero() || string(got.Key) != "key of a" || !got.Halted.IsZero() {
			t.Errorf("%+v, %v", got, ok)
		}
		o.reopen(t)
	}
	o.mem.fail = errors.New("disk")
	if err := o.UsePasskey(ctx, p.ID, 10); err == nil {
		t.Error("the storage failed and UsePasskey did not")
	}
	if got, _ := o.PasskeyOf([]byte("a")); got.Count != 9 {
		t.Errorf("a count that isn't durable: %d", got.Count)
	}
	must(t, o.HaltPasskey(ctx, p.ID))
	n := len(o.journal)
	must(t, o.HaltPasskey(ctx, p.ID))
	if got, _ := o.PasskeyOf([]byte("a")); got.Halted.IsZero() || got.Count != 9 || len(o.journal) != n || o.journal[n-1].Act != "passkey.halt" {
		t.Errorf("halted: %+v, %+v", got, o.journal[n-1:])
	}
	o.reopen(t)
	if got, _ := o.PasskeyOf([]byte("a")); got.Halted.IsZero() {
		t.Error("a restart takes the halt back")
	}
}

func TestPasskeyRefusals(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	add := func(by Holder, p Passkey) error { _, err := o.AddPasskey(ctx, by, p); return err }
	good := Passkey{Name: "n", Credential: []byte("c"), Key: []byte("k")}
	_, weak := o.mint(t, operator, time.Hour, RunStart)
	for what, by := range map[string]Holder{"no member": nobody, "no holder": {}, "a token without token.manage": weak} {
		if err := add(by, good); fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, p := range map[string]Passkey{"no credential": {Key: []byte("k")}, "no key": {Credential: []byte("c")}, "a name that hides": {Name: "a\u202eb", Credential: []byte("c"), Key: []byte("k")}} {
		if err := add(operator, p); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, add(operator, good))
	wants(t, add(admin, good), fault.Busy, "exists")
	for i := range MaxPasskeys - 1 {
		o.passkey(t, operator, fmt.Sprint(i))
	}
	wants(t, add(operator, Passkey{Credential: []byte("one more"), Key: []byte("k")}), fault.Unavailable, "quota")
	must(t, add(admin, Passkey{Credential: []byte("one more"), Key: []byte("k")}))
}

// TestRemovePasskey: who may, what ends with it, and that it ends with its member.
func TestRemovePasskey(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	p, of := o.passkey(t, operator, "a"), o.passkey(t, owner, "b")
	remove := func(by Holder, id string) (int, error) { _, n, err := o.RemovePasskey(ctx, by, id, "t"); return n, err }
	_, weak := o.mint(t, operator, time.Hour, RunStart)
	for what, x := range map[string]struct {
		by     Holder
		id     string
		reason string
	}{
		"another's":                    {operator, of.ID, "not_found"},
		"that of someone above":        {admin, of.ID, "permission_denied"},
		"a token without token.manage": {weak, p.ID, "permission_denied"},
		"no member":                    {nobody, p.ID, "not_found"},
		"none":                         {owner, "psk_0", "not_found"},
	} {
		if _, err := remove(x.by, x.id); fault.ReasonOf(err) != x.reason {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, mine := o.mint(t, operator, time.Hour, TokenManage)
	first, other := o.mint(t, operator, time.Hour, TokenManage)
	child, _ := o.mint(t, other, time.Hour)
	foreign, _ := o.mint(t, owner, time.Hour, TokenManage)
	n, err := remove(mine, p.ID)
	if err != nil || n != 3 { // weak, other and its child
		t.Errorf("%d tokens ended, %v", n, err)
	}
	for _, text := range []string{first, child} {
		_, err := o.Authenticate(text)
		wants(t, err, fault.Denied, "token_revoked")
	}
	if _, err := o.Authenticate(foreign); err != nil {
		t.Errorf("another member's token: %v", err)
	}
	must(t, o.Allow(mine, TokenManage))
	if _, ok := o.PasskeyOf([]byte("a")); ok || o.journal[len(o.journal)-1].Act != "passkey.remove" {
		t.Errorf("it's still there; the journal: %+v", o.journal[len(o.journal)-1])
	}
	o.reopen(t)
	if _, ok := o.PasskeyOf([]byte("a")); ok {
		t.Error("a restart brings it back")
	}
	c := o.passkey(t, operator, "c")
	list := func(by Holder) (ids []string) {
		ps, err := o.Passkeys(by)
		must(t, err)
		for _, p := range ps {
			ids = append(ids, p.ID)
		}
		return ids
	}
	if got := list(operator); !slices.Equal(got, []string{c.ID}) {
		t.Errorf("an operator sees %q", got)
	}
	if got := list(owner); len(got) != 2 || !slices.Contains(got, of.ID) {
		t.Errorf("an owner sees %q", got)
	}
	if _, err := o.Passkeys(nobody); fault.ReasonOf(err) != "permission_denied" {
		t.Errorf("no member: %v", err)
	}
	must(t, o.RemoveMember(ctx, owner, operator.Principal, o.version(operator.Principal)))
	if _, ok := o.PasskeyOf([]byte("c")); ok || len(o.mem.state.Passkeys) != 1 {
		t.Errorf("a passkey outlives its member: %+v", o.mem.state.Passkeys)
	}
}

// TestPasskeyUnlogged: a passkey counts only when the journal has it, and one that was removed
// stops at once.
func TestPasskeyUnlogged(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	p := o.passkey(t, operator, "a")
	o.broken = errors.New("journal")
	if _, err := o.AddPasskey(ctx, operator, Passkey{Credential: []byte("b"), Key: []byte("k")}); !errors.Is(err, o.broken) {
		t.Errorf("%v", err)
	}
	if _, ok := o.PasskeyOf([]byte("b")); ok {
		t.Error("it counts before the journal has it")
	}
	o.broken = nil
	must(t, o.HaltPasskey(ctx, p.ID)) // journals what is owed
	if _, ok := o.PasskeyOf([]byte("b")); !ok {
		t.Error("the journal has it and it doesn't count")
	}
	o.broken = errors.New("journal")
	if _, _, err := o.RemovePasskey(ctx, operator, p.ID, "t"); err == nil {
		t.Error("no error")
	}
	if _, ok := o.PasskeyOf([]byte("a")); ok {
		t.Error("it counts until the journal has its end")
	}
}

package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// newVault makes a vault, and what tools reach it by.
func newVault(t *testing.T) (*vault.Vault, *Vault) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := id.Recipient("owner")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(state, "vault")
	v, err := vault.Create(t.Context(), dir, k.VaultLedger(), id, pub)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, &Vault{Open: func(ctx context.Context) (*vault.Vault, error) {
		return vault.Open(ctx, dir, k.VaultLedger(), id)
	}}
}

// TestVaultAtOnce: each of several calls has the value that came beside it, and is told what it
// did itself. One without anything beside it does nothing.
func TestVaultAtOnce(t *testing.T) {
	v, door := newVault(t)
	table := New(Config{Program: "/usr/libexec/palyra/palyra-tool", Vault: door})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ref, text := fmt.Sprintf("vault://global/s%d", i), fmt.Sprintf("the value of number %d", i)
			value := seal.NewSecret([]byte(text))
			defer value.Wipe()
			var done []VaultDone
			call := func(tool string, b *Beside) {
				ctx := WithBeside(t.Context(), b)
				b.Done = func(d VaultDone) { done = append(done, d) }
				x, err := table.Expand(ctx, policy.Entity{}, tool, []byte(`{"ref":"`+ref+`"}`))
				if err == nil {
					err = x.Effect.Begin(ctx)
				}
				if err != nil {
					t.Errorf("%s %s: %v", tool, ref, err)
					return
				}
				x.Effect.End(true, 0)
				x.Effect.Close()
			}
			call(toolproto.VaultSet, &Beside{Values: []*seal.Secret{value}})
			call(toolproto.VaultGet, &Beside{})
			if len(done) != 2 || done[0].Info.Version != 1 || string(done[1].Secret.Bytes()) != text {
				t.Errorf("%s: told %d times, or of another secret", ref, len(done))
			}
		})
	}
	wg.Wait()
	x, err := table.Expand(t.Context(), policy.Entity{}, toolproto.VaultRemove, []byte(`{"ref":"vault://global/s0"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Effect.Begin(t.Context()); fault.KindOf(err) != fault.Usage {
		t.Errorf("without anything beside it: %v", err)
	}
	if n, err := v.Check(t.Context()); n != 8 || err != nil {
		t.Errorf("%d versions: %v", n, err)
	}
}

// TestVaultImport: the words have every record's digest, and all records are stored or none.
func TestVaultImport(t *testing.T) {
	v, door := newVault(t)
	table := New(Config{Program: "/usr/libexec/palyra/palyra-tool", Vault: door})
	var done VaultDone
	ctx := WithBeside(t.Context(), &Beside{Values: []*seal.Secret{seal.NewSecret([]byte("the first value")), seal.NewSecret([]byte("the second"))}, Done: func(d VaultDone) { done = d }})
	expand := func(in string) (*kernel.Expansion, error) {
		return table.Expand(ctx, policy.Entity{}, toolproto.VaultImport, []byte(in))
	}
	for _, in := range []string{`{"refs":["vault://global/a"]}`, `{"refs":["vault://global/a","vault://global/a"]}`, `{"refs":["vault://global/a","b"]}`,
		`{"refs":["vault://global/a","vault://global/b"],"expires":["never"]}`, `{"refs":["vault://global/a","vault://global/b"],"versions":["1","1"]}`} {
		if _, err := expand(in); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v", in, err)
		}
	}
	const both = `{"refs":["vault://global/a","vault://skill:x/b"],"expires":["never","2125-01-02T03:04:05Z"]}`
	x, err := expand(both)
	if err != nil {
		t.Fatal(err)
	}
	d := x.Effect.(*vaultEffect).drafts
	if got, want := strings.Join(x.Argv[2:], " "), "vault://global/a version=1 record="+d[0].Digest().String()+" vault://skill:x/b version=1 record="+d[1].Digest().String()+" expires=2125-01-02T03:04:05Z"; got != want {
		t.Errorf("the words are %s\nwant %s", got, want)
	}
	// One that got another version meanwhile keeps the others out, too.
	y, err := expand(strings.Replace(both, "skill:x/b", "global/c", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Effect.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	x.Effect.End(true, 0)
	if len(done.List) != 2 || done.List[1].Ref.String() != "vault://skill:x/b" || done.List[1].Expires == nil {
		t.Errorf("told %+v", done.List)
	}
	if err := y.Effect.Begin(ctx); fault.ReasonOf(err) != "changed" {
		t.Errorf("a taken version: %v", err)
	}
	if list, err := v.List(t.Context()); len(list) != 2 || err != nil {
		t.Errorf("%d secrets, %v", len(list), err)
	}
	if n, err := v.Check(t.Context()); n != 2 || err != nil {
		t.Errorf("%d versions, %v", n, err)
	}
}

// TestVaultSetBinds: the words that are decided about have the digest of the sealed record, and
// the effect stores that record or none, whatever comes between decision and effect.
func TestVaultSetBinds(t *testing.T) {
	v, door := newVault(t)
	value := seal.NewSecret([]byte("the value that was decided about"))
	table := New(Config{Program: "/usr/libexec/palyra/palyra-tool", Vault: door})
	with := func(values ...*seal.Secret) context.Context {
		return WithBeside(t.Context(), &Beside{Values: values, Done: func(VaultDone) {}})
	}
	expand := func(in string) (*kernel.Expansion, *vaultEffect) {
		t.Helper()
		x, err := table.Expand(with(value), policy.Entity{}, toolproto.VaultSet, []byte(in))
		if err != nil {
			t.Fatal(err)
		}
		return x, x.Effect.(*vaultEffect)
	}
	const in = `{"ref":"vault://global/token"}`
	x, asked := expand(in)
	var bound toolproto.VaultSetInput
	if err := json.Unmarshal(x.Stdin, &bound); err != nil || bound.Version != 1 || bound.Record != asked.drafts[0].Digest().String() ||
		strings.Join(x.Argv[2:], " ") != "vault://global/token version=1 record="+bound.Record {
		t.Errorf("the call is %q with input %s: %v", x.Argv, x.Stdin, err)
	}
	value.Wipe()
	value = seal.NewSecret([]byte("another one, that came later"))
	_, other := expand(in)
	honest := asked.drafts
	asked.drafts = other.drafts
	if err := asked.Begin(with()); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("an exchanged record: %v", err)
	}
	if n, err := v.Check(t.Context()); n != 0 || err != nil {
		t.Errorf("%d versions are stored: %v", n, err)
	}
	asked.drafts = honest // and the value behind the door is another one by now
	if err := asked.Begin(with()); err != nil {
		t.Fatal(err)
	}
	r, _ := vault.ParseRef("vault://global/token")
	if s, _, err := v.Get(t.Context(), r, 0); err != nil || string(s.Bytes()) != "the value that was decided about" {
		t.Errorf("stored is another value: %v", err)
	}
	// An older value is bound, too, and a record that the caller names is never stored.
	x, again := expand(`{"ref":"vault://global/token","from":1}`)
	if !strings.Contains(string(x.Stdin), `"record":"`+again.drafts[0].Digest().String()) || again.Begin(with()) != nil {
		t.Errorf("%s", x.Stdin)
	}
	_, named := expand(`{"ref":"vault://global/token","version":3,"record":"` + bound.Record + `"}`)
	if err := named.Begin(with()); fault.KindOf(err) != fault.Refused {
		t.Errorf("a record that the caller named: %v", err)
	}
	if n, err := v.Check(t.Context()); n != 2 || err != nil {
		t.Errorf("%d versions, %v", n, err)
	}
}

package tool

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// TestVaultSetBinds: the words that are decided about have the digest of the sealed record, and
// the effect stores that record or none, whatever comes between decision and effect.
func TestVaultSetBinds(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
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
	defer v.Close()
	value := seal.NewSecret([]byte("the value that was decided about"))
	table := New(Config{Program: "/usr/libexec/palyra/palyra-tool", Vault: &Vault{
		Open: func(ctx context.Context) (*vault.Vault, error) {
			return vault.Open(ctx, dir, k.VaultLedger(), id)
		},
		Value: func() (*seal.Secret, error) { return value, nil },
	}})
	expand := func(in string) (*kernel.Expansion, *vaultEffect) {
		t.Helper()
		x, err := table.Expand(t.Context(), policy.Entity{}, toolproto.VaultSet, []byte(in))
		if err != nil {
			t.Fatal(err)
		}
		return x, x.Effect.(*vaultEffect)
	}
	const in = `{"ref":"vault://global/token"}`
	x, asked := expand(in)
	var bound toolproto.VaultSetInput
	if err := json.Unmarshal(x.Stdin, &bound); err != nil || bound.Version != 1 || bound.Record != asked.draft.Digest().String() ||
		strings.Join(x.Argv[2:], " ") != "vault://global/token version=1 record="+bound.Record {
		t.Errorf("the call is %q with input %s: %v", x.Argv, x.Stdin, err)
	}
	value.Wipe()
	value = seal.NewSecret([]byte("another one, that came later"))
	_, other := expand(in)
	honest := asked.draft
	asked.draft = other.draft
	if err := asked.Begin(t.Context()); fault.ReasonOf(err) != "invalid_input" {
		t.Errorf("an exchanged record: %v", err)
	}
	if n, err := v.Check(t.Context()); n != 0 || err != nil {
		t.Errorf("%d versions are stored: %v", n, err)
	}
	asked.draft = honest // and the value behind the door is another one by now
	if err := asked.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, _ := vault.ParseRef("vault://global/token")
	if s, _, err := v.Get(t.Context(), r, 0); err != nil || string(s.Bytes()) != "the value that was decided about" {
		t.Errorf("stored is another value: %v", err)
	}
	// An older value is bound, too, and a record that the caller names is never stored.
	x, again := expand(`{"ref":"vault://global/token","from":1}`)
	if !strings.Contains(string(x.Stdin), `"record":"`+again.draft.Digest().String()) || again.Begin(t.Context()) != nil {
		t.Errorf("%s", x.Stdin)
	}
	_, named := expand(`{"ref":"vault://global/token","version":3,"record":"` + bound.Record + `"}`)
	if err := named.Begin(t.Context()); fault.KindOf(err) != fault.Refused {
		t.Errorf("a record that the caller named: %v", err)
	}
	if n, err := v.Check(t.Context()); n != 2 || err != nil {
		t.Errorf("%d versions, %v", n, err)
	}
}

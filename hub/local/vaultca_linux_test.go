package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub"
)

// TestAuthorityIsNoVaultKey: the keys of the certificate authority open no vault, and the vault opens
// without them: when all of them were replaced, and when they are gone.
func TestAuthorityIsNoVaultKey(t *testing.T) {
	h := newVaultHouse(t, nil)
	ctx := t.Context()
	state := h.k.StateDir()
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	h.executed(request(h, hub.SetSecret, h.owner, hub.SecretValue{Ref: "vault://global/token", Value: []byte(hush)}))
	opens := func(when string) {
		t.Helper()
		if s, err := hub.VerifyVault.Do(ctx, h, h.owner, hub.None{}); err != nil || s.Versions != 1 {
			t.Errorf("%s: %+v, %v", when, s, err)
		}
	}
	opens("control")

	keys, err := filepath.Glob(filepath.Join(state, "ca", "*.key"))
	if err != nil || len(keys) < 2 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	for _, path := range keys {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := seal.ParseIdentity(b); err == nil {
			t.Errorf("%s is an identity", path)
			id.Wipe()
		}
		words, err := seal.NewPassphrase("words", b[:min(len(b), 1024)])
		if err != nil {
			t.Fatal(err)
		}
		if v, err := vault.Open(ctx, filepath.Join(state, "vault"), h.k.VaultLedger(), words); err == nil {
			t.Errorf("%s opens the vault", path)
			v.Close()
		}
		for _, sealed := range []string{"head", "seen"} {
			if v, err := os.ReadFile(filepath.Join(state, "vault", sealed)); err != nil || strings.Contains(string(v), string(b)) {
				t.Errorf("the vault's %s: %v", sealed, err)
			}
		}
	}
	if _, err := hub.ReplaceRoot.Do(ctx, h, h.owner, hub.RootReplacement{AtOnce: true}); err != nil {
		t.Fatal(err)
	}
	opens("with another root")
	if err := os.RemoveAll(filepath.Join(state, "ca")); err != nil {
		t.Fatal(err)
	}
	opens("without an authority")
}

package backend

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"palyra/crypt/keyring/backend/record"
)

// TestDPAPI makes the round trip of an identity, and refuses a file that was changed.
func TestDPAPI(t *testing.T) {
	ctx := t.Context()
	p := record.Place{Backend: record.DPAPI, Name: filepath.Join(t.TempDir(), "palyra", "vault.dpapi")}
	if got, passed, err := Choose(ctx, []record.Place{p}); err != nil || got != p {
		t.Fatal(got, passed, err)
	}
	if ks := Automatic(); ks[0] != record.DPAPI {
		t.Error(ks)
	}
	id := newIdentity(t)
	p = placed(t, p, id)
	if err := keep(ctx, p, id, asking); err != nil {
		t.Fatal(err)
	}
	got, err := Load(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, id)
	wantReason(t, keep(ctx, p, id, asking), "exists")
	b, err := os.ReadFile(p.Name)
	if err != nil || bytes.Contains(b, []byte("palyra-identity")) {
		t.Errorf("the file has the identity in clear: %v", err)
	}
	whole := bytes.Clone(b)
	b[len(b)-1] ^= 1
	for _, bad := range [][]byte{b, whole[:len(whole)/2], []byte("x"), {}} {
		if err := os.WriteFile(p.Name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(ctx, p)
		wantReason(t, err, "key_corrupt")
	}
	if err := os.WriteFile(p.Name, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(drop(ctx, p, asking), drop(ctx, p, asking)); err != nil {
		t.Error(err)
	}
	if _, err := Load(ctx, p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: %v", err)
	}
}

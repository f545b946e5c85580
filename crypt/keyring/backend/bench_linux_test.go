package backend

import (
	"os"
	"path/filepath"
	"testing"

	"palyra/crypt/keyring/backend/record"
	"palyra/crypt/seal"
)

// BenchmarkUnlock finds an identity where it is kept, and has it unwrap a key: what opening a vault
// or sealed keys takes with each backend. A credential is one that the service manager gave.
func BenchmarkUnlock(b *testing.B) {
	id := newIdentity(b)
	to, err := id.Recipient("owner")
	if err != nil {
		b.Fatal(err)
	}
	c := seal.Context{Purpose: "test"}
	s, err := to.Wrap(seal.NewKey(), c)
	if err != nil {
		b.Fatal(err)
	}
	unlock := func(b *testing.B, p record.Place) {
		for b.Loop() {
			id, err := Load(b.Context(), p)
			if err != nil {
				b.Fatal(err)
			}
			k, err := id.Unwrap(s, c)
			if err != nil {
				b.Fatal(err)
			}
			k.Wipe()
			id.Wipe()
		}
	}
	b.Run("file", func(b *testing.B) {
		p := placed(b, record.Place{Backend: record.File, Name: filepath.Join(b.TempDir(), "key")}, id)
		if err := keep(b.Context(), p, id, asking); err != nil {
			b.Fatal(err)
		}
		unlock(b, p)
	})
	b.Run("credential", func(b *testing.B) {
		dir := b.TempDir()
		b.Setenv("CREDENTIALS_DIRECTORY", dir)
		if err := os.WriteFile(filepath.Join(dir, Credential), id.Encode(), 0o400); err != nil {
			b.Fatal(err)
		}
		unlock(b, placed(b, record.Place{Backend: record.SystemdCreds, Name: Credential}, id))
	})
	b.Run("secret-service", func(b *testing.B) {
		bus(b)
		keyring(b)
		p := placed(b, ssPlace, id)
		if err := keep(b.Context(), p, id, asking); err != nil {
			b.Fatal(err)
		}
		unlock(b, p)
	})
}

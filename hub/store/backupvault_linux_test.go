package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestBackupVault: a backup has the vault as the journal beside it knows it, also while secrets are
// stored; an older vault beside a newer journal is refused, when restored and when opened.
func TestBackupVault(t *testing.T) {
	ctx := t.Context()
	state := filepath.Join(t.TempDir(), "state")
	k, err := kernel.Open(ctx, kernel.Config{StateDir: state})
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
	// The vault is made while the first backup is under way.
	var v *vault.Vault
	st := openStore(t, filepath.Join(state, "store"), Options{TestOnlyStep: func(step string) {
		if step == "backup_no_vault" {
			if v, err = vault.Create(ctx, filepath.Join(state, "vault"), k.VaultLedger(), id, pub); err != nil {
				t.Fatal(err)
			}
		}
	}})
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, value string) {
		t.Helper()
		r, err := vault.ParseRef("vault://global/" + name)
		if err != nil {
			t.Fatal(err)
		}
		d, err := v.Draft(ctx, r, []byte(value), time.Time{})
		if err == nil {
			err = v.Store(ctx, d, d.Digest())
		}
		if err != nil {
			t.Error(err)
		}
	}
	backup := func() []byte {
		t.Helper()
		var b bytes.Buffer
		if _, err := st.Backup(ctx, &b, BackupOptions{StateDir: state, Recipients: []string{key.Recipient().String()}, IncludePrivateKeys: true}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	restore := func(b []byte) (string, error) {
		dir := filepath.Join(t.TempDir(), "restored")
		_, err := Restore(ctx, bytes.NewReader(b), Unlock{Identities: key.String() + "\n"}, dir)
		return dir, err
	}
	opened := func(dir string) (versions int, err error) {
		t.Helper()
		k, err := kernel.Open(ctx, kernel.Config{StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		v, err := vault.Open(ctx, filepath.Join(dir, "vault"), k.VaultLedger(), id)
		if err != nil {
			return 0, err
		}
		defer v.Close()
		return v.Check(ctx)
	}
	empty, err := restore(backup())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if n, err := opened(empty); n != 0 || err != nil {
		t.Errorf("an empty vault: %d versions, %v", n, err)
	}
	put("a", "one")
	first, err := restore(backup())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := opened(first); n != 1 || err != nil {
		t.Errorf("restored: %d versions, %v", n, err)
	}

	// While secrets are stored.
	busy, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; busy.Err() == nil && i < 100; i++ {
			put(fmt.Sprintf("s%d", i), "value")
		}
	})
	defer func() { stop(); wg.Wait() }() // before the vault is closed, also when this test fails
	for range 3 {
		dir, err := restore(backup())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opened(dir); err != nil {
			t.Error(err)
		}
	}
	stop()
	wg.Wait()

	// The older vault in the place of the newer one.
	newer, err := restore(backup())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(newer, "vault")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(first, "vault"), filepath.Join(newer, "vault")); err != nil {
		t.Fatal(err)
	}
	if err := checkVault(newer, filepath.Join(newer, "trust")); fault.ReasonOf(err) != "rolled_back" {
		t.Errorf("checked: %v", err)
	}
	if _, err := opened(newer); fault.ReasonOf(err) != "rolled_back" {
		t.Errorf("opened: %v", err)
	}
}

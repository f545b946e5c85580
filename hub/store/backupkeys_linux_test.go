package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"filippo.io/age"

	"palyra/internal/fault"
	"palyra/kernel"
)

// TestBackupWhileKeysRotate: keys that are replaced while the journal is copied leave a backup that
// opens, and that can be continued.
func TestBackupWhileKeysRotate(t *testing.T) {
	ctx := t.Context()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	open := func(t *testing.T, dir string) *kernel.Kernel {
		t.Helper()
		k, err := kernel.Open(ctx, kernel.Config{StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	rotate := func(t *testing.T, k *kernel.Kernel, log bool) {
		t.Helper()
		r := k.RotateKey
		if log {
			r = k.RotateLogKey
		}
		if _, err := r(ctx, "user", false); err != nil {
			t.Error(err)
		}
	}
	for _, tt := range []struct {
		at  string // the step of the backup
		log bool   // whose key is replaced
	}{{"backup_keys", false}, {"backup_keys", true}, {"backup_staged", false}, {"backup_staged", true}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			k := open(t, state)
			defer k.Close()
			rotate(t, k, tt.log) // the journal isn't empty
			rotated := 0
			st := openStore(t, filepath.Join(state, "store"), Options{TestOnlyStep: func(step string) {
				if step == tt.at && rotated == 0 {
					rotated++
					rotate(t, k, tt.log)
				}
			}})
			var b bytes.Buffer
			if _, err := st.Backup(ctx, &b, BackupOptions{StateDir: state, Recipients: []string{key.Recipient().String()}, IncludePrivateKeys: true}); err != nil {
				t.Fatal(err)
			}
			if rotated != 1 {
				t.Errorf("%d rotations during the backup, want 1", rotated)
			}
			dir := filepath.Join(t.TempDir(), "restored")
			if _, err := Restore(ctx, &b, Unlock{Identities: key.String() + "\n"}, dir); err != nil {
				t.Fatal(err)
			}
			again := open(t, dir)
			defer again.Close()
			rotate(t, again, false)
			rotate(t, again, true)
		})
	}
}

// TestBackupKeysReplacedOften: keys that are replaced during each copy make no backup.
func TestBackupKeysReplacedOften(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	st := openStore(t, filepath.Join(state, "store"), Options{TestOnlyStep: func(step string) {
		if step == "backup_keys" {
			if _, err := k.RotateKey(t.Context(), "user", false); err != nil {
				t.Error(err)
			}
		}
	}})
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	_, err = st.Backup(t.Context(), &b, BackupOptions{StateDir: state, Recipients: []string{key.Recipient().String()}})
	if fault.ReasonOf(err) != "changed" || b.Len() > 0 {
		t.Errorf("%d bytes, %v, want reason changed", b.Len(), err)
	}
	if _, err := os.Lstat(filepath.Join(state, "store", stagingDir)); !os.IsNotExist(err) {
		t.Errorf("the staging folder: %v", err)
	}
}

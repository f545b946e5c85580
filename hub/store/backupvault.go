package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/crypt/vault"
	"palyra/internal/fault"
)

// A backup has the vault sealed as it is, in the state that the journal beside it knows last.

// stageBoth copies journal and vault of a state directory that others may be writing. The journal's
// copy may be long under way, so the vault is held for it only if it was changed meanwhile twice.
func stageBoth(ctx context.Context, state, dir string, step func(string)) (size int64, err error) {
	from, to := filepath.Join(state, "vault"), filepath.Join(dir, "vault")
	if !vault.Exists(from) {
		// The copy may know one that was made meanwhile.
		step("backup_no_vault")
		if size, err = stageJournal(ctx, state, dir); err != nil || !vault.Exists(from) {
			return size, err
		}
	}
	for try := 0; ; try++ {
		if err := os.RemoveAll(to); err != nil {
			return 0, err
		}
		copyJournal := func() (err error) {
			size, err = stageJournal(ctx, state, dir)
			return err
		}
		if try < 2 {
			if err = vault.Copy(ctx, from, to, nil); err == nil {
				err = copyJournal()
			}
		} else {
			err = vault.Copy(ctx, from, to, copyJournal)
		}
		if err != nil {
			return 0, err
		}
		if err = checkVault(dir, filepath.Join(state, "trust")); err == nil || !errors.Is(err, fault.ErrRolledBack) || try == 2 {
			return size, err
		}
	}
}

// checkVault compares vault and journal below dir.
func checkVault(dir, trust string) error {
	t, err := receipt.LoadTrust(trust)
	if err != nil {
		return err
	}
	j, err := journal.OpenReader(filepath.Join(dir, "journal"))
	if err != nil {
		return err
	}
	defer j.Close()
	return vault.CheckCopy(filepath.Join(dir, "vault"), j.Entries(0, j.Size()), t)
}

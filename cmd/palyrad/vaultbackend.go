package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"palyra/crypt/keyring/backend/record"
	"palyra/hub"
)

// examineVault says where the identity is kept that opens the vault of a state directory, and what
// is wrong with that. Without a vault there is no finding. It opens nothing.
func examineVault(state string) []hub.Finding {
	dir := filepath.Join(state, "vault")
	f := hub.Finding{Name: "vault_identity", Answer: "yes", How: "the record in the vault's folder", Needed: []string{}}
	if _, err := os.Lstat(filepath.Join(dir, "head")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r, err := record.Read(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Answer, f.Detail = "unknown", "no backend is recorded: a passphrase opens the vault, or it is older than records"
	case err != nil:
		f.Answer, f.Detail = "no", err.Error()
		f.Cost, f.Fix = "the vault opens with --key or --passphrase alone", "restore the file from a backup, or remove it"
	default:
		if r.At != nil {
			f.Detail = "kept by " + r.At.String()
		}
		if w := r.Warnings(dir, state); len(w) > 0 {
			f.Answer, f.Cost, f.Fix = "no", strings.Join(w, "; "), "palyra vault migrate-backend"
		}
	}
	return []hub.Finding{f}
}

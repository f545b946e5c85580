package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub/config"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
)

// vaultCredential is the name of the credential by which a service manager hands over the
// vault's identity (systemd.exec(5), LoadCredentialEncrypted).
const vaultCredential = "palyra-vault-key"

// maxIdentity bounds an identity's file, in bytes.
const maxIdentity = 4096

// vaultIdentity reads what opens the vault; nil if the configuration names nothing.
func vaultIdentity(cfg config.Vault, getenv func(string) string) (seal.Identity, error) {
	path, read := cfg.Identity, durable.ReadPrivate
	if dir := getenv("CREDENTIALS_DIRECTORY"); path == "" && filepath.IsAbs(dir) {
		// The manager's own file, which may be root's with an entry for our user.
		path, read = filepath.Join(dir, vaultCredential), durable.ReadRegular
	}
	if path == "" {
		return nil, nil
	}
	b, err := read(path, maxIdentity)
	if errors.Is(err, fs.ErrNotExist) && cfg.Identity == "" {
		return nil, nil // the service has other credentials
	}
	if err != nil {
		return nil, err
	}
	defer clear(b)
	id, err := seal.ParseIdentity(b)
	if err != nil {
		return nil, fault.New(fault.BadState, fault.ReasonOf(err), fmt.Sprintf("read the vault's identity %q", path), err)
	}
	return id, nil
}

// openVault reads the identity while that is still possible, and returns what opens the vault with
// it; nil without one. The identity stays in locked memory until the kernel is closed.
func (c *core) openVault(d *daemon, cfg *config.Config) (kernel.VaultUser, error) {
	if d.safe { // it makes no calls
		return nil, nil
	}
	id, err := vaultIdentity(cfg.Vault, lookup(d.environ))
	if err != nil || id == nil {
		return nil, err
	}
	c.closers = append(c.closers, func() error { id.Wipe(); return nil })
	dir := filepath.Join(cfg.State.Dir, "vault")
	return func(ctx context.Context, ledger vault.Ledger, use func(*vault.Vault) error) error {
		v, err := vault.Open(ctx, dir, ledger, id)
		if err != nil {
			return err
		}
		defer v.Close()
		return use(v)
	}, nil
}

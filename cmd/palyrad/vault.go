package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub/config"
	"palyra/internal/fault"
)

// vaultCredential is the name of the credential by which a service manager hands over the
// vault's identity (systemd.exec(5), LoadCredentialEncrypted).
const vaultCredential = "palyra-vault"

// vaultIdentity reads what opens the vault; nil if the configuration names nothing.
func vaultIdentity(cfg config.Vault, getenv func(string) string) (seal.Identity, error) {
	path := cfg.Identity
	if dir := getenv("CREDENTIALS_DIRECTORY"); path == "" && filepath.IsAbs(dir) {
		path = filepath.Join(dir, vaultCredential)
	}
	if path == "" {
		return nil, nil
	}
	id, err := readIdentity("vault.identity", path, getenv)
	if errors.Is(err, fs.ErrNotExist) && cfg.Identity == "" {
		return nil, nil // the service has other credentials
	}
	if f, ok := errors.AsType[*fault.Error](err); ok && errors.Is(err, fs.ErrNotExist) {
		return nil, f.WithHint("palyra vault init makes one; palyra vault verify says where yours is")
	}
	if err != nil {
		return nil, err
	}
	return id, nil
}

// vaultOpener opens the vault, which its caller closes.
type vaultOpener func(ctx context.Context, ledger vault.Ledger) (*vault.Vault, error)

// use is a kernel.VaultUser.
func (o vaultOpener) use(ctx context.Context, ledger vault.Ledger, use func(*vault.Vault) error) error {
	v, err := o(ctx, ledger)
	if err != nil {
		return err
	}
	defer v.Close()
	return use(v)
}

// openVault reads the identity while that is still possible, and returns what opens the vault with
// it; nil without one. The identity stays in locked memory until the kernel is closed.
func (c *core) openVault(d *daemon, cfg *config.Config) (vaultOpener, error) {
	if d.safe { // it makes no calls
		return nil, nil
	}
	id, err := vaultIdentity(cfg.Vault, lookup(d.environ))
	if err != nil || id == nil {
		return nil, err
	}
	c.closers = append(c.closers, func() error { id.Wipe(); return nil })
	dir := filepath.Join(cfg.State.Dir, "vault")
	return func(ctx context.Context, ledger vault.Ledger) (*vault.Vault, error) {
		return vault.Open(ctx, dir, ledger, id)
	}, nil
}

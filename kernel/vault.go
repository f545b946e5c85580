package kernel

import (
	"context"

	"palyra/crypt/receipt"
	"palyra/crypt/vault"
)

// VaultUser opens the vault, has use work on it, and closes it. Its ledger is the kernel's.
type VaultUser func(ctx context.Context, ledger vault.Ledger, use func(*vault.Vault) error) error

// UseVault opens the vault that the kernel's calls use, for what needs no call: use gives out no
// name of a secret, and no value.
func (k *Kernel) UseVault(ctx context.Context, use func(*vault.Vault) error) error {
	return k.withVault(ctx, "open vault", use)
}

// VaultLedger is the journal as the ledger of the state directory's vault. Its entries name the
// kernel's own principal.
func (k *Kernel) VaultLedger() vault.Ledger { return vaultLedger{k} }

type vaultLedger struct{ k *Kernel }

// Newest implements vault.Ledger.
func (l vaultLedger) Newest(ctx context.Context, from uint64) (*vault.Root, uint64, error) {
	j := l.k.state.journal
	if err := j.Refresh(ctx); err != nil {
		return nil, 0, err
	}
	size := j.Size()
	var root *vault.Root
	err := l.k.state.knowing(ctx, func(t *receipt.Trust) (err error) {
		root, err = vault.Newest(j.Entries(from, size), t)
		return err
	})
	return root, size, err
}

// Commit implements vault.Ledger.
func (l vaultLedger) Commit(ctx context.Context, r vault.Root) error {
	_, err := l.k.Record(ctx, Act{Act: vault.ActCommit, Principal: l.k.cfg.Principal.ID, Subject: r.Vault, Detail: r.Detail()})
	return err
}

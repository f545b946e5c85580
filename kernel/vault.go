package kernel

import (
	"context"
	"sync"

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

// vaultRoots is what this process knows of the vault's roots in the journal. Each call that uses a
// secret opens the vault twice, and the vault's own file says only every 256 entries how far it was
// read.
type vaultRoots struct {
	mu         sync.Mutex
	from, size uint64      // guarded by mu: the entries that were read
	root       *vault.Root // guarded by mu: the last one in them, nil: there is none
	at         uint64      // guarded by mu: its index
}

// Newest implements vault.Ledger. It reads no entry twice, unless it's asked for earlier ones than
// before.
func (l vaultLedger) Newest(ctx context.Context, from uint64) (*vault.Root, uint64, error) {
	j := l.k.state.journal
	if err := j.Refresh(ctx); err != nil {
		return nil, 0, err
	}
	known := &l.k.vaultRoots
	known.mu.Lock()
	defer known.mu.Unlock()
	size := j.Size()
	if from < known.from || from > known.size || size < known.size {
		known.from, known.size, known.root = from, from, nil
	}
	var root *vault.Root
	var at uint64
	err := l.k.state.knowing(ctx, func(t *receipt.Trust) (err error) {
		root, at, err = vault.Newest(j.Entries(known.size, size), t)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if root != nil {
		known.root, known.at = root, at
	}
	if known.size = size; known.root == nil || known.at < from {
		return nil, size, nil
	}
	return new(*known.root), size, nil
}

// Commit implements vault.Ledger.
func (l vaultLedger) Commit(ctx context.Context, r vault.Root) error {
	_, err := l.k.Record(ctx, Act{Act: vault.ActCommit, Principal: l.k.cfg.Principal.ID, Subject: r.Vault, Detail: r.Detail()})
	return err
}

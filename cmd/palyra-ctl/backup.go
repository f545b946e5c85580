package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
	"palyra/kernel/hub"
	"palyra/kernel/store"
)

func (a *app) backupCreate(ctx context.Context, inv *command.Invocation) (*result, error) {
	recipients := command.All[string](inv, "recipient")
	if len(recipients) == 0 {
		return nil, need(inv, "recipient")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	var info hub.BackupInfo
	if err := writeFile(inv.Operands[0], func(w io.Writer) error {
		info, err = h.Backup(ctx, hub.Caller{}, hub.BackupRequest{Recipients: recipients}, w)
		return err
	}); err != nil {
		return nil, err
	}
	return text(front.Document{"backup": info, "file": inv.Operands[0]}, "%s: %d files, %d bytes, %s\n", cell(inv.Operands[0]), info.Files, info.Bytes, cell(info.Digest)), nil
}
func (a *app) backupVerify(ctx context.Context, inv *command.Invocation) (*result, error) {
	f, unlock, err := openBackup(inv)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := store.VerifyBackup(ctx, f, unlock)
	if err != nil {
		return nil, err
	}
	return manifest("sound", m)
}

func (a *app) backupRestore(ctx context.Context, inv *command.Invocation) (*result, error) {
	dir, err := filepath.Abs(inv.Operands[1])
	if err != nil {
		return nil, fault.New(fault.Usage, "bad_file", fmt.Sprintf("find %q", inv.Operands[1]), err)
	}
	f, unlock, err := openBackup(inv)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := store.Restore(ctx, f, unlock, dir)
	if err != nil {
		return nil, err
	}
	return manifest("restored to "+dir, m)
}

// openBackup opens the backup and reads the identity that --identity names.
func openBackup(inv *command.Invocation) (*os.File, store.Unlock, error) {
	path := command.Value(inv, "identity", "")
	if path == "" {
		return nil, store.Unlock{}, need(inv, "identity")
	}
	id, err := os.ReadFile(path)
	if err != nil {
		return nil, store.Unlock{}, fault.New(fault.Usage, "bad_identity", fmt.Sprintf("read identity file %q", path), err)
	}
	f, err := os.Open(inv.Operands[0])
	if err != nil {
		return nil, store.Unlock{}, fault.New(fault.Usage, "bad_file", fmt.Sprintf("open backup %q", inv.Operands[0]), err)
	}
	return f, store.Unlock{Identities: string(id)}, nil
}

func manifest(what string, m *store.Manifest) (*result, error) {
	digest, err := m.Digest()
	if err != nil {
		return nil, err
	}
	l := newLines()
	l.row(what)
	l.row("  made", m.Created)
	l.row("  digest", digest)
	l.row("  files", len(m.Files))
	l.row("  journal", m.JournalSize, "entries")
	l.row("  private keys", m.PrivateKeys)
	return text(front.Document{"manifest": m, "digest": digest}, "%s", l), nil
}

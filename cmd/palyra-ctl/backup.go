package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/canon"
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
	l := newLines()
	l.row("written to " + inv.Operands[0])
	l.row("  sha256 of the file", info.Digest)
	l.row("  files", info.Files)
	l.row("  bytes", info.Bytes)
	return text(front.Document{"backup": info, "file": inv.Operands[0], "file_digest": info.Digest}, "%s", l), nil
}

// backupKeygen makes a key pair. The private one goes into a new file and nowhere else.
func (a *app) backupKeygen(_ context.Context, inv *command.Invocation) (*result, error) {
	path := inv.Operands[0]
	op := fmt.Sprintf("write identity file %q", path)
	identity, recipient, err := store.NewBackupKey()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fault.New(fault.Usage, "identity_exists", op, errors.New("there is a file already")).
			WithHint("a key that is replaced reads its backups no more: name another file")
	case err != nil:
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	}
	_, err = io.WriteString(f, identity)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(path)
		return nil, fault.New(fault.Unavailable, "write_failed", op, err)
	}
	return text(front.Document{"file": path, "recipient": recipient}, "%s\n", recipient), nil
}

func (a *app) backupVerify(ctx context.Context, inv *command.Invocation) (*result, error) {
	f, unlock, err := openBackup(inv)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	m, err := store.VerifyBackup(ctx, io.TeeReader(f, sum), unlock)
	if err != nil {
		return nil, err
	}
	return manifest("sound", m, f, sum)
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
	sum := sha256.New()
	m, err := store.Restore(ctx, io.TeeReader(f, sum), unlock, dir)
	if err != nil {
		return nil, err
	}
	return manifest("restored to "+dir, m, f, sum)
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

// manifest is what was read of a backup. sum has the file as far as it was read.
func manifest(what string, m *store.Manifest, f io.Reader, sum hash.Hash) (*result, error) {
	digest, err := m.Digest()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(sum, f); err != nil {
		return nil, fault.New(fault.Unavailable, "read_failed", "read backup", err)
	}
	file := canon.Digest(sum.Sum(nil))
	l := newLines()
	l.row(what)
	l.row("  sha256 of the file", file)
	l.row("  manifest", digest)
	l.row("  made", m.Created)
	l.row("  files", len(m.Files))
	l.row("  journal", m.JournalSize, "entries")
	l.row("  private keys", m.PrivateKeys)
	return text(front.Document{"manifest": m, "manifest_digest": digest, "file_digest": file}, "%s", l), nil
}

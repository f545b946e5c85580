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
	"slices"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// backupKeygen makes a key pair. The private one goes into a new file and nowhere else.
func backupKeygen(_ context.Context, inv *command.Invocation) (*front.Report, error) {
	path := inv.Operands[0]
	op := fmt.Sprintf("write identity file %q", path)
	identity, recipient, err := store.NewBackupKey()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fault.New(fault.Usage, "bad_file", op, errors.New("there is a file already")).
			WithHint("a key that is replaced reads its backups no more: name another file")
	case err != nil:
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	}
	_, err = io.WriteString(f, identity)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(path)
		return nil, fault.New(fault.Unavailable, "io_error", op, err)
	}
	return &front.Report{Text: recipient + "\n", Fields: front.Document{"file": path, "recipient": recipient}}, nil
}

func backupVerify(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
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

func backupRestore(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
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
		return nil, store.Unlock{}, front.Required(inv, "identity")
	}
	id, err := os.ReadFile(path)
	if err != nil {
		return nil, store.Unlock{}, fault.New(fault.Usage, "bad_file", fmt.Sprintf("read identity file %q", path), err).
			WithHint("name the file that palyra backup keygen or age-keygen wrote, whose public key the backup was made for")
	}
	f, err := os.Open(inv.Operands[0])
	if err != nil {
		return nil, store.Unlock{}, fault.New(fault.Usage, "bad_file", fmt.Sprintf("open backup %q", inv.Operands[0]), err)
	}
	return f, store.Unlock{Identities: string(id)}, nil
}

// manifest is what was read of a backup. sum has the file as far as it was read.
func manifest(what string, m *store.Manifest, f io.Reader, sum hash.Hash) (*front.Report, error) {
	digest, err := m.Digest()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(sum, f); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "read backup", err)
	}
	file := canon.Digest(sum.Sum(nil))
	l := front.NewLines()
	l.Row(what)
	l.Row("  sha256 of the file", file)
	l.Row("  manifest", digest)
	l.Row("  made", m.Created)
	l.Row("  files", len(m.Files))
	l.Row("  journal", m.JournalSize, "entries")
	l.Row("  private keys", m.PrivateKeys)
	l.Row("  vault", slices.ContainsFunc(m.Files, func(f store.ManifestFile) bool { return f.Path == "vault/head" }))
	return &front.Report{Text: l.String(), Fields: front.Document{"manifest": m, "manifest_digest": digest, "file_digest": file}}, nil
}

package vault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Exists reports whether there is a vault in dir.
func Exists(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, headFile))
	return err == nil
}

// Copy copies the files of the vault in dir, sealed as they are, to the new folder to: one state of
// the vault, for a backup. It opens none. While then works no process changes the vault; nil:
// nothing does.
func Copy(ctx context.Context, dir, to string, then func() error) error {
	op := fmt.Sprintf("copy vault %q", dir)
	g, err := durable.OpenGate(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Take(ctx, durable.Exclusive, patience); err != nil {
		return err
	}
	defer g.Release()
	if err := os.MkdirAll(filepath.Join(to, recordsDir), 0o700); err != nil {
		return durable.Fault(op, err)
	}
	names := []string{headFile, "backend"}
	es, err := os.ReadDir(filepath.Join(dir, recordsDir))
	if err != nil {
		return durable.Fault(op, err)
	}
	for _, e := range es {
		if !durable.IsTemp(e.Name()) {
			names = append(names, filepath.Join(recordsDir, e.Name()))
		}
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return fault.New(fault.Canceled, "canceled", op, err)
		}
		b, err := durable.ReadPrivate(filepath.Join(dir, name), maxHead)
		if name == "backend" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			return durable.Fault(op, err)
		}
	}
	if then == nil {
		return nil
	}
	return then()
}

// CheckCopy returns nil if the vault in dir, which it doesn't open, is the one that a journal knows
// last, or the change after it: what Open wants of it, too.
func CheckCopy(dir string, entries iter.Seq2[journal.Record, error], t *receipt.Trust) error {
	op := fmt.Sprintf("check vault %q", dir)
	b, err := durable.ReadPrivate(filepath.Join(dir, headFile), maxHead)
	if err != nil {
		return err
	}
	var h head
	if err := canon.Decode(b, &h, canon.Limits{Bytes: maxHead}); err != nil || !h.known() {
		return fault.New(fault.Integrity, "store_corrupt", op, errors.New("no head of version 1 or 2"))
	}
	last, _, err := Newest(entries, t)
	if err != nil {
		return err
	}
	now := Root{h.Vault, h.Epoch, canon.Sum(b)}
	switch {
	case last != nil && *last == now,
		last == nil && now.Epoch == 1 && h.Previous.IsZero(),
		last != nil && last.Vault == now.Vault && now.Epoch == last.Epoch+1 && h.Previous == last.Digest:
		return nil
	case last == nil:
		return fault.New(fault.Integrity, "rolled_back", op, fmt.Errorf("the journal doesn't know it at epoch %d", now.Epoch))
	}
	return fault.New(fault.Integrity, "rolled_back", op, fmt.Errorf("its head is %s at epoch %d; the journal knows %s at epoch %d", now.Vault, now.Epoch, last.Vault, last.Epoch))
}

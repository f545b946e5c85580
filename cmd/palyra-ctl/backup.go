package main

import (
	"context"
	"io"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
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
		info, err = hub.Backup.Do(ctx, h, hub.Caller{}, hub.BackupTo{BackupRequest: hub.BackupRequest{Recipients: recipients}, W: w})
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

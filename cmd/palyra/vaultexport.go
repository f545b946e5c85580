package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/settings"
	"palyra/crypt/vault"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// vaultExport writes secrets to a new file, for a recipient of age.
func (a *app) vaultExport(ctx context.Context, inv *command.Invocation) (_ *front.Report, err error) {
	in := &toolproto.VaultExportInput{To: command.Value(inv, "to", ""), Refs: inv.Operands[1:]}
	if in.To == "" {
		return nil, fault.New(fault.Usage, "bad_command", "vault export", errors.New("--to is missing")).WithHint("--to age1..., as age-keygen prints it")
	}
	if _, err := vault.ParseExportRecipient(in.To); err != nil {
		return nil, err
	}
	for _, s := range in.Refs {
		if _, err := vault.ParseRef(s); err != nil {
			return nil, err
		}
	}
	path := operand(inv)
	f, err := settings.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	done, out, err := a.vaultCall(ctx, inv, toolproto.VaultExport, in, tool.Beside{})
	if err != nil {
		return nil, err
	}
	if err := f.Keep(done.File); err != nil {
		return nil, err
	}
	var text strings.Builder
	all := []front.Document{}
	for _, i := range done.List {
		fmt.Fprintf(&text, "exported version %d of %s\n", i.Version, i.Ref)
		all = append(all, vaultRow(i))
	}
	return &front.Report{Text: text.String(), Fields: front.Document{"to": in.To, "file": path, "secrets": all, "call_id": out.CallID, "log_index": out.LogIndex}}, nil
}

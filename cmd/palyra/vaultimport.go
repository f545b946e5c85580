package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/settings"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// vaultImport stores the settings of a file, all or none, by one call of vault.import.
func (a *app) vaultImport(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	f := settings.Format{Name: command.Value(inv, "format", ""), Scope: command.Value(inv, "scope", "global")}
	switch {
	case f.Name == "":
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("--format is missing")).WithHint("--format dotenv, --format env, or --format export")
	case f.Name == settings.Export && inv.Has("scope"):
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("an export has the scopes of its secrets, and --scope is for others"))
	case f.Name != settings.Export && inv.Has("identity"):
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("--identity opens an export"))
	}
	if _, err := vault.ParseRef("vault://" + f.Scope + "/k"); err != nil {
		return nil, err
	}
	op := fmt.Sprintf("import %q", operand(inv))
	all, err := a.settings(inv, op, f)
	if err != nil {
		return nil, err
	}
	defer all.Wipe()
	in := &toolproto.VaultImportInput{}
	var values []*seal.Secret
	defer func() {
		for _, v := range values {
			v.Wipe()
		}
	}()
	for _, s := range all {
		r, err := vault.ParseRef(s.Ref)
		if err != nil {
			return nil, err
		}
		in.Refs, in.Expires, values = append(in.Refs, r.String()), append(in.Expires, s.When()), append(values, seal.NewSecret(s.Value))
	}
	dry := inv.Has("dry-run")
	var text strings.Builder
	rows := []front.Document{}
	fields := front.Document{"dry_run": dry}
	for i, v := range values {
		d := front.Document{"ref": in.Refs[i], "size": len(v.Bytes()), "short": len(v.Bytes()) < vault.MinScrubbed}
		if dry {
			fmt.Fprintf(&text, "would store %s, %d bytes\n", in.Refs[i], len(v.Bytes()))
		}
		rows = append(rows, d)
	}
	if !dry {
		done, out, err := a.vaultCall(ctx, inv, toolproto.VaultImport, in, tool.Beside{Values: values})
		if err != nil {
			return nil, err
		}
		for i, x := range done.List {
			fmt.Fprintf(&text, "stored version %d of %s\n", x.Version, x.Ref)
			rows[i]["version"] = x.Version
		}
		fields["call_id"], fields["log_index"] = out.CallID, out.LogIndex
	}
	for _, d := range rows {
		if d["short"] == true {
			fmt.Fprintf(&text, "%s has less than %d bytes: short enough to be guessed\n", d["ref"], vault.MinScrubbed)
		}
	}
	if !dry && operand(inv) != "-" {
		fmt.Fprintf(&text, "%s has the values still\n", front.OneLine(operand(inv)))
	}
	fields["secrets"] = rows
	return &front.Report{Text: text.String(), Fields: fields}, nil
}

// settings reads the file, which --identity says is encrypted.
func (a *app) settings(inv *command.Invocation, op string, f settings.Format) (settings.Settings, error) {
	key := command.Value(inv, "identity", "")
	if key == "" {
		return settings.Read(op, operand(inv), a.stdin, f)
	}
	id, err := durable.ReadPrivate(key, maxKeyLine)
	if err != nil {
		return nil, err
	}
	defer clear(id)
	in := a.stdin
	if operand(inv) != "-" {
		file, err := settings.OpenRegular(op, operand(inv))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	b, err := vault.OpenExport(in, string(id), settings.MaxExport)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return settings.Parse(op, b, f)
}

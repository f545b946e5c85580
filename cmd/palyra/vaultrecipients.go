package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

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

// vaultIdentity makes an identity for a vault of any host, and prints its public line.
func (a *app) vaultIdentity(inv *command.Invocation) (*front.Report, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(operand(inv))
	if err != nil {
		return nil, durable.Fault("write identity", err)
	}
	id, pub, err := newIdentity(path, state, "new")
	if err != nil {
		return nil, err
	}
	id.Wipe()
	line := string(pub.Encode())
	return &front.Report{Text: line, Fields: front.Document{"identity": path, "recipient": line[:len(line)-1], "id": pub.ID().String()}}, nil
}

// vaultRecipients lists recipients, adds one, or removes some.
func (a *app) vaultRecipients(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	kind := command.Value(inv, "type", seal.TypeHPKE)
	verb, words := operand(inv), inv.Operands[min(1, len(inv.Operands)):]
	misplaced := ""
	switch {
	case verb != "add" && inv.Has("type"):
		misplaced = "type"
	case verb != "add" && verb != "rm" && inv.Has("policy"):
		misplaced = "policy"
	case verb != "add" && verb != "rm" && inv.Has("receipt"):
		misplaced = "receipt"
	}
	switch {
	case misplaced != "":
		return nil, fault.New(fault.Usage, "bad_command", "vault recipients", fmt.Errorf("--%s isn't for this", misplaced))
	case (verb == "" || verb == "ls") && len(words) == 0:
		return a.recipientsLs(ctx, inv)
	case verb == "add" && len(words) == 2:
		return a.recipientsAdd(ctx, inv, kind, words[0], words[1])
	case verb == "rm" && len(words) > 0:
		return a.rotate(ctx, inv, words, false)
	}
	return nil, fault.New(fault.Usage, "bad_command", "vault recipients", errors.New("want ls, add LABEL FILE, or rm LABEL")).
		WithHint("palyra help vault recipients")
}

func (a *app) recipientsLs(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	t := front.NewTable("LABEL", "TYPE", "ID").Keep(0, 2)
	all := []front.Document{}
	err := a.openVault(ctx, inv, func(v *vault.Vault) error {
		for _, r := range v.Recipients() {
			d := front.Document{"label": r.Label, "type": r.Type}
			id := "-"
			if !r.ID.IsZero() {
				id = r.ID.String()
				d["id"] = id
			}
			t.Row(r.Label, r.Type, id)
			all = append(all, d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: t.Text(a.width(inv)), Fields: front.Document{"recipients": all}}, nil
}

func (a *app) recipientsAdd(ctx context.Context, inv *command.Invocation, kind, label, path string) (*front.Report, error) {
	in := &toolproto.VaultAddRecipientInput{Label: label, Type: kind}
	var to seal.Recipient
	if kind == seal.TypePassphrase {
		p, err := labelled(label, path)
		if err != nil {
			return nil, err
		}
		defer p.Wipe()
		to = p
	} else {
		p, err := publicKey(label, path)
		if err != nil {
			return nil, err
		}
		to, in.ID = p, p.ID().String()
	}
	_, out, err := a.vaultCall(ctx, inv, toolproto.VaultAddRecipient, in, tool.Beside{Recipient: to})
	if err != nil {
		return nil, err
	}
	d := front.Document{"label": label, "type": kind, "call_id": out.CallID, "log_index": out.LogIndex}
	if in.ID != "" {
		d["id"] = in.ID
	}
	return &front.Report{Text: label + " opens the vault, too\n", Fields: d}, nil
}

// publicKey reads a recipient's line. It isn't secret, so its file may be anyone's.
func publicKey(label, path string) (*seal.PublicKey, error) {
	op := fmt.Sprintf("read recipient %q", path)
	f, err := settings.OpenRegular(op, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyLine))
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	return seal.ParseRecipient(label, b)
}

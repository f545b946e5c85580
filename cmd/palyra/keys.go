package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
)

// open opens the kernel, and says so if that lets the signing keys lie plain.
func (a *app) open(ctx context.Context, cfg kernel.Config) (*kernel.Kernel, error) {
	k, err := kernel.Open(ctx, cfg)
	if err == nil && k.FirstPlain() {
		io.WriteString(a.stderr, "palyra: note: this first use leaves the signing keys in plain files; palyra keys seal seals them\n")
	}
	return k, err
}

// keysLs lists the keys of a trust directory, which needs no private one.
func (a *app) keysLs(inv *command.Invocation) (*front.Report, error) {
	dir := command.Value(inv, "trust", "")
	if dir == "" {
		state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(state, "trust")
	}
	att, log, err := receipt.LoadHistory(dir)
	if err != nil {
		return nil, err
	}
	return a.keysReport(inv, "", att, log), nil
}

func (a *app) keysRotate(ctx context.Context, inv *command.Invocation) (_ *front.Report, err error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	if err := a.checkKey(inv); err != nil {
		return nil, err
	}
	k, err := a.open(ctx, kernel.Config{Unlock: a.unlock(inv), StateDir: state})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	rotate := k.RotateKey
	if inv.Has("log") {
		rotate = k.RotateLogKey
	}
	if _, err := rotate(ctx, k.Self(), inv.Has("introduce")); err != nil {
		return nil, err
	}
	text := "the new key is in force; give verifiers the trust directory again\n"
	if inv.Has("introduce") {
		text = "the new key is introduced; give verifiers the trust directory, then palyra keys rotate\n"
	}
	return a.keysReport(inv, text, k.Keys(), k.LogKeys()), nil
}

func (a *app) keysReport(inv *command.Invocation, text string, histories ...*keyring.History) *front.Report {
	t := front.NewTable("KEY", "SIGNS", "STATE", "ENTRIES", "SINCE", "FILE").Keep(0, 5)
	keys := []front.Document{}
	for _, h := range histories {
		for i := range h.Keys {
			k := &h.Keys[i]
			entries := fmt.Sprintf("%d-", k.From)
			d := front.Document{"hint": k.Hint, "signs": h.Signs(), "state": h.StateOf(k), "from": k.From, "start": k.ValidFor.Start, "file": h.FileOf(k)}
			if k.To != nil {
				entries += fmt.Sprint(*k.To - 1)
				d["to"], d["end"] = *k.To, k.ValidFor.End
			}
			since := k.ValidFor.Start
			if since == keyring.Epoch {
				since = "the beginning"
			}
			t.Row(k.Hint, h.Signs(), h.StateOf(k), entries, since, h.FileOf(k))
			keys = append(keys, d)
		}
	}
	return &front.Report{Text: text + t.Text(a.width(inv)), Fields: front.Document{"keys": keys}}
}

// unlock opens sealed signing keys with the identity of --key, or with that of the vault.
func (a *app) unlock(inv *command.Invocation) keyring.Unlock {
	return func() (seal.Identity, error) { return a.ownIdentity(inv) }
}

// checkKey refuses a --key that is no identity, also where no key is sealed yet.
func (a *app) checkKey(inv *command.Invocation) error {
	if !inv.Has("key") {
		return nil
	}
	id, err := a.ownIdentity(inv)
	if err == nil {
		id.Wipe()
	}
	return err
}

func (a *app) ownIdentity(inv *command.Invocation) (*seal.IdentityKey, error) {
	path, err := a.vaultKey(inv)
	if err != nil {
		return nil, err
	}
	b, err := durable.ReadPrivate(path, maxKeyLine)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Denied, "keys_locked", fmt.Sprintf("read identity %q", path), errors.New("there is none")).
			WithHint("--key FILE names another; palyra vault identity FILE makes one")
	}
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return seal.ParseIdentity(b)
}

func (a *app) keysSeal(ctx context.Context, inv *command.Invocation) (_ *front.Report, err error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	if err := a.checkKey(inv); err != nil {
		return nil, err
	}
	var to []*seal.PublicKey
	if inv.Command.Name == "keys seal" {
		id, err := a.ownIdentity(inv)
		if err != nil {
			return nil, err
		}
		own, err := id.Recipient("owner")
		id.Wipe()
		if err != nil {
			return nil, err
		}
		to = append(to, own)
		for _, r := range command.All[string](inv, "recipient") {
			label, path, ok := strings.Cut(r, "=")
			if !ok || seal.CheckLabel(label) != nil {
				return nil, fault.New(fault.Usage, "invalid_input", "keys seal", fmt.Errorf("--recipient %q: want LABEL=FILE", r)).WithHint("palyra help keys seal")
			}
			p, err := publicKey(label, path)
			if err != nil {
				return nil, err
			}
			to = append(to, p)
		}
	}
	k, err := kernel.Open(ctx, kernel.Config{Unlock: a.unlock(inv), StateDir: state})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	if err := k.SealKeys(ctx, k.Self(), to); err != nil {
		return nil, err
	}
	labels := []string{}
	for _, p := range to {
		labels = append(labels, p.Label())
	}
	text := "the signing keys are sealed for " + strings.Join(labels, ", ") + "\n"
	if len(to) == 0 {
		text = "the signing keys are plain\n"
	}
	return &front.Report{Text: text, Fields: front.Document{"recipients": labels}}, nil
}

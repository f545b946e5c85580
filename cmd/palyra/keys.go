package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/kernel"
)

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
	h, err := receipt.LoadHistory(dir)
	if err != nil {
		return nil, err
	}
	return a.keysReport(inv, h, ""), nil
}

func (a *app) keysRotate(ctx context.Context, inv *command.Invocation) (_ *front.Report, err error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	k, err := kernel.Open(ctx, kernel.Config{StateDir: state})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	h, err := k.RotateKey(ctx, k.Self(), inv.Has("introduce"))
	if err != nil {
		return nil, err
	}
	text := "the new key is in force; give verifiers the trust directory again\n"
	if inv.Has("introduce") {
		text = "the new key is introduced; give verifiers the trust directory, then palyra keys rotate\n"
	}
	return a.keysReport(inv, h, text), nil
}

func (a *app) keysReport(inv *command.Invocation, h *keyring.History, text string) *front.Report {
	t := front.NewTable("KEY", "STATE", "ENTRIES", "SINCE", "FILE").Keep(0, 4)
	keys := []front.Document{}
	for i := range h.Keys {
		k := &h.Keys[i]
		entries := fmt.Sprintf("%d-", k.From)
		d := front.Document{"hint": k.Hint, "state": h.StateOf(k), "from": k.From, "start": k.ValidFor.Start, "file": h.FileOf(k)}
		if k.To != nil {
			entries += fmt.Sprint(*k.To - 1)
			d["to"], d["end"] = *k.To, k.ValidFor.End
		}
		since := k.ValidFor.Start
		if since == keyring.Epoch {
			since = "the beginning"
		}
		t.Row(k.Hint, h.StateOf(k), entries, since, h.FileOf(k))
		keys = append(keys, d)
	}
	return &front.Report{Text: text + t.Text(a.width(inv)), Fields: front.Document{"keys": keys}}
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel/account"
)

// trust loads the keys to verify against: --trust, else those that the state
// directory exports.
func (a *app) trust(inv *command.Invocation) (*receipt.Trust, error) {
	dir := command.Value(inv, "trust", "")
	if dir == "" {
		state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(state, "trust")
	}
	t, err := receipt.LoadTrust(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.BadState, "state_missing", fmt.Sprintf("load trust directory %q", dir), errors.New("there is none")).
			WithHint("give the directory with att.pub and log.vkey: --trust DIR")
	}
	return t, err
}

func readReceipt(path string) ([]byte, error) {
	b, err := durable.ReadRegular(path, receipt.MaxBundle)
	if err != nil {
		return nil, fault.New(fault.NotFound, "bad_file", "read receipt", err).
			WithHint("FILE must be a receipt as palyra exec --receipt writes it; palyra journal show lists what was journaled here")
	}
	return b, nil
}

func (a *app) attestVerify(inv *command.Invocation) (*front.Report, error) {
	b, err := readReceipt(operand(inv))
	if err != nil {
		return nil, err
	}
	t, err := a.trust(inv)
	if err != nil {
		return nil, err
	}
	v, err := receipt.Verify(b, t)
	if err != nil {
		return nil, err
	}
	s, err := account.Parse(v.Payload)
	if err != nil {
		return nil, err
	}
	var r account.Rows
	r.Add("receipt", "entry %d of %d in the journal of %s, signed by %s", v.Index, v.Size, v.Origin, v.KeyHint)
	text := s.Rows().String()
	if c := s.Call; c != nil {
		r.Add("outcome", "%s", account.Outcome(c, evidence.Decode(c.Predicate.Evidence)))
		r.Add("command", "%s", account.Quoted(c.Predicate.Capsule.Argv))
		r.Add("capsule", "%s", c.Predicate.Capsule.Digest)
		r.Add("decision", "%s by %s", c.Predicate.Decision.Effect, account.OrNone(c.Predicate.Decision.Policies))
		if y := c.Predicate.Approval; y != nil {
			r.Approval(y)
		}
		text = ""
	}
	return &front.Report{
		Text: "verified\n" + r.String() + text,
		Fields: front.Document{"verified": true, "statement": s.Document(), "log": front.Document{"origin": v.Origin, "index": v.Index, "size": v.Size,
			"root": canon.Digest(v.Root)}, "key": v.KeyHint, "outcome": v.Outcome},
	}, nil
}

func (a *app) attestShow(inv *command.Invocation) (*front.Report, error) {
	b, err := readReceipt(operand(inv))
	if err != nil {
		return nil, err
	}
	s, err := account.Unverified(b)
	if err != nil {
		return nil, err
	}
	outcome := ""
	if s.Call != nil {
		outcome = s.Call.Predicate.Outcome
	}
	return &front.Report{
		Text:   "not verified (palyra attest verify does that)\n" + s.Rows().String(),
		Fields: front.Document{"verified": false, "statement": s.Document(), "outcome": outcome},
	}, nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/receiptfile"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/certify"
)

func (a *app) sandboxCertify(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	out := command.Value(inv, "out", "")
	if err := receiptfile.Check(out); err != nil {
		return nil, err
	}
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	exe, err := a.executable()
	if err != nil {
		return nil, fault.New(fault.Refused, "helper_unusable", "find palyra-cell", err)
	}
	helper, err := cellPath(exe)
	if err != nil {
		return nil, err
	}
	// Open the state directory first: a test is useless if its result can't be kept.
	k, err := a.open(ctx, kernel.Config{Unlock: a.unlock(inv), StateDir: state, CellPath: helper})
	if err != nil {
		return nil, err
	}
	report, index, bundle, err := certificate(ctx, k, certify.Options{Cell: helper, Program: exe, Kinds: command.All[string](inv, "kind")})
	if err = errors.Join(err, k.Close()); err != nil {
		return nil, err
	}
	keep := []string{}
	if !inv.Has("kind") {
		keep = append(keep, filepath.Join(state, kernel.CertificateFile))
	}
	if out != "" {
		keep = append(keep, out)
	}
	for _, path := range keep {
		if err := durable.WriteFile(path, bundle, 0o644); err != nil {
			return nil, fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write certificate %q", path), err).
				WithHint(fmt.Sprintf("it is entry %d of the journal: palyra journal show %d", index, index))
		}
	}
	return certifyReport(report, index, bundle)
}

// certificate tests, and has the result signed and journaled.
func certificate(ctx context.Context, k *kernel.Kernel, o certify.Options) (*certify.Report, uint64, []byte, error) {
	r, err := certify.Run(ctx, o)
	if err != nil {
		return nil, 0, nil, err
	}
	index, err := k.Record(ctx, r.Act(k.Self()))
	if err != nil {
		return nil, 0, nil, err
	}
	bundle, err := k.Receipt(ctx, index)
	return r, index, bundle, err
}

func certifyReport(r *certify.Report, index uint64, bundle []byte) (*front.Report, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	out := &front.Report{Text: front.Escape(r.Text()) + fmt.Sprintf("entry %d of the journal\n", index),
		Fields: front.Document{"certificate": json.RawMessage(b), "log_index": index, "receipt": json.RawMessage(bundle)}}
	refuted := false
	for i := range r.Kinds {
		refuted = refuted || r.Kinds[i].Count(certify.Refuted) > 0
	}
	switch {
	case refuted, !r.Holds("b") && !r.Holds("c"):
		out.Exit = front.Exit(fault.New(fault.Refused, "", "", nil))
	case !r.Holds("c"), r.Open("b"), r.Open("c"):
		out.Exit = front.Findings
	}
	return out, nil
}

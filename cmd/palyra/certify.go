package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/certify"
)

var sandboxCertifyCommand = command.Command{
	Name:  "sandbox certify",
	Short: "test the sandbox here from both sides, and sign the result",
	Long: `
Makes one attempt for each mechanism of the sandbox, once outside, where it must
succeed, and once in a cell of each kind, where it must be stopped. A claim is
proven, refuted, or inconclusive with the reason, or absent on a kernel that is
older than the mechanism; a tier that this host cannot give is refused and
claims nothing. It takes seconds.

The result is signed and journaled as an administrative act, with boot id,
kernel, and the digests of both programs and of the system calls that built the
cells. Its receipt is kept in the state directory as certificate.json, and
attest verify checks it offline like any other.`,
	Flags: []command.Flag{flagState, {Name: "kind", Arg: "KIND", Repeat: true, Parse: parseKind,
		Help: "only cells of this kind: b, c.cold, c.warm or c.void; may be\ngiven more than once. Then certificate.json stays as it is"},
		{Name: "out", Arg: "FILE", Help: "also write the receipt (a Sigstore bundle) to FILE"}, flagJSON},
	Exits: []command.Exit{{Code: "0", Meaning: "nothing is refuted, and tier C can be had"}, exitUsage,
		{Code: "3", Meaning: "nothing is refuted; only tier B can be had, or a claim is\ninconclusive"}, {Code: "7", Meaning: "a claim is refuted, or no tier can be had"},
		exitIntegrity, exitBusy, exitState},
	Examples: []command.Example{
		{Line: "palyra sandbox certify", Does: "prints a table of claims and kinds of cells"},
		{Line: "palyra sandbox certify --out certificate.json", Does: "leaves a file for an auditor, who has the trust directory"},
	},
}

func (a *app) sandboxCertify(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	out := command.Value(inv, "out", "")
	if err := receiptTarget(out); err != nil {
		return nil, err
	}
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	exe, err := a.executable()
	if err != nil {
		return nil, fault.New(fault.Refused, "cell_missing", "find palyra-cell", err)
	}
	helper, err := cellPath(exe)
	if err != nil {
		return nil, err
	}
	// The state directory first: a test whose result cannot be kept is none.
	k, err := kernel.Open(ctx, kernel.Config{StateDir: state, CellPath: helper})
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
			return nil, fault.New(fault.Unavailable, "receipt_not_written", fmt.Sprintf("write certificate %q", path), err).
				WithHint(fmt.Sprintf("it is entry %d of the journal: palyra journal show %d", index, index))
		}
	}
	return certifyReport(report, index, bundle)
}

func parseKind(s string) (any, error) {
	if !slices.Contains(certify.Kinds(), s) {
		return nil, fmt.Errorf("kind %q: want one of %s", s, strings.Join(certify.Kinds(), ", "))
	}
	return s, nil
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
	bundle, err := k.Receipt(index)
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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

// elsewhere refuses flags of palyra, which reads state directories; this
// program asks palyrad.
func elsewhere(inv *command.Invocation) error {
	for _, f := range []string{"local", "state", "policy"} {
		if inv.Has(f) {
			return fault.New(fault.Usage, "bad_command", inv.Command.Name, fmt.Errorf("--%s is about a state directory, and palyrad is asked", f)).
				WithHint("palyra " + inv.Command.Name + " --local looks into this user's state directory")
		}
	}
	return nil
}

func (a *app) policyWhy(ctx context.Context, inv *command.Invocation) (*result, error) {
	if err := elsewhere(inv); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	d, err := hub.GetDecision.Do(ctx, h, hub.Caller{}, strings.ToLower(inv.Operands[0]))
	if err != nil {
		return nil, err
	}
	known := make(map[string]hub.Policy)
	for _, r := range d.Rules {
		known[r.ID] = r
	}
	l := newLines()
	l.row("decision", d.DecisionID)
	l.row("  "+d.Effect, d.Reason, "layer "+d.Layer, d.Outcome)
	l.row("  asked by", front.Principal(d.Principal), d.Time)
	if d.Tool != "" {
		l.row("  call", d.Tool, fmt.Sprintf("%q", d.Argv), d.Run)
	}
	for _, id := range d.Policies {
		if r, ok := known[id]; ok {
			l.row("  policy", id, fmt.Sprintf("%s:%d", r.File, r.Line), r.Reason)
		} else {
			l.row("  policy", id)
		}
	}
	for _, e := range d.Errors {
		l.row("  error", e)
	}
	if !d.PolicySet.IsZero() {
		l.row("  policy set", d.PolicySet)
	}
	return text(front.Document{"decision": d}, "%s%s", l, fixText(d.Fix, d.DecisionID)), nil
}

// fixText returns the change that would be needed, and how to try it.
func fixText(fix, id string) string {
	if fix == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString("a change that would allow it:\n")
	for line := range strings.SplitSeq(strings.TrimRight(fix, "\n"), "\n") {
		b.WriteString("  " + front.Escape(line) + "\n")
	}
	if strings.HasPrefix(fix, "--- ") {
		b.WriteString("what else it would change: palyra policy try --fix " + cell(id) + "\n")
	}
	return b.String()
}

func (a *app) policyExport(ctx context.Context, inv *command.Invocation) (*result, error) {
	if err := elsewhere(inv); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	id := strings.ToLower(inv.Operands[0])
	b, err := hub.ExportDecision.Do(ctx, h, hub.Caller{}, id)
	if err != nil {
		return nil, err
	}
	if inv.Has("json") && !inv.Has("out") {
		return text(front.Document{"decision_id": id, "bundle": string(b)}, ""), nil
	}
	path, err := a.deliver(inv, func(w io.Writer) error { _, err := w.Write(b); return err })
	if err != nil || path == "" {
		return &result{streamed: true}, err
	}
	return text(front.Document{"decision_id": id, "file": path}, "%s\n", cell(path)), nil
}

func (a *app) policyDiff(ctx context.Context, inv *command.Invocation) (*result, error) {
	set, err := readPolicies(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return a.replay(ctx, inv, hub.PolicyDiffQuery{Candidate: set})
}

// maxDiff bounds a diff, in bytes.
const maxDiff = 8 << 20

func (a *app) policyTry(ctx context.Context, inv *command.Invocation) (*result, error) {
	var q hub.PolicyDiffQuery
	var err error
	given := 0
	for _, f := range []string{"candidate", "diff", "fix"} {
		if inv.Has(f) {
			given++
		}
	}
	if given != 1 {
		return nil, fault.New(fault.Usage, "bad_command", "policy try", errors.New("want one of --candidate, --diff and --fix")).WithHint("see palyra help policy try")
	}
	switch {
	case inv.Has("candidate"):
		q.Candidate, err = readPolicies(command.Value(inv, "candidate", ""))
	case inv.Has("diff"):
		q.Diff, err = a.readDiff(command.Value(inv, "diff", ""))
	default:
		q.Fix = strings.ToLower(command.Value(inv, "fix", ""))
	}
	if err != nil {
		return nil, err
	}
	return a.replay(ctx, inv, q)
}

func (a *app) readDiff(name string) (string, error) {
	in := a.stdin
	op := fmt.Sprintf("read diff %q", name)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fault.New(fault.Usage, "bad_file", op, err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxDiff+1))
	switch {
	case err != nil:
		return "", fault.New(fault.Usage, "bad_file", op, err)
	case len(b) > maxDiff:
		return "", fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", maxDiff))
	}
	return string(b), nil
}

func (a *app) replay(ctx context.Context, inv *command.Invocation, q hub.PolicyDiffQuery) (*result, error) {
	if err := elsewhere(inv); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	q.Last = int(command.Value(inv, "last", int64(0)))
	d, err := hub.DiffPolicy.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return nil, err
	}
	l := newLines()
	l.row(fmt.Sprintf("%d decisions made again, %d skipped, %d would change, %d stay for another reason", d.Replayed, d.Skipped, len(d.Changed), d.Same))
	t := front.NewTable("DECISION", "TIME", "CHANGE", "BY", "TOOL", "ARGUMENTS").Keep(0)
	for _, c := range d.Changed {
		t.Row(fmt.Sprintf("%.12s", c.DecisionID), c.Time, c.Before.Effect+" -> "+c.After.Effect, strings.Join(c.After.Policies, ","), c.Tool, fmt.Sprintf("%q", c.Argv))
	}
	r := text(front.Document{"diff": d}, "%s", l)
	if len(d.Changed) > 0 {
		r.Text += a.table(inv, t)
	}
	if len(d.Changed) > 0 {
		r.Exit = front.Findings
	}
	return r, nil
}

// A policy directory is small; more than this is not one.
const (
	maxPolicyFiles = 1000
	maxPolicyBytes = 8 << 20
)

// readPolicies reads a policy directory as it is; the daemon judges it.
func readPolicies(dir string) (hub.PolicySet, error) {
	set := hub.PolicySet{Files: map[string]string{}}
	op := fmt.Sprintf("read policy directory %q", dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return set, fault.New(fault.Usage, "bad_file", op, err).
			WithHint("name an existing directory with *.cedar files, or leave it out for the built-in set")
	}
	total := 0
	for _, e := range entries {
		if e.IsDir() || e.Name()[0] == '.' {
			continue
		}
		path := filepath.Join(dir, e.Name())
		fi, err := os.Stat(path) // follows links, as palyra does within the directory
		if err == nil && !fi.Mode().IsRegular() {
			err = fmt.Errorf("%q is not a regular file", e.Name()) // a FIFO would be waited for
		}
		var b []byte
		if err == nil {
			b, err = os.ReadFile(path)
		}
		if err != nil {
			return set, fault.New(fault.Usage, "bad_file", op, err).
				WithHint("name an existing directory with *.cedar files, or leave it out for the built-in set")
		}
		set.Files[e.Name()] = string(b)
		if total += len(b); total > maxPolicyBytes || len(set.Files) > maxPolicyFiles {
			return set, fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d files or %d bytes", maxPolicyFiles, maxPolicyBytes))
		}
	}
	return set, nil
}

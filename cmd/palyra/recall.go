package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"palyra/authz/policy"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/account"
)

// The commands that look back at a state directory's recorded decisions: why, diff, try,
// export. Without --local or --state they ask palyrad (palyra-ctl).

// looksBack reports whether a command reads recorded decisions.
func looksBack(name string) bool {
	return name == "policy why" || name == "policy diff" || name == "policy try" || name == "policy export"
}

// here reports whether a command that looks back, or is about layers or keys, is about this user's
// or the named state directory and not about palyrad. palyra looks for a decision that is named by
// its id alone here first: an id is of one journal only.
func (a *app) here(inv *command.Invocation) bool {
	switch {
	case strings.HasPrefix(inv.Command.Name, "changes "):
		return a.layerHere(inv)
	case strings.HasPrefix(inv.Command.Name, "vault "):
		return a.vaultHere(inv)
	case strings.HasPrefix(inv.Command.Name, "keys "):
		return !inv.Has("socket") && !inv.Has("url") && !inv.Has("token-file") && !inv.Has("device")
	case !looksBack(inv.Command.Name) || inv.Has("socket") || inv.Has("url") || inv.Has("device"):
		return false
	case inv.Has("local") || inv.Has("state"):
		return true
	case inv.Command.Name != "policy why" && inv.Command.Name != "policy export":
		return false
	}
	_, err := a.decision(inv, inv.Operands[0])
	return err == nil
}

// recall opens the journal of the state directory for reading.
func (a *app) recall(inv *command.Invocation) (*journal.Reader, error) {
	dir, err := a.journalDir(inv)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("open journal %q", dir), errors.New("no call was made with this state directory")).
			WithHint("without --local and --state palyrad is asked")
	}
	return journal.OpenReader(dir)
}

// decision finds a decision in the journal of the state directory.
func (a *app) decision(inv *command.Invocation, id string) (kernel.Decided, error) {
	r, err := a.recall(inv)
	if err != nil {
		return kernel.Decided{}, err
	}
	defer r.Close()
	return kernel.FindDecision(r.Entries, r.Size(), r.Size(), id)
}

func (a *app) policyWhy(inv *command.Invocation) (*front.Report, error) {
	d, err := a.decision(inv, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	set, err := loadPolicy(command.Value(inv, "policy", ""))
	if err != nil {
		return nil, err
	}
	p := &d.Statement.Predicate
	var gone string // why there's no fix
	if p.Decision.Fix, err = d.Fix(set); err != nil {
		gone = fmt.Sprintf("no change can be offered: %v", err)
		if hint := fault.HintOf(err); hint != "" {
			gone += "; " + hint
		}
	}
	rules := []policy.Info{}
	if set.Digest() == p.Decision.PolicySet {
		for _, id := range p.Decision.Policies {
			if info, ok := set.Policy(id); ok {
				rules = append(rules, info)
			}
		}
	}
	outcome := p.Outcome
	if outcome == "" {
		outcome = "under way"
	}
	var b account.Rows
	b.Add("outcome", "%s (entry %d of the journal)", outcome, d.Index)
	b.Add("decision", "%s: %s, layer %s", p.Decision.Effect, p.Decision.Reason, layer(p))
	b.Add("asked by", "%s, %s", p.Principal, p.Time)
	if p.Tool != kernel.ToolRun {
		b.Add("tool", "%s", p.Tool)
	}
	b.Add("command", "%s", account.Quoted(p.Capsule.Argv))
	b.Add("capsule", "%s", p.Capsule.Digest)
	text := "decision " + front.Escape(d.ID()) + "\n" + b.String() + determiningOf(&p.Decision, rules)
	if gone != "" {
		text += "  " + front.Escape(gone) + "\n"
	}
	if isDiff(p.Decision.Fix) {
		text += fmt.Sprintf("what else it would change: palyra policy try --fix %s %s\n", d.ID(), place(inv))
	}
	return &front.Report{Text: text, Fields: front.Document{"decision": p.Decision, "layer": layer(p), "rules": rules, "call_id": p.CallID, "outcome": p.Outcome,
		"tool": p.Tool, "principal": p.Principal, "time": p.Time, "argv": p.Capsule.Argv, "capsule": p.Capsule.Digest, "log_index": d.Index,
		"session": p.SessionID, "run": p.RunID}}, nil
}

// place returns the flags with which an invocation named its journal and policies.
func place(inv *command.Invocation) string {
	where := "--local"
	if s := command.Value(inv, "state", ""); s != "" {
		where = "--state " + front.Escape(front.OneLine(s))
	}
	if s := command.Value(inv, "policy", ""); s != "" {
		where += " --policy " + front.Escape(front.OneLine(s))
	}
	return where
}

// layer returns the layer that said no to a call, or "policy".
func layer(p *receipt.Predicate) string {
	switch p.Outcome {
	case receipt.NotApproved:
		return "approval"
	case receipt.Refused:
		return "isolation"
	}
	return "policy"
}

// determiningOf is determining for a recorded decision; rules are those of its
// policies of which more than the id is known.
func determiningOf(d *receipt.Decision, rules []policy.Info) string {
	var r account.Rows
	known := make(map[string]policy.Info)
	for _, i := range rules {
		known[i.ID] = i
	}
	for _, id := range d.Policies {
		if i, ok := known[id]; ok {
			r.Add("policy", "%s: %s (%s:%d)", id, orElse(i.Reason, i.Effect), i.File, i.Line)
		} else {
			r.Add("policy", "%s (of another policy set than is looked at: --policy DIR)", id)
		}
	}
	for _, e := range d.Errors {
		r.Add("error", "%s", e)
	}
	r.Add("policy set", "%s", d.PolicySet)
	return r.String() + fixText(d.Fix)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// isDiff reports whether a fix can be applied and isn't a comment.
func isDiff(fix string) bool { return strings.HasPrefix(fix, "--- ") }

// fixText returns a fix for people.
func fixText(fix string) string {
	if fix == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString("  a change that would allow it:\n")
	for l := range strings.SplitSeq(strings.TrimRight(fix, "\n"), "\n") {
		fmt.Fprintf(&b, "    %s\n", front.Escape(l))
	}
	return b.String()
}

func (a *app) policyDiff(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	candidate, err := policy.Load(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	base, err := loadPolicy(command.Value(inv, "policy", ""))
	if err != nil {
		return nil, err
	}
	return a.replay(ctx, inv, base, candidate)
}

func (a *app) policyTry(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	base, err := loadPolicy(command.Value(inv, "policy", ""))
	if err != nil {
		return nil, err
	}
	candidate, err := a.candidate(inv, base)
	if err != nil {
		return nil, err
	}
	return a.replay(ctx, inv, base, candidate)
}

// candidate returns the set that exactly one of three flags names.
func (a *app) candidate(inv *command.Invocation, base *policy.Set) (*policy.Set, error) {
	given := 0
	for _, f := range []string{"candidate", "diff", "fix"} {
		if inv.Has(f) {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, fault.New(fault.Usage, "bad_command", "policy try", errors.New("want one of --candidate, --diff and --fix")).WithHint("see palyra help policy try")
	case inv.Has("candidate"):
		return policy.Load(command.Value(inv, "candidate", ""))
	case inv.Has("diff"):
		diff, err := a.readDiff(command.Value(inv, "diff", ""))
		if err != nil {
			return nil, err
		}
		return base.Patch(diff)
	}
	d, err := a.decision(inv, command.Value(inv, "fix", ""))
	if err != nil {
		return nil, err
	}
	fix, err := d.Fix(base)
	if err != nil {
		return nil, err
	}
	if !isDiff(fix) {
		return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("try the fix of decision %.12s", d.ID()), errors.New("it has none that can be applied")).
			WithHint("see palyra policy why " + d.ID() + " " + place(inv))
	}
	return base.Patch([]byte(fix))
}

// maxDiff bounds a diff, in bytes. It is the bound of a policy directory.
const maxDiff = 16 << 20

func (a *app) readDiff(name string) ([]byte, error) {
	in := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.New(fault.Usage, "bad_file", fmt.Sprintf("read diff %q", name), err)
		}
		defer f.Close()
		in = f
	}
	op := fmt.Sprintf("read diff %q", name)
	b, err := io.ReadAll(io.LimitReader(in, maxDiff+1))
	switch {
	case err != nil:
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	case len(b) > maxDiff:
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", maxDiff))
	}
	return b, nil
}

func (a *app) replay(ctx context.Context, inv *command.Invocation, base, candidate *policy.Set) (*front.Report, error) {
	r, err := a.recall(inv)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	res, err := kernel.Replay(ctx, r.Entries, r.Size(), int(command.Value(inv, "last", int64(100))), base, candidate)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d decisions made again, %d skipped, %d would change, %d stay for another reason\n", res.Decided, res.Skipped, len(res.Changed), res.Same)
	changed := []front.Document{}
	t := front.NewTable("DECISION", "TIME", "CHANGE", "BY", "ARGUMENTS").Keep(0)
	for _, c := range res.Changed {
		p := &c.Statement.Predicate
		t.Row(cut(c.ID(), 12), p.Time, fmt.Sprintf("%s -> %s", c.Before.Effect, c.After.Effect), strings.Join(c.After.Policies, ","), account.Quoted(p.Capsule.Argv))
		changed = append(changed, front.Document{"decision_id": c.ID(), "call_id": p.CallID, "log_index": c.Index, "time": p.Time, "principal": p.Principal,
			"tool": p.Tool, "argv": p.Capsule.Argv, "run": p.RunID, "before": verdictFields(&c.Before), "after": verdictFields(&c.After)})
	}
	if len(changed) > 0 {
		b.WriteString(t.Text(a.width(inv)))
	}
	rep := &front.Report{Text: b.String(), Fields: front.Document{"from": base.Digest(), "to": candidate.Digest(), "replayed": res.Decided,
		"skipped": res.Skipped, "same": res.Same, "changed": changed}}
	if len(changed) > 0 {
		rep.Exit = front.Findings
	}
	return rep, nil
}

// width returns the width of the output, 0 if nothing should be cut.
func (a *app) width(inv *command.Invocation) int {
	if inv.Has("wide") {
		return 0
	}
	return terminal.Columns(a.stdout)
}

// cut returns the beginning of s.
func cut(s string, n int) string { return s[:min(n, len(s))] }

func verdictFields(d *policy.Decision) front.Document {
	return front.Document{"effect": d.Effect, "reason": d.Reason, "policies": append([]string{}, d.Policies...)}
}

func (a *app) policyExport(inv *command.Invocation) (*front.Report, error) {
	d, err := a.decision(inv, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	set, err := loadPolicy(command.Value(inv, "policy", ""))
	if err != nil {
		return nil, err
	}
	bundle, err := kernel.Export(&d, set)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := front.WriteJSON(&text, bundle, "  "); err != nil {
		return nil, fault.New(fault.Internal, "internal", "export decision", err)
	}
	doc := text.Bytes()
	path := command.Value(inv, "out", "")
	if path == "" && !inv.Has("json") {
		return &front.Report{Text: string(doc)}, nil
	}
	fields := front.Document{"decision_id": d.ID(), "policy_set": set.Digest(), "file": path}
	if path == "" {
		fields["bundle"] = bundle
		return &front.Report{Fields: fields}, nil
	}
	if path, err = filepath.Abs(path); err == nil {
		err = durable.WriteFile(path, doc, 0o600)
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write bundle %q", path), err)
	}
	return &front.Report{Text: front.Escape(path) + "\n", Fields: fields}, nil
}

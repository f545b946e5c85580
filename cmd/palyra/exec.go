package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/call/diagnosis"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/receiptfile"
	"palyra/cmd/internal/terminal"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate/cache"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/account"
)

// exec is palyra exec: flags become a proposal, an outcome becomes a status.
func (a *app) exec(ctx context.Context, inv *command.Invocation) int {
	return a.execute(ctx, inv, nil, func(*kernel.Outcome) {})
}

// execute is exec with files for the program's HOME, if that's a cache, and with words to say after
// the call.
func (a *app) execute(ctx context.Context, inv *command.Invocation, home []cache.File, say func(*kernel.Outcome)) int {
	lavish()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Output goes through as it comes, or is held for the document.
	var held [2]bytes.Buffer
	stdio := kernel.IO{Stdout: &held[0], Stderr: &held[1]}
	if !inv.Has("json") {
		gone := func() { cancel(signalError{syscall.SIGPIPE}) }
		stdout, stderr := a.stdout, a.stderr
		if inv.Has("raw") {
			stdout, stderr = terminal.Raw(stdout), terminal.Raw(stderr)
		}
		if inv.Has("tty") {
			if loan := a.lend(ctx, inv, &stdio, cancel); loan != nil {
				defer loan.Return()
				stdout = loan
			}
		}
		stdio.Stdout = &pipeWriter{w: stdout, broken: gone}
		stdio.Stderr = &pipeWriter{w: stderr, broken: gone}
	}
	var out *kernel.Outcome
	var set *policy.Set
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err == nil {
		defer kept.Close()
		out, set, err = a.call(ctx, inv, stdio, home)
	}
	status := execStatus(ctx, out, err)
	fix := ""
	if out != nil {
		if shown := out.Outcome == receipt.Denied || out.Outcome == receipt.NotApproved || inv.Has("json"); shown && out.Question != nil {
			fix = set.Fix(*out.Question)
		}
		io.WriteString(a.stderr, told(out, set, fix, again(inv)))
		say(out)
		if werr := kept.Keep(out.Receipt, out.LogIndex, 0o644); werr != nil {
			err, status = errors.Join(err, werr), execRefused
		}
	}
	if err != nil {
		front.Complain(a.stderr, "palyra", err)
	}
	if inv.Has("json") {
		if werr := execDocument(out, err, status, &held, fix).Write(a.stdout, "exec"); werr != nil {
			front.Complain(a.stderr, "palyra", fault.New(fault.Unavailable, "io_error", "write standard output", werr))
			return execRefused
		}
	}
	return status
}

// lavish lets a process that ends after one call keep its garbage, within reason: a
// collection would take time from the call.
func lavish() {
	debug.SetMemoryLimit(256 << 20)
	debug.SetGCPercent(-1)
}

// call opens the kernel and makes the one call.
func (a *app) call(ctx context.Context, inv *command.Invocation, stdio kernel.IO, home []cache.File) (*kernel.Outcome, *policy.Set, error) {
	p, stdin, err := a.proposal(inv)
	if err != nil {
		return nil, nil, err
	}
	p.Home = home
	stdio.Stdin = a.keys(stdin)
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, nil, err
	}
	cell, err := a.cell()
	if err != nil {
		return nil, nil, err
	}
	if p.Layer != "" {
		if err := a.settle(ctx, inv, p.Layer); err != nil {
			return nil, nil, err
		}
	}
	egress := &broker{executable: a.executable} // no other call starts it
	defer egress.Close()
	k, err := a.open(ctx, kernel.Config{
		Unlock: a.unlock(inv), StateDir: state, PolicyDir: command.Value(inv, "policy", ""), CellPath: cell,
		Warm: command.Value(inv, "tier", tier.C), Once: true, Approver: a.approver(), Vault: a.vaultOpener(inv, state), Egress: egress,
	})
	if err != nil {
		return nil, nil, err
	}
	a.armed() // from here on there may be something to end
	out, err := k.Call(ctx, *p, stdio)
	return out, k.PolicySet(), errors.Join(err, k.Close())
}

// execStatus returns the exit status of a call.
func execStatus(ctx context.Context, out *kernel.Outcome, err error) int {
	status, interrupted := interruption(ctx)
	switch {
	case out == nil && interrupted:
		return status
	case out == nil:
		return execExit(err)
	case err != nil:
		return execRefused // what happened could not be recorded
	case interrupted && slices.Contains([]string{receipt.Killed, receipt.NotApproved, receipt.Failed, receipt.OutcomeUnknown}, out.Outcome):
		return status
	case interrupted && out.Outcome == receipt.Refused && out.Error != nil && out.Error.Kind == fault.Canceled.String():
		// The interrupt came before it began.
		return status
	case !out.Delivered && out.Outcome == receipt.Executed:
		if interrupted {
			return status
		}
		return execRefused
	}
	return out.Exit
}

// hintOf returns the hint for the error of an outcome, "" if it has none.
func hintOf(out *kernel.Outcome) string {
	if out.Error == nil {
		return ""
	}
	return cmp.Or(out.Error.Hint, fault.Do(out.Error.Reason))
}

// again returns the flags that name the place and the policies of a call to palyra policy
// why, "" for the usual ones.
func again(inv *command.Invocation) string {
	if !inv.Has("state") && !inv.Has("policy") {
		return ""
	}
	return " " + place(inv)
}

// told returns the text for a person on standard error besides the program's own output:
// none, if the program ran to its end. where is again's.
func told(out *kernel.Outcome, set *policy.Set, fix, where string) string {
	var b bytes.Buffer
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, "palyra: %s\n", front.Escape(fmt.Sprintf(format, args...)))
	}
	why := out.Outcome
	if out.Error != nil {
		why = out.Error.Text
	}
	switch out.Outcome {
	case receipt.Executed:
	case receipt.Denied:
		line("denied by policy: %s", out.Decision.Reason)
		if _, more, ok := strings.Cut(why, "decide call: "); ok && more != out.Decision.Reason {
			fmt.Fprintf(&b, "  because    %s\n", front.Escape(more))
		}
		b.WriteString(decisionRow(&out.Decision) + determining(&out.Decision, set, fix))
	case receipt.NotApproved:
		line("denied by approval: %s", approvalText(out.Approval))
		if v := out.Approval; v != nil && v.Comment != "" {
			line("%s says: %s", v.Approver, front.OneLine(v.Comment))
		}
		b.WriteString(decisionRow(&out.Decision) + determining(&out.Decision, set, fix))
	case receipt.Refused:
		line("refused by isolation: %s", why)
		b.WriteString(decisionRow(&out.Decision))
	case receipt.TimedOut:
		line("timed out: %s", why)
	default:
		line("%s: %s", out.Outcome, why)
	}
	diagnosed := out.Diagnosis
	if r := out.Result; r != nil && r.Evidence != nil && r.Evidence.Output.Cut > 0 && (diagnosed == nil || diagnosed.Code != diagnosis.OutputLimit) {
		line("output limit reached: %d bytes were dropped (--max-output)", r.Evidence.Output.Cut)
	}
	if diagnosed != nil {
		line("note: %s", diagnosed.ForExec())
	}
	if p := out.Planted; p != nil && len(p.Kinds) > 0 {
		line("left in the workspace, for whoever reads it: %s", plantedText(p))
	}
	if r := out.Result; r != nil && r.Evidence != nil && len(r.Evidence.Egress.Kept) > 0 {
		k, more := r.Evidence.Egress.Kept, ""
		if n := int64(len(k)) + r.Evidence.Egress.MoreKept; n > 1 {
			more = fmt.Sprintf(" and %d more", n-1)
		}
		line("note: the call left the placeholder of %s%s, which is worth nothing any more", k[0], more)
	}
	if out.Layer != "" {
		line("nothing of the workspace changed; what was written is in layer %s: palyra changes diff %s", out.Layer, out.Layer)
	}
	if !out.Delivered {
		line("some of the output could not be written")
	}
	hint := hintOf(out)
	switch {
	case hint != "":
		fmt.Fprintf(&b, "hint: %s\n", front.Escape(hint))
	case out.Outcome == receipt.Denied:
		fmt.Fprintf(&b, "hint: palyra policy why %x%s shows this again, palyra policy explain -- CMD what each policy says\n", out.Decision.ID, where)
	case out.Outcome == receipt.NotApproved && out.Approval != nil && out.Approval.Answer == approval.Unreachable:
		b.WriteString("hint: run it on a terminal, or let a policy permit it\n")
	}
	return b.String()
}

// approvalText says why there was no yes.
func approvalText(v *approval.View) string {
	switch {
	case v == nil:
		return "not approved"
	case v.Answer == approval.Denied:
		return "not approved by " + v.Approver
	case v.Detail != "":
		return "needs approval: " + v.Detail
	}
	return "needs approval: " + v.Answer
}

// decisionRow names a decision.
func decisionRow(d *policy.Decision) string {
	var r account.Rows
	r.Add("decision", "%x", d.ID)
	return r.String()
}

// determining lists the policies that determined a decision, with their
// reasons, and fix, the change that would have allowed the call.
func determining(d *policy.Decision, set *policy.Set, fix string) string {
	var r account.Rows
	for _, id := range d.Policies {
		info, _ := set.Policy(id)
		if info.Reason == "" {
			info.Reason = info.Effect
		}
		r.Add("policy", "%s: %s (%s:%d)", id, info.Reason, info.File, info.Line)
	}
	for _, e := range d.Errors {
		r.Add("error", "%s", e)
	}
	r.Add("policy set", "%s", d.PolicySet)
	return r.String() + fixText(fix)
}

// decisionFields returns a decision and its fix in a document.
func decisionFields(d *policy.Decision, fix string) front.Document {
	list := func(ss []string) []string { return append([]string{}, ss...) }
	return front.Document{"id": hex.EncodeToString(d.ID[:]), "effect": d.Effect, "reason": d.Reason, "policies": list(d.Policies),
		"errors": list(d.Errors), "policy_set": d.PolicySet, "fix": fix}
}

// execDocument returns the document of --json. It has only the digest of the capsule, which
// holds the values of the environment.
func execDocument(out *kernel.Outcome, err error, status int, held *[2]bytes.Buffer, fix string) front.Document {
	d := front.Document{"status": status, "stdout": front.OutputFields(held[0].Bytes()), "stderr": front.OutputFields(held[1].Bytes()), "error": nil}
	if out != nil {
		d["call_id"], d["outcome"], d["capsule"] = out.CallID, out.Outcome, out.CapsuleDigest
		d["decision"], d["approval"] = decisionFields(&out.Decision, fix), out.Approval
		d["receipt"], d["log_index"], d["delivered"] = json.RawMessage(nullIfEmpty(out.Receipt)), out.LogIndex, out.Delivered
		if out.Result != nil {
			d["evidence"] = out.Result.Evidence
		}
		if out.Diagnosis != nil {
			d["diagnosis"] = out.Diagnosis
		}
		if out.Planted != nil {
			d["planted"] = out.Planted
		}
		if out.Layer != "" {
			d["layer"] = out.Layer
		}
		if out.Error != nil {
			if v := out.Approval; v != nil && v.Answer == approval.Denied {
				d["denial"] = front.Document{"layer": "approval", "reason": out.Error.Reason, "comment": v.Comment}
			}
			d["error"] = front.Document{"kind": out.Error.Kind, "reason": out.Error.Reason, "message": out.Error.Text, "hint": hintOf(out)}
		}
	}
	if err != nil {
		d["error"] = front.ErrorFields(err)
	}
	return d
}

func nullIfEmpty(b []byte) []byte {
	if len(b) == 0 {
		return []byte("null")
	}
	return b
}

// plantedText returns what was left in wait: the number of each kind, and the first one.
func plantedText(p *receipt.Planted) string {
	parts := make([]string, len(p.Kinds))
	for i, k := range p.Kinds {
		parts[i] = fmt.Sprintf("%d %s", k.Count, k.Kind)
		if j := slices.IndexFunc(p.Found, func(f receipt.Finding) bool { return f.Kind == k.Kind }); j >= 0 {
			parts[i] += " (" + p.Found[j].Path + ")"
		}
	}
	return strings.Join(parts, ", ")
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"palyra/authz/approval"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/receiptfile"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/stage"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/tool"
)

func (a *app) changesApply(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	return a.effect(ctx, inv, toolproto.ChangesApply, (*stage.Layer).Prepare)
}

func (a *app) changesUndo(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	return a.effect(ctx, inv, toolproto.ChangesUndo, (*stage.Layer).PrepareUndo)
}

// effect makes the call that brings changes to a workspace, or takes them back.
func (a *app) effect(ctx context.Context, inv *command.Invocation, what string, prepare func(*stage.Layer, context.Context) (*stage.Effect, error)) (*front.Report, error) {
	l, err := a.layer(ctx, inv)
	if err != nil {
		return nil, err
	}
	name, source := l.Name, l.Source.Path
	made, err := prepare(l, ctx)
	ask := a.approver()
	if t, ok := ask.(*ttyApprover); ok && err == nil && what == toolproto.ChangesApply {
		t.before = preview(ctx, l, made.List)
	}
	l.Close()
	if err != nil {
		return nil, err
	}
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	res, out, err := a.changesCall(ctx, inv, ask, what, name, made.Record.Digest)
	if out != nil {
		err = errors.Join(err, kept.Keep(out.Receipt, out.LogIndex, 0o644))
	}
	if err != nil {
		// A tool that was killed, by ctrl-C too, is ended at once, not by whoever comes next.
		if serr := a.settle(context.WithoutCancel(ctx), inv, name); serr != nil {
			front.Complain(a.stderr, "palyra", serr)
		}
		return nil, err
	}
	git := 0
	for _, c := range made.Record.List.Changes {
		if toolproto.InGit(c.Path) {
			git++
		}
	}
	verb, changes := "applied", "changes"
	if what == toolproto.ChangesUndo {
		verb = "undid"
	}
	if res.Changes == 1 {
		changes = "change"
	}
	text := fmt.Sprintf("%s layer %s: %d %s to %s\n", verb, name, res.Changes, changes, front.OneLine(source))
	fields := front.Document{}
	if g := made.Record.List.Git; g != nil {
		for _, x := range g.Refs {
			text += fmt.Sprintf("%s: %s..%s\n", x.Name, front.ShortID(x.Old), front.ShortID(x.New))
		}
		if g.Head != nil {
			text += fmt.Sprintf("HEAD: %s\n", g.Head.New)
		}
		fields["refs"] = g.Refs
	}
	for _, x := range made.List.Left {
		text += fmt.Sprintf("left in the layer: %s: %s\n", x.Path, x.Why)
	}
	if git > 0 {
		text += fmt.Sprintf("left in the layer: %d files of .git\n", git)
	}
	fields["left"] = made.List.Left
	maps.Copy(fields, front.Document{"layer": name, "workspace": source, "digest": res.Digest, "changes": res.Changes,
		"left_git": git, "call_id": out.CallID, "log_index": out.LogIndex, "receipt": json.RawMessage(nullIfEmpty(out.Receipt))})
	return &front.Report{Text: text, Fields: fields}, nil
}

// callsOf finds what a call of one of our own tools takes: the state directory, palyra-cell and
// palyra-tool.
func (a *app) callsOf(inv *command.Invocation) (state, cell, program string, err error) {
	if state, err = stateDir(command.Value(inv, "state", ""), a.getenv); err != nil {
		return "", "", "", err
	}
	if cell, err = a.cell(); err != nil {
		return "", "", "", err
	}
	exe, err := a.executable()
	if err != nil {
		return "", "", "", fault.New(fault.Refused, "helper_unusable", "find palyra-tool", err)
	}
	program, err = installed.Find(exe, "palyra-tool")
	return state, cell, program, err
}

// changesCall makes one call of a tool for changes. The outcome is there if the call was decided.
func (a *app) changesCall(ctx context.Context, inv *command.Invocation, ask approval.Approver, what, layer string, list canon.Digest) (*toolproto.ChangesResult, *kernel.Outcome, error) {
	state, cell, program, err := a.callsOf(inv)
	if err != nil {
		return nil, nil, err
	}
	input, err := canon.Marshal(&toolproto.ChangesInput{Layer: layer, Digest: list.String()})
	if err != nil {
		return nil, nil, err
	}
	policies, err := a.deciding(ctx, inv, state, layer)
	if err != nil {
		return nil, nil, err
	}
	k, err := a.open(ctx, kernel.Config{
		Unlock: a.unlock(inv), StateDir: state, PolicyDir: policies, CellPath: cell, Warm: tier.C, Once: true, Approver: ask,
		Tools: tool.New(tool.Config{Program: program, State: state}),
	})
	if err != nil {
		return nil, nil, err
	}
	var stdout bytes.Buffer
	out, err := k.Call(ctx, kernel.Proposal{Tool: what, Input: input}, kernel.IO{Stdout: &stdout, Stderr: io.Discard})
	if err = errors.Join(err, k.Close()); err != nil {
		return nil, out, err
	}
	status := toolproto.Status(out.Exit)
	if out.Outcome != receipt.Executed || status != toolproto.Done && status != toolproto.Undone {
		return nil, out, notDone(what, layer, out, stdout.Bytes())
	}
	var res toolproto.ChangesResult
	if err := canon.Decode(bytes.TrimSuffix(stdout.Bytes(), []byte("\n")), &res, canon.Limits{Bytes: 1 << 24}); err != nil {
		return nil, out, fault.New(fault.Internal, "internal", "read palyra-tool's result", err)
	}
	return &res, out, nil
}

// notDone is the error of a call that did not bring the changes to the workspace: the gate's,
// or the tool's.
func notDone(what, layer string, out *kernel.Outcome, stdout []byte) error {
	return notDoneAs(fmt.Sprintf("%s layer %q", strings.TrimPrefix(what, "changes."), layer), out, stdout)
}

// notDoneAs is notDone for any tool.
func notDoneAs(op string, out *kernel.Outcome, stdout []byte) error {
	if f := out.Error; f != nil {
		text := f.Text
		if v := out.Approval; v != nil && v.Comment != "" {
			text += ": " + front.OneLine(v.Comment)
		}
		e := &fault.Error{Reason: f.Reason, Op: op, Err: errors.New(text), Hint: hintOf(out)}
		for k := fault.Internal; k <= fault.Unsupported; k++ {
			if k.String() == f.Kind {
				e.Kind = k
			}
		}
		return e
	}
	var f toolproto.Failure
	if err := canon.Decode(bytes.TrimSuffix(stdout, []byte("\n")), &f, canon.Limits{Bytes: 1 << 24}); err != nil {
		return fault.New(fault.Unavailable, "killed", op, fmt.Errorf("palyra-tool ended with status %d", out.Exit))
	}
	e := &fault.Error{Kind: fault.Refused, Reason: f.Error.Reason, Op: op, Err: errors.New(f.Error.Text)}
	switch {
	case toolproto.Status(out.Exit) == toolproto.Conflict:
		e.Kind = fault.Busy
	case errors.Is(e, fault.ErrDiskFull), errors.Is(e, fault.ErrIO):
		e.Kind = fault.Unavailable
	case toolproto.Status(out.Exit) == toolproto.Bad:
		e.Kind = fault.Usage
	}
	return e
}

// settle ends what a killed apply or undo left of a layer, by a call of its own: whole, or as if
// it had never been. It's no error if there is nothing.
func (a *app) settle(ctx context.Context, inv *command.Invocation, layer string) error {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return err
	}
	l, unfinished, err := stage.OpenUnfinished(state, layer)
	if err != nil {
		return nil // the caller meets it again, if it matters there
	}
	l.Close()
	if unfinished == nil {
		return nil
	}
	res, _, err := a.changesCall(ctx, inv, a.approver(), toolproto.ChangesRecover, layer, unfinished.Record.Digest)
	if err != nil {
		return err
	}
	whole := "nothing of it is"
	if res.Applied {
		whole = "all of it is"
	}
	fmt.Fprintf(a.stderr, "palyra: %s of layer %s was interrupted: %s in the workspace now\n", strings.TrimPrefix(unfinished.Record.Tool, "changes."), layer, whole)
	for _, left := range res.Left {
		at := ""
		if left.Kept != "" {
			at = ", what was there is " + left.Kept
		}
		fmt.Fprintf(a.stderr, "palyra: changed by another since, and left alone: %s%s\n", front.Escape(left.Path), front.Escape(at))
	}
	return nil
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"palyra/authz/approval"
	"palyra/cmd/internal/applied"
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
		t.before = applied.Preview(name, func(w io.Writer) error {
			_, err := l.Patch(ctx, w, made.List, false)
			return err
		})
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
	done := &applied.Applied{Tool: what, Layer: name, Workspace: source, Result: res,
		CallID: out.CallID, LogIndex: out.LogIndex, Receipt: nullIfEmpty(out.Receipt)}
	for _, c := range made.Record.List.Changes {
		if toolproto.InGit(c.Path) {
			done.LeftGit++
		}
	}
	if g := made.Record.List.Git; g != nil {
		done.Git, done.Refs = true, g.Refs
		if g.Head != nil {
			done.Head = g.Head.New
		}
	}
	for _, x := range made.List.Left {
		done.Left = append(done.Left, applied.Left{Path: x.Path, Why: x.Why})
	}
	return done.Report(), nil
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
	k, err := a.open(ctx, kernel.Config{
		Unlock: a.unlock(inv), StateDir: state, PolicyDir: command.Value(inv, "policy", ""), CellPath: cell, Warm: tier.C, Once: true, Approver: ask,
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
	op := fmt.Sprintf("%s layer %q", strings.TrimPrefix(what, "changes."), layer)
	if out.Outcome != receipt.Executed {
		return nil, out, notDone(op, out, stdout.Bytes())
	}
	res, err := applied.Read(op, out.Exit, stdout.Bytes())
	return res, out, err
}

// notDone is the error of a call of a tool of ours that didn't do its work: the gate's, or the
// tool's.
func notDone(op string, out *kernel.Outcome, stdout []byte) error {
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
	return applied.Failure(op, out.Exit, stdout)
}

// settle ends what a killed apply or undo left of a layer, by a call of its own: whole, or as if
// it had never been. It's no error if there is nothing. palyrad ends what it began.
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
	switch {
	case unfinished == nil:
		return nil
	case a.keeps(inv, layer):
		return stage.Unfinished(layer)
	}
	res, _, err := a.changesCall(ctx, inv, a.approver(), toolproto.ChangesRecover, layer, unfinished.Record.Digest)
	if err != nil {
		return err
	}
	applied.Recovered(a.stderr, layer, res)
	return nil
}

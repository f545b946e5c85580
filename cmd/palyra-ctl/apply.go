package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"palyra/cmd/internal/applied"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/receiptfile"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// palyra changes apply and undo of a layer that palyrad keeps: a run of palyrad's, with the words,
// statuses and document that palyra has for its own layers.

func (a *app) changesApply(ctx context.Context, inv *command.Invocation) (*result, error) {
	return a.bring(ctx, inv, toolproto.ChangesApply)
}

func (a *app) changesUndo(ctx context.Context, inv *command.Invocation) (*result, error) {
	return a.bring(ctx, inv, toolproto.ChangesUndo)
}

const itself = "--no-daemon has palyra make the call itself, by the policies of --policy"

func (a *app) bring(ctx context.Context, inv *command.Invocation, what string) (*result, error) {
	for _, f := range []string{"no-daemon", "policy", "key"} {
		if inv.Has(f) {
			return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, fmt.Errorf("with --%s palyra makes the call itself", f)).
				WithHint("leave out --socket, --url, --token-file and --device, or else --" + f)
		}
	}
	h, err := a.bringer(inv)
	if err != nil {
		return nil, err
	}
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	res, err := a.brought(ctx, inv, h, what, kept)
	if unanswered(err) {
		err = fault.New(fault.KindOf(err), fault.ReasonOf(err), "have palyrad make the call", err).
			WithHint(cmp.Or(fault.HintOf(err), "start it (palyra setup palyrad)") + "; or: " + itself)
	}
	return res, err
}

// bringer connects to this user's own palyrad, if there's one and no flag names another.
func (a *app) bringer(inv *command.Invocation) (hub.Hub, error) {
	own := place.OwnSocket(a.getenv)
	if own == "" || inv.Has("socket") || inv.Has("url") || inv.Has("token-file") || inv.Has("device") {
		return a.keeper(inv)
	}
	fmt.Fprintf(a.stderr, "palyra: the palyrad at %s decides and makes this call; --no-daemon has palyra do it\n", cell(own))
	return a.dial(connect.Target{Socket: own, Own: true})
}

func (a *app) brought(ctx context.Context, inv *command.Invocation, h hub.Hub, what string, kept *receiptfile.File) (*result, error) {
	name, err := a.layer(ctx, h, inv)
	if err != nil {
		return nil, err
	}
	v, err := hub.GetLayer.Do(ctx, h, hub.Caller{}, name)
	if err == nil && v.Layer.State == hub.LayerUnfinished {
		if err := a.recover(ctx, h, name); err != nil {
			return nil, err
		}
		v, err = hub.GetLayer.Do(ctx, h, hub.Caller{}, name)
	}
	if err != nil {
		return nil, err
	}
	op := fmt.Sprintf("%s layer %q", strings.TrimPrefix(what, "changes."), name)
	digest, changes, git, begin := v.Digest.String(), v.Changes, v.Git, hub.ApplyLayer
	if what == toolproto.ChangesUndo {
		u := v.Undo
		switch {
		case u == nil:
			return nil, fault.New(fault.NotFound, "not_found", op, errors.New("nothing was applied from it"))
		case u.Digest == "":
			return nil, fault.New(fault.Usual(u.Reason), u.Reason, op, errors.New(u.Error))
		}
		digest, changes, git, begin = u.Digest, u.Changes, u.Git, hub.UndoLayer
	}
	var before func() string
	if what == toolproto.ChangesApply {
		before = func() string {
			return applied.Preview(name, func(w io.Writer) error {
				p, err := hub.GetPatch.Do(ctx, h, hub.Caller{}, hub.PatchQuery{Layer: name})
				if err != nil || p.Digest != v.Digest {
					return err
				}
				_, err = w.Write(p.Patch)
				return err
			})
		}
	}
	r, err := begin.Do(ctx, h, hub.Caller{}, hub.LayerList{Layer: name, LayerListBody: hub.LayerListBody{Digest: digest}})
	if err != nil {
		return nil, err
	}
	done := &applied.Applied{Tool: what, Layer: name, Workspace: v.Layer.Workspace, Receipt: null(nil)}
	if done.Result, err = a.changed(ctx, h, op, r.ID, before, kept, inv.Has("json"), done); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if toolproto.InGit(c.Path) {
			done.LeftGit++
		}
	}
	if git != nil {
		for _, x := range git.Left {
			done.Left = append(done.Left, applied.Left(x))
		}
		if git.Head != nil {
			done.Head = git.Head.New
		}
		done.Git = len(git.Refs) > 0 || git.Head != nil || git.Index != nil || git.Objects > 0
		for _, x := range git.Refs {
			done.Refs = append(done.Refs, toolproto.RefChange{Name: x.Name, Old: x.Old, New: x.New})
		}
	}
	return &result{Report: *done.Report()}, nil
}

// recover has palyrad end an apply or undo that was interrupted.
func (a *app) recover(ctx context.Context, h hub.Hub, name string) error {
	r, err := hub.RecoverLayer.Do(ctx, h, hub.Caller{}, name)
	if err != nil {
		return err
	}
	res, err := a.changed(ctx, h, fmt.Sprintf("recover layer %q", name), r.ID, nil, nil, false, &applied.Applied{})
	if err == nil {
		applied.Recovered(a.stderr, name, res)
	}
	return err
}

// changed follows a run of one call of a tool for changes, asks the person at this terminal where
// it waits, and returns the tool's result. done gets the call and, if wanted, its receipt.
func (a *app) changed(ctx context.Context, h hub.Hub, op, run string, before func() string, kept *receiptfile.File, receipt bool, done *applied.Applied) (*toolproto.ChangesResult, error) {
	r, _, err := a.ends(ctx, h, run, nil, func(ctx context.Context, id string) { a.askHere(ctx, h, id, before) })
	if err != nil {
		return nil, err
	}
	if len(r.Steps) != 1 {
		return nil, fault.New(fault.Internal, "internal", op, fmt.Errorf("a run of %d steps", len(r.Steps)))
	}
	end, over := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer over()
	s := &r.Steps[0]
	done.CallID = s.CallID
	if s.LogIndex != nil {
		if done.LogIndex = *s.LogIndex; receipt || kept != nil {
			b, err := hub.GetReceipt.Do(end, h, hub.Caller{}, done.LogIndex)
			if err == nil {
				err = kept.Keep(b, done.LogIndex, 0o644)
			}
			if err != nil {
				return nil, err
			}
			done.Receipt = b
		}
	}
	if s.Outcome != "executed" {
		return nil, notDone(op, r, s)
	}
	var stdout bytes.Buffer
	p := &printer{to: [2]io.Writer{&stdout, io.Discard}}
	if err := p.rest(end, h, r.ID, 0, s.Stdout); err != nil {
		return nil, err
	}
	return applied.Read(op, s.Exit, stdout.Bytes())
}

// notDone is the error of a call that didn't run to its end.
func notDone(op string, r *hub.Run, s *hub.StepResult) error {
	reason := cmp.Or(s.Reason, r.Reason)
	e := fault.New(fault.Usual(reason), reason, op, errors.New(cmp.Or(s.Error, s.Outcome, r.Reason))).WithHint(s.Hint)
	switch {
	case r.State == hub.RunCancelled:
		e.Kind = fault.Canceled
	case s.Outcome == "denied":
		e.Kind = fault.Denied
	case s.Outcome == "not_approved":
		e.Kind = fault.NotApproved
	}
	if d := s.Denial; d != nil && d.Comment != "" {
		e.Err = fmt.Errorf("%v: %s", e.Err, front.OneLine(d.Comment))
	}
	return e
}

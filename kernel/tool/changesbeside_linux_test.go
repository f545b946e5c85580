package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/stage"
	"palyra/kernel"
)

// held counts what calls hold.
type held struct{ room, alone, reading, taken int }

func (h *held) beside(limits stage.Limits) *BesideChanges {
	take := func(n *int) func() {
		*n++
		h.taken++
		return func() { *n-- }
	}
	return &BesideChanges{Limits: limits,
		Room:    func(context.Context) (func(), error) { return take(&h.room), nil },
		Alone:   func(context.Context) (func(), error) { return take(&h.alone), nil },
		Reading: func(ctx context.Context) (context.Context, func(), error) { return ctx, take(&h.reading), nil }}
}

// TestChangesBeside: in a process that makes the calls of many, the tools for changes work for a call
// that has what comes beside it, for a workspace that the operator lets tools write to. All that
// such a call takes is given back, however it ends.
func TestChangesBeside(t *testing.T) {
	s := newStaged(t)
	digest := s.digest(t, (*stage.Layer).Prepare)
	workspace := Workspace{Path: s.Dir, Staged: true}
	var h held
	call := func(w map[string]Workspace, b *BesideChanges, a answer, name, digest string) (*kernel.Outcome, error) {
		t.Helper()
		k, err := kernel.Open(t.Context(), kernel.Config{StateDir: s.State, CellPath: filepath.Join(s.Bin, "palyra-cell"), Once: true,
			Tools: New(Config{Program: filepath.Join(s.Bin, "palyra-tool"), State: s.State, ChangesBeside: true, Workspaces: w}),
			TestOnlyStep: func(name string) {
				if want := (map[string]held{"sealed": {room: 1}, "begun": {room: 1, alone: 1}})[name]; want.room == 1 && (h.room != 1 || h.alone != want.alone || h.reading != 0) {
					t.Errorf("%s: held %+v", name, h)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if b != nil {
			ctx = WithChanges(ctx, b)
		}
		in, _ := json.Marshal(obj{"layer": "fix", "digest": digest})
		var out bytes.Buffer
		o, err := k.CallAs(ctx, kernel.Caller{Principal: policy.LocalUser("tester"), Approver: a}, kernel.Proposal{Tool: name, Input: in}, kernel.IO{Stdout: &out})
		if cerr := k.Close(); cerr != nil {
			t.Fatal(cerr)
		}
		if h.room+h.alone+h.reading != 0 {
			t.Errorf("afterwards %+v is held", h)
		}
		return o, err
	}
	src := map[string]Workspace{"src": workspace}
	readOnly := Workspace{Path: s.Dir, ReadOnly: true}
	workspace.ReadOnly = true // as staged workspaces are by default
	src["src"] = workspace
	busy := h.beside(stage.Limits{})
	locked := fault.New(fault.Busy, "locked", "use layer", errors.New("a call uses it"))
	busy.Alone = func(context.Context) (func(), error) { return nil, locked }
	for _, c := range []struct {
		name   string
		spaces map[string]Workspace
		beside *BesideChanges
		digest string
		want   string
	}{
		{"without what comes beside it", src, nil, digest, "invalid_input"},
		{"a read-only workspace", map[string]Workspace{"src": workspace, "same": readOnly}, h.beside(stage.Limits{}), digest, "read_only"},
		{"no workspace any more", map[string]Workspace{"other": {Path: t.TempDir()}}, h.beside(stage.Limits{}), digest, "not_found"},
		{"another list", src, h.beside(stage.Limits{}), canon.Sum(nil).String(), "changed"},
		{"more than the bounds", src, h.beside(stage.Limits{Entries: 1}), digest, "too_large"},
		{"in use", src, busy, digest, "locked"},
	} {
		if o, err := call(c.spaces, c.beside, answer{yes: true}, toolproto.ChangesApply, c.digest); fault.ReasonOf(err) != c.want || o != nil || s.is(t) != "former" {
			t.Errorf("%s: %+v, %v, want %s; %s", c.name, o, err, c.want, s.is(t))
		}
	}
	// A no, and then a yes to a layer that is in use by then.
	if o, err := call(src, h.beside(stage.Limits{}), answer{}, toolproto.ChangesApply, digest); err != nil || o.Outcome != receipt.NotApproved {
		t.Errorf("%+v, %v", o, err)
	}
	later, n := h.beside(stage.Limits{}), 0
	alone := later.Alone
	later.Alone = func(ctx context.Context) (func(), error) {
		if n++; n == 2 {
			return nil, locked
		}
		return alone(ctx)
	}
	if o, err := call(src, later, answer{yes: true}, toolproto.ChangesApply, digest); err != nil || o.Outcome != receipt.Refused || o.Error.Reason != "locked" || s.is(t) != "former" {
		t.Errorf("%+v, %v", o, err)
	}
	h.taken = 0
	if o, err := call(src, h.beside(stage.Limits{}), answer{yes: true}, toolproto.ChangesApply, digest); err != nil || o.Outcome != receipt.Executed || o.Exit != 0 || s.is(t) != "latter" || h.taken != 5 {
		t.Errorf("%+v, %v: %s, took %d", o, err, s.is(t), h.taken)
	}
}

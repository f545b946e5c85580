package tool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/stage"
	"palyra/kernel"
)

// The tools for the layers of staged workspaces. The table reads the layer: its list, which must
// have the digest of the input, and the new content go behind the input, so that the approved
// capsule names every byte that is written. The layer is locked for the reading, and again from
// the beginning of the program to its end.

// BesideChanges is what a call of these tools has besides its input, in a process that makes the
// calls of many.
type BesideChanges struct {
	// Limits bound what is read of the layer.
	Limits stage.Limits
	// Room is taken before the layer is read, and given back when the call is over.
	Room func(ctx context.Context) (release func(), err error)
	// Alone keeps the layer from other calls and readers, for a reading and from before the program
	// to the end of the call.
	Alone func(ctx context.Context) (release func(), err error)
	// Reading bounds a reading, until done.
	Reading func(ctx context.Context) (_ context.Context, done func(), err error)
}

// besideChangesKey is the key of the BesideChanges in a call's ctx. It is data for a call that
// policy decides, and lends no authority.
type besideChangesKey struct{}

// WithChanges returns the ctx of a call that has b.
func WithChanges(ctx context.Context, b *BesideChanges) context.Context {
	return context.WithValue(ctx, besideChangesKey{}, b)
}

func (t *Table) besideChanges(ctx context.Context, name string) (*BesideChanges, error) {
	if b, ok := ctx.Value(besideChangesKey{}).(*BesideChanges); ok {
		return b, nil
	}
	if t.cfg.ChangesBeside {
		return nil, usage("invalid_input", fmt.Sprintf("call tool %q", name), errors.New("it is called for an operation about a layer alone")).
			WithHint("a person applies changes: palyra help changes apply, or the console")
	}
	free := func(context.Context) (func(), error) { return func() {}, nil }
	return &BesideChanges{Room: free, Alone: free,
		Reading: func(ctx context.Context) (context.Context, func(), error) { return ctx, func() {}, nil }}, nil
}

// changes is the kernel.Effect of such a call. Owned by the call.
type changes struct {
	state, name string
	made        *stage.Effect
	layer       *stage.Layer // locked, from Begin on
	beside      *BesideChanges
	held        []func() // what Close gives back, the last first
}

var _ kernel.Effect = (*changes)(nil)

func expandChanges(ctx context.Context, t *Table, e *entry, _ policy.Entity, input any) (*kernel.Expansion, error) {
	in := *input.(*toolproto.ChangesInput)
	c := &changes{state: t.cfg.State, name: in.Layer}
	var err error
	if c.beside, err = t.besideChanges(ctx, e.Name); err != nil {
		return nil, err
	}
	room, err := c.beside.Room(ctx)
	if err != nil {
		return nil, err
	}
	c.held = append(c.held, room)
	x, err := c.expand(ctx, t, e, &in)
	if err != nil {
		c.Close()
	}
	return x, err
}

func (c *changes) expand(ctx context.Context, t *Table, e *entry, in *toolproto.ChangesInput) (*kernel.Expansion, error) {
	release, err := c.beside.Alone(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, done, err := c.beside.Reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	layer, unfinished, err := stage.OpenUnfinished(c.state, c.name)
	if err != nil {
		return nil, t.holding(err, c.name)
	}
	defer layer.Close()
	layer.Limits = c.beside.Limits
	recovers := e.Name == toolproto.ChangesRecover
	op := fmt.Sprintf("%s of layer %q", e.Name, c.name)
	if t.cfg.ChangesBeside && !recovers { // what was begun is ended, whatever the operator says by now
		if err := t.writable(op, layer.Source.Path); err != nil {
			return nil, err
		}
	}
	switch {
	case recovers && unfinished == nil:
		return nil, fault.New(fault.NotFound, "not_found", op, fmt.Errorf("nothing is unfinished"))
	case recovers:
		c.made = unfinished
	case unfinished != nil:
		return nil, stage.Unfinished(c.name)
	case e.Name == toolproto.ChangesUndo:
		c.made, err = layer.PrepareUndo(ctx)
	default:
		c.made, err = layer.Prepare(ctx)
	}
	if err != nil {
		return nil, err
	}
	if d := c.made.Record.Digest.String(); d != in.Digest {
		return nil, fault.New(fault.Unavailable, "changed", op, fmt.Errorf("its changes have the digest %s", d)).
			WithHint("look at the changes and apply them again")
	}
	in.ID = c.made.Record.ID
	if c.made.List != nil {
		in.Gist = c.made.List.Gist(c.made.Lines, c.made.Bytes)
	}
	x, err := t.tool(e, in)
	if err != nil {
		return nil, err
	}
	x.Workspace, x.Effect = c.made.Source.Path, c
	x.Stdin = append(append(x.Stdin, '\n'), c.made.Payload...)
	x.StdinMost = int64(len(x.Stdin))
	c.made.Payload = nil
	return x, nil
}

// writable returns nil if a folder is a workspace that the operator lets tools write to, or to its
// layers.
func (t *Table) writable(op, folder string) error {
	fi, err := os.Stat(folder)
	if err != nil {
		return usage("not_found", op, err)
	}
	known := false
	for _, w := range t.cfg.Workspaces {
		if is, err := os.Stat(w.Path); err != nil || !os.SameFile(fi, is) {
			continue
		}
		if known = true; w.ReadOnly && !w.Staged {
			return usage("read_only", op, errors.New("the operator declared its workspace read-only")).
				WithHint("palyra changes diff | git apply brings the files, as the user who types it")
		}
	}
	if !known {
		return usage("not_found", op, errors.New("the operator declares no workspace there any more"))
	}
	return nil
}

// Begin implements kernel.Effect.
func (c *changes) Begin(ctx context.Context) error {
	release, err := c.beside.Alone(ctx)
	if err != nil {
		return err
	}
	c.held = append(c.held, release)
	ctx, done, err := c.beside.Reading(ctx)
	if err != nil {
		return err
	}
	defer done()
	layer, unfinished, err := stage.OpenUnfinished(c.state, c.name)
	if err != nil {
		return err
	}
	c.layer, layer.Limits = layer, c.beside.Limits
	switch {
	case c.made.List != nil && unfinished != nil:
		return stage.Unfinished(c.name)
	case c.made.List != nil:
		return layer.Begin(ctx, c.made)
	case unfinished == nil || unfinished.Record.ID != c.made.Record.ID:
		return fault.New(fault.Busy, "changed", fmt.Sprintf("recover layer %q", c.name), fmt.Errorf("another call has ended it"))
	}
	return nil
}

// End implements kernel.Effect. What it can't record stays unfinished, for the next call.
func (c *changes) End(ran bool, exit int) {
	switch status := toolproto.Status(exit); {
	case ran && status == toolproto.Done:
		_ = c.layer.End(true)
	case !ran && c.made.List != nil, ran && (status == toolproto.Failed || status == toolproto.Conflict) && c.made.List != nil,
		ran && status == toolproto.Undone && c.made.List == nil:
		_ = c.layer.End(false)
	}
}

// Close implements kernel.Effect.
func (c *changes) Close() {
	if c.layer != nil {
		c.layer.Close()
		c.layer = nil
	}
	for len(c.held) > 0 {
		last := len(c.held) - 1
		give := c.held[last]
		c.held = c.held[:last]
		give()
	}
}

package tool

import (
	"context"
	"fmt"

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

// changes is the kernel.Effect of such a call. Owned by the call.
type changes struct {
	state, name string
	made        *stage.Effect
	layer       *stage.Layer // locked, from Begin on
}

var _ kernel.Effect = (*changes)(nil)

func expandChanges(ctx context.Context, t *Table, e *entry, _ policy.Entity, input any) (*kernel.Expansion, error) {
	in := *input.(*toolproto.ChangesInput)
	c := &changes{state: t.cfg.State, name: in.Layer}
	layer, unfinished, err := stage.OpenUnfinished(c.state, c.name)
	if err != nil {
		return nil, t.holding(err, c.name)
	}
	defer layer.Close()
	recovers := e.Name == toolproto.ChangesRecover
	op := fmt.Sprintf("%s of layer %q", e.Name, c.name)
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
	x, err := t.tool(e, &in)
	if err != nil {
		return nil, err
	}
	x.Workspace, x.Effect = c.made.Source.Path, c
	x.Stdin = append(append(x.Stdin, '\n'), c.made.Payload...)
	x.StdinMost = int64(len(x.Stdin))
	c.made.Payload = nil
	return x, nil
}

// Begin implements kernel.Effect.
func (c *changes) Begin(ctx context.Context) error {
	layer, unfinished, err := stage.OpenUnfinished(c.state, c.name)
	if err != nil {
		return err
	}
	c.layer = layer
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
}

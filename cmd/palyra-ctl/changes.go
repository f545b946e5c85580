package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

// keeper connects to the palyrad that keeps layers.
func (a *app) keeper(inv *command.Invocation) (hub.Hub, error) {
	if inv.Has("state") {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("palyrad's layers are not those of --state")).
			WithHint("leave out --state, or else --socket, --url, --token-file and --device")
	}
	return a.connect(inv)
}

func (a *app) changesLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.keeper(inv)
	if err != nil {
		return nil, err
	}
	layers, err := allLayers(ctx, h)
	if err != nil {
		return nil, err
	}
	t := front.NewTable("LAYER", "STATE", "MADE", "PRINCIPAL", "WORKSPACE").Keep(0)
	for _, l := range layers {
		made := ""
		if l.Made != nil {
			made = l.Made.Format(time.RFC3339)
		}
		t.Row(l.Layer, l.State, made, front.Principal(l.Principal), l.Workspace)
	}
	return text(front.Document{"layers": layers}, "%s", a.table(inv, t)), nil
}

// allLayers returns every layer that the caller sees.
func allLayers(ctx context.Context, h hub.Hub) (all []hub.Layer, err error) {
	all = []hub.Layer{}
	q := hub.LayerQuery{PageQuery: hub.PageQuery{Limit: 1000}}
	for {
		p, err := hub.ListLayers.Do(ctx, h, hub.Caller{}, q)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Items...)
		if q.After = p.Next; p.Next == "" {
			return all, nil
		}
	}
}

// layer returns the name of the layer that the command names, or of the only one, or unless it's
// undo, the only one with changes.
func (a *app) layer(ctx context.Context, h hub.Hub, inv *command.Invocation) (string, error) {
	if len(inv.Operands) > 0 {
		return inv.Operands[0], nil
	}
	layers, err := allLayers(ctx, h)
	if changed := slices.DeleteFunc(slices.Clone(layers), func(l hub.Layer) bool { return l.State == hub.LayerEmpty }); len(changed) == 1 && inv.Command.Name != "changes undo" {
		layers = changed
	}
	switch {
	case err != nil:
		return "", err
	case len(layers) == 0:
		return "", fault.New(fault.NotFound, "not_found", inv.Command.Name, errors.New("palyrad has none for this caller"))
	case len(layers) > 1:
		return "", fault.New(fault.Usage, "bad_command", inv.Command.Name, fmt.Errorf("there are %d layers: name one", len(layers))).
			WithHint("palyra changes ls --socket lists them")
	}
	return layers[0].Layer, nil
}

func (a *app) changesShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.keeper(inv)
	if err != nil {
		return nil, err
	}
	name, err := a.layer(ctx, h, inv)
	if err != nil {
		return nil, err
	}
	v, err := hub.GetLayer.Do(ctx, h, hub.Caller{}, name)
	if err != nil {
		return nil, err
	}
	l := newLines()
	l.row("layer", v.Layer.Layer)
	l.row("  workspace", v.Layer.Workspace)
	l.row("  session", v.Layer.Session)
	l.row("  principal", front.Principal(v.Layer.Principal))
	if v.Layer.Made != nil {
		l.row("  made", v.Layer.Made.Format(time.RFC3339))
	}
	l.row("  changes", len(v.Changes))
	l.row("  digest", v.Digest)
	t := front.NewTable("CHANGE", "TYPE", "SIZE", "PATH", "LOOK")
	for _, c := range v.Changes {
		n := c.New
		if n == nil {
			n = c.Old
		}
		if n == nil {
			n = &hub.LayerNode{}
		}
		size := ""
		if n.Type == "file" {
			size = fmt.Sprint(n.Size)
		}
		t.Row(c.Kind, n.Type, size, c.Path, look(&c))
	}
	out := l.String()
	if len(v.Changes) > 0 {
		out += "\n" + a.table(inv, t)
	}
	fields := front.Document{"layer": v.Layer.Layer, "workspace": v.Layer.Workspace, "made": v.Layer.Made, "session": v.Layer.Session,
		"digest": v.Digest, "changes": v.Changes}
	if v.Git != nil {
		out += "\n" + gitChanges(v.Git).Text(a.width(inv))
		fields["git"] = v.Git
	}
	return text(fields, "%s", out), nil
}

// look says why a change deserves a look.
func look(c *hub.LayerChange) string {
	var why []string
	for _, m := range c.Marks {
		why = append(why, m.Kind)
	}
	if c.Stale {
		why = append(why, "stale")
	}
	if c.Kind == "mode" && c.Old != nil && c.New != nil {
		why = append(why, c.Old.Mode+" to "+c.New.Mode)
	}
	return strings.Join(why, ", ")
}

// changesDiff prints the patch as its bytes are. They are a file's content: a terminal is shown
// them escaped.
func (a *app) changesDiff(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.keeper(inv)
	if err != nil {
		return nil, err
	}
	name, err := a.layer(ctx, h, inv)
	if err != nil {
		return nil, err
	}
	q := hub.PatchQuery{Layer: name}
	if inv.Has("binary") {
		q.Files = hub.FilesBinary
	}
	v, err := hub.GetPatch.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return nil, err
	}
	if inv.Has("json") {
		return text(front.Document{"layer": v.Layer, "digest": v.Digest, "patch": v.Patch, "left_out": v.LeftOut, "stale": v.Stale}, ""), nil
	}
	r := &result{streamed: true}
	if _, err := front.Stdout(a.stdout).Write(v.Patch); err != nil {
		return r, err
	}
	for _, path := range v.Stale {
		r.Exit = front.Findings
		fmt.Fprintf(a.stderr, "palyra: stale: %s has changed on the host since the layer was made\n", front.Escape(path))
	}
	for _, s := range v.LeftOut {
		r.Exit = front.Findings
		fmt.Fprintf(a.stderr, "palyra: left out: %s: %s\n", front.Escape(s.Path), front.Escape(s.Why))
	}
	return r, nil
}

func (a *app) changesDiscard(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.keeper(inv)
	if err != nil {
		return nil, err
	}
	name := inv.Operands[0]
	if inv.Has("force") || inv.Has("policy") {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("--force and --policy are for layers of a state directory"))
	}
	if _, err := hub.DiscardLayer.Do(ctx, h, hub.Caller{}, name); err != nil {
		return nil, err
	}
	return text(front.Document{"layer": name}, "discarded layer %s\n", cell(name)), nil
}

// gitChanges is the view of a repository's changes as a terminal shows it.
func gitChanges(v *hub.LayerGit) *front.GitChanges {
	g := &front.GitChanges{Objects: v.Objects, Bytes: v.Bytes, Index: v.Index != nil}
	for _, r := range v.Refs {
		row := front.GitRef{Name: r.Name, Kind: r.Kind, Old: r.Old, New: r.New, Commits: r.Commits, Subjects: r.Subjects}
		for _, m := range r.Marks {
			row.Look = append(row.Look, m.Kind)
		}
		if r.Stale {
			row.Look = append(row.Look, "stale")
		}
		g.Refs = append(g.Refs, row)
	}
	if v.Head != nil {
		g.Head = v.Head.New
	}
	for _, m := range v.Look {
		g.Look = append(g.Look, [2]string{m.Why, m.Kind})
	}
	for _, x := range v.Left {
		g.Left = append(g.Left, [2]string{x.Path, x.Why})
	}
	return g
}

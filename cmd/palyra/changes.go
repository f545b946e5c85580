package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	socket "palyra/hub/place"
	"palyra/internal/fault"
	"palyra/isolate/stage"
	"palyra/kernel/account"
)

// The states of a layer, as palyra changes ls has them.
const (
	layerBusy    = "in use"
	layerEmpty   = "empty"
	layerChanged = "changed"
	layerDamaged = "damaged"
	layerHalf    = "unfinished"
)

// sessionLayer is the form of the names that palyrad gives to the layers of sessions.
var sessionLayer = regexp.MustCompile(`-[0-9a-f]{16}$`)

// layerHere reports whether a command is about the layers of a state directory and not of
// palyrad. A session's layer that is named is looked for here first: this user may run palyrad.
// Bringing it to its workspace is palyrad's; a layer that the command means is named then.
func (a *app) layerHere(inv *command.Invocation) bool {
	if inv.Has("socket") || inv.Has("url") || inv.Has("token-file") || inv.Has("device") {
		return false
	}
	brings := inv.Command.Name == "changes apply" || inv.Command.Name == "changes undo"
	if inv.Has("state") || brings && (inv.Has("no-daemon") || inv.Has("policy") || inv.Has("key")) {
		return true
	}
	state, err := stateDir("", a.getenv)
	if err != nil {
		return true
	}
	name := operand(inv)
	if brings && name == "" {
		names, err := stage.Names(state)
		if err == nil && len(names) == 0 {
			return socket.OwnSocket(a.getenv) == "" // palyrad may have another state directory
		}
		if name, err = a.meant(inv, state, names); err != nil {
			return true // for the error
		}
	}
	switch {
	case !sessionLayer.MatchString(name):
		return true
	case brings && a.keeps(inv, name):
		inv.Operands = []string{name}
		return false
	}
	_, err = stage.Describe(state, name)
	return err == nil
}

// keeps reports whether a layer is of a session of this user's palyrad, by its name. The socket
// decides and not an answer, see handsOver.
func (a *app) keeps(inv *command.Invocation, layer string) bool {
	return sessionLayer.MatchString(layer) && !inv.Has("state") && !inv.Has("no-daemon") && !inv.Has("policy") && !inv.Has("key") && socket.OwnSocket(a.getenv) != ""
}

func (a *app) changesLs(inv *command.Invocation) (*front.Report, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	names, err := stage.Names(state)
	if err != nil {
		return nil, err
	}
	t := front.NewTable("LAYER", "STATE", "MADE", "WORKSPACE").Keep(0)
	layers := []front.Document{}
	for _, name := range names {
		is := layerState(state, name)
		info, err := stage.Describe(state, name)
		if err != nil && is == layerEmpty {
			continue // discarded meanwhile
		}
		made := ""
		if !info.Made.IsZero() {
			made = info.Made.Format(time.RFC3339)
		}
		t.Row(name, is, made, info.Source.Path)
		layers = append(layers, front.Document{"layer": name, "state": is, "made": made, "workspace": info.Source.Path})
	}
	return &front.Report{Text: t.Text(a.width(inv)), Fields: front.Document{"layers": layers}}, nil
}

func layerState(state, name string) string {
	l, err := stage.Open(state, name)
	switch {
	case errors.Is(err, fault.ErrApplyUnfinished):
		return layerHalf
	case fault.KindOf(err) == fault.Busy:
		return layerBusy
	case fault.KindOf(err) == fault.NotFound:
		return layerEmpty
	case err != nil:
		return layerDamaged
	}
	defer l.Close()
	if l.Empty() {
		return layerEmpty
	}
	return layerChanged
}

// layer opens the layer that the command names or means. It first ends an apply that was
// interrupted.
func (a *app) layer(ctx context.Context, inv *command.Invocation) (*stage.Layer, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	name := operand(inv)
	if name == "" {
		names, err := stage.Names(state)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fault.New(fault.NotFound, "not_found", inv.Command.Name, stage.ErrNoLayer).
				WithHint("palyra exec --workspace DIR:staged -- CMD makes one")
		}
		if name, err = a.meant(inv, state, names); err != nil {
			return nil, err
		}
	}
	if err := a.settle(ctx, inv, name); err != nil {
		return nil, err
	}
	return stage.Open(state, name)
}

// meant returns the layer of a command that names none. Each connection of an agent has a layer, so
// there are many in time: it's the only one there is, or the only one with changes (for undo, with
// something to undo) over a workspace that the working directory lies in, or if it lies in none, of
// all.
func (a *app) meant(inv *command.Invocation, state string, names []string) (string, error) {
	if len(names) == 1 {
		return names[0], nil
	}
	has := func(l *stage.Layer) bool { return !l.Empty() }
	what := "changes"
	if inv.Command.Name == "changes undo" {
		has, what = (*stage.Layer).Applied, "something to undo"
	}
	cwd, err := os.Getwd()
	if err == nil {
		cwd, err = filepath.EvalSymlinks(cwd)
	}
	var here, all []string
	for _, name := range names {
		l, oerr := stage.Open(state, name)
		if fault.KindOf(oerr) == fault.NotFound {
			continue // discarded meanwhile
		}
		if oerr == nil {
			meant := has(l)
			l.Close()
			if !meant {
				continue
			}
		}
		// One that can't be opened, as it's in use, may be meant.
		all = append(all, name)
		info, derr := stage.Describe(state, name)
		if rel, rerr := filepath.Rel(info.Source.Path, cwd); err == nil && derr == nil && rerr == nil && filepath.IsLocal(rel) {
			here = append(here, name)
		}
	}
	if len(here) > 0 {
		all = here
	}
	switch len(all) {
	case 0:
		return "", fault.New(fault.NotFound, "not_found", inv.Command.Name, fmt.Errorf("none of %d layers has %s", len(names), what)).
			WithHint("palyra changes ls lists them")
	case 1:
		return all[0], nil
	}
	return "", fault.New(fault.Usage, "bad_command", inv.Command.Name, fmt.Errorf("%d layers have %s: name one of %s", len(all), what, strings.Join(all, ", "))).
		WithHint("palyra changes ls lists them")
}

func (a *app) changesShow(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	l, err := a.layer(ctx, inv)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	list, err := l.Read(ctx, stage.Limits{})
	if err != nil {
		return nil, err
	}
	digest, err := list.Digest()
	if err != nil {
		return nil, err
	}
	var r account.Rows
	r.Add("layer", "%s", l.Name)
	r.Add("workspace", "%s", l.Source.Path)
	r.Add("made", "%s", l.Made.Format(time.RFC3339))
	r.Add("changes", "%d", len(list.Changes))
	r.Add("digest", "%s", digest)
	t := front.NewTable("CHANGE", "TYPE", "SIZE", "PATH", "LOOK")
	for _, c := range list.Changes {
		n := c.New
		if n == nil {
			n = c.Old
		}
		size := ""
		if n.Type == stage.File {
			size = fmt.Sprint(n.Size)
		}
		t.Row(c.Kind, n.Type, size, c.Path, look(&c))
	}
	text := r.String()
	if len(list.Changes) > 0 {
		text += "\n" + t.Text(a.width(inv))
	}
	fields := front.Document{"layer": l.Name, "workspace": l.Source.Path, "made": l.Made, "digest": digest, "changes": list.Changes}
	if g := list.GitView(); g != nil {
		text += "\n" + gitChanges(g).Text(a.width(inv))
		fields["git"] = g
	}
	return &front.Report{Text: text, Fields: fields}, nil
}

// gitChanges is the view of a repository's changes as a terminal shows it.
func gitChanges(v *stage.GitView) *front.GitChanges {
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

// look says why a change deserves a look.
func look(c *stage.Change) string {
	var why []string
	for _, m := range c.Marks {
		why = append(why, m.Kind)
	}
	if c.Stale {
		why = append(why, "stale")
	}
	if c.Kind == stage.Mode {
		why = append(why, c.Old.Mode+" to "+c.New.Mode)
	}
	return strings.Join(why, ", ")
}

func (a *app) changesDiff(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	l, err := a.layer(ctx, inv)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	list, err := l.Read(ctx, stage.Limits{})
	if err != nil {
		return nil, err
	}
	skipped, err := l.Patch(ctx, front.Stdout(a.stdout), list, inv.Has("binary"))
	if err != nil {
		return nil, err
	}
	rep := &front.Report{}
	say := func(format string, v ...any) {
		fmt.Fprintf(a.stderr, "palyra: %s\n", front.Escape(fmt.Sprintf(format, v...)))
		rep.Exit = front.Findings
	}
	for _, c := range list.Changes {
		if c.Stale {
			say("stale: %s has changed on the host since the layer was made", c.Path)
		}
	}
	git := 0
	for _, s := range skipped {
		if s.Why == stage.SkipGit {
			git++
			continue
		}
		say("left out: %s: %s", s.Path, s.Why)
	}
	if git > 0 {
		say("left out: %d files of .git: %s", git, stage.SkipGit)
	}
	return rep, nil
}

func (a *app) changesDiscard(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	name := inv.Operands[0]
	if !inv.Has("force") {
		if err := a.settle(ctx, inv, name); err != nil {
			return nil, err
		}
	}
	if err := stage.Discard(state, name, inv.Has("force")); err != nil {
		return nil, err
	}
	return &front.Report{Text: fmt.Sprintf("discarded layer %s\n", name), Fields: front.Document{"layer": name}}, nil
}

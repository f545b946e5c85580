package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"palyra/call"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

func (a *app) sessionsLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListSessions.Do(ctx, h, hub.Caller{}, hub.SessionQuery{PageQuery: page(inv), State: command.Value(inv, "state", "")})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("SESSION", "STATE", "CREATED", "PRINCIPAL", "TITLE").Keep(0)
	short := a.ids(inv, len(p.Items), func(i int) string { return p.Items[i].ID })
	for _, s := range p.Items {
		t.Row(short(s.ID), s.State, stamp(s.Created), front.Principal(s.Principal), s.Title)
	}
	return text(front.Document{"sessions": p.Items, "next": p.Next}, "%s%s", a.table(inv, t), more(p.Next)), nil
}

func (a *app) sessionsNew(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	var n hub.NewSession
	if len(inv.Operands) > 0 {
		n.Title = inv.Operands[0]
	}
	s, err := hub.CreateSession.Do(ctx, h, hub.Caller{}, n)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"session": s}, "%s\n", cell(s.ID)), nil
}

func (a *app) sessionsShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.GetSession.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	runs, err := hub.ListRuns.Do(ctx, h, hub.Caller{}, hub.RunQuery{Session: s.ID})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"session": s, "runs": runs.Items, "next": runs.Next}, "%s%s", sessionLine(&s), a.runLines(inv, runs.Items)), nil
}

func (a *app) sessionsEnd(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.EndSession.Do(ctx, h, hub.Caller{}, hub.SessionChange{ID: inv.Operands[0], Version: command.Value(inv, "version", int64(0))})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"session": s}, "%s", sessionLine(&s)), nil
}

func sessionLine(s *hub.Session) string {
	l := newLines()
	l.row("session", s.ID)
	l.row("  state", s.State)
	l.row("  version", s.Version)
	l.row("  principal", front.Principal(s.Principal))
	l.row("  created", stamp(s.Created))
	if s.Title != "" {
		l.row("  title", s.Title)
	}
	for _, e := range s.Inputs {
		said := fmt.Sprintf("%s (%s, step %d of %s, %s)", e.Origin, e.Tool, e.Step, e.Run, stamp(e.Time))
		if call.Untrusted([]string{e.Origin}) {
			said += ", from outside"
		}
		l.row("  has read", said)
	}
	return l.String()
}

func (a *app) runLines(inv *command.Invocation, runs []hub.Run) string {
	t := front.NewTable("RUN", "STATE", "REASON", "CREATED", "CALLS", "PRINCIPAL").Keep(0)
	short := a.ids(inv, len(runs), func(i int) string { return runs[i].ID })
	for _, r := range runs {
		state := r.State
		if r.Background {
			state += ", background"
		}
		t.Row(short(r.ID), state, r.Reason, stamp(r.Created), r.Use.Calls, front.Principal(r.Principal))
	}
	return a.table(inv, t)
}

func (a *app) runsLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	q := hub.RunQuery{PageQuery: page(inv), Session: command.Value(inv, "session", ""), States: command.All[string](inv, "state")}
	if inv.Has("background") {
		q.Only = hub.OnlyBackground
	}
	p, err := hub.ListRuns.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"runs": p.Items, "next": p.Next}, "%s%s", a.runLines(inv, p.Items), more(p.Next)), nil
}

// maxSteps bounds a file of steps.
const maxSteps = 8 << 20

func (a *app) runsStart(ctx context.Context, inv *command.Invocation) (*result, error) {
	n := hub.NewRun{Session: command.Value(inv, "session", ""), Staged: inv.Has("staged"), Parallel: inv.Has("parallel"), IdempotencyKey: command.Value(inv, "key", ""), KeepGoing: inv.Has("keep-going"),
		Budget: hub.Budget{Calls: command.Value(inv, "max-calls", int64(0)), Wall: command.Value(inv, "max-wall", time.Duration(0)), Bytes: command.Value(inv, "max-bytes", int64(0))}}
	if n.Session == "" {
		return nil, need(inv, "session")
	}
	in, name := a.stdin, "standard input"
	if path := inv.Operands[0]; path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.New(fault.Usage, "bad_file", "read steps", err)
		}
		defer f.Close()
		in, name = f, path
	}
	op := fmt.Sprintf("read steps from %q", name)
	b, err := io.ReadAll(io.LimitReader(in, maxSteps+1))
	switch {
	case err != nil:
		return nil, fault.New(fault.Usage, "bad_file", op, err)
	case len(b) > maxSteps:
		return nil, fault.New(fault.Usage, "bad_file", op, fmt.Errorf("more than %d bytes", maxSteps))
	}
	if err := json.Unmarshal(b, &n.Steps); err != nil {
		return nil, fault.New(fault.Usage, "bad_file", op, err).WithHint(`want [{"tool":NAME,"input":{...}}]`)
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	r, err := hub.StartRun.Do(ctx, h, hub.Caller{}, n)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"run": r}, "%s\n", cell(r.ID)), nil
}

func (a *app) runsShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	r, err := hub.GetRun.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"run": r}, "%s", a.runText(inv, &r)), nil
}

func (a *app) runsCancel(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	r, err := hub.CancelRun.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return text(front.Document{"run": r}, "%s", a.runText(inv, &r)), nil
}

// runText returns a run with its steps, and the details of each below.
func (a *app) runText(inv *command.Invocation, r *hub.Run) string {
	l := newLines()
	l.row("run", r.ID)
	l.row("  state", r.State, r.Reason)
	if r.Background {
		l.row("  background", "no caller waits for it")
	}
	l.row("  session", r.Session)
	l.row("  principal", front.Principal(r.Principal))
	if r.Agent != nil {
		l.row("  prompt", r.Agent.Prompt)
	}
	if e := r.Answer; e != nil {
		l.row("  answer", cmp.Or(e.Text, e.Error))
		l.row("  model", fmt.Sprintf("%s, %d tokens read, %d written", turns(int64(e.Turns)), e.Usage.Input, e.Usage.Output))
	}
	l.row("  used", fmt.Sprintf("%d calls, %d bytes, %v", r.Use.Calls, r.Use.Bytes, r.Use.Wall.Round(time.Millisecond)))
	t, more := front.NewTable("STEP", "TOOL", "STATE", "OUTCOME", "EXIT", "RECEIPT"), newLines()
	for _, s := range r.Steps {
		exit, at, step := "", "", fmt.Sprintf("step %d", s.Index)
		if s.Outcome != "" {
			exit = fmt.Sprint(s.Exit)
		}
		if s.LogIndex != nil {
			at = fmt.Sprint(*s.LogIndex)
		}
		t.Row(s.Index, s.Tool, s.State, s.Outcome, exit, at)
		if s.Error != "" {
			more.row(step, "error", s.Error)
		}
		if s.Diagnosis != nil {
			more.row(step, "note", s.Diagnosis.ForCall())
		}
		if d := s.Denial; d != nil {
			more.row(step, "denied by "+d.Layer, d.Reason+" "+fmt.Sprint(d.Policies))
			switch {
			case strings.HasPrefix(d.Fix, "--- "), // a diff has lines; older runs have one
				d.Fix == "" && d.Layer == hub.LayerPolicy && !d.PolicySet.IsZero():
				more.row(step, "fix", "palyra policy why "+d.DecisionID)
			case d.Fix != "":
				more.row(step, "fix", d.Fix)
			}
			if d.Comment != "" {
				l.row("", "  said", d.Comment)
			}
		}
		for _, o := range []struct {
			name string
			out  hub.Output
		}{{"stdout", s.Stdout}, {"stderr", s.Stderr}} {
			switch {
			case !o.out.Artifact.IsZero():
				more.row(step, o.name, fmt.Sprintf("%d bytes, artifact %s", o.out.Size, o.out.Artifact))
			case o.out.Size > 0:
				more.row(step, o.name, fmt.Sprintf("%d bytes: %s", o.out.Size, o.out.Text))
			}
		}
	}
	return l.String() + a.table(inv, t) + more.String()
}

// runsTape prints events as they come.
func (a *app) runsTape(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	q := hub.TapeQuery{Run: inv.Operands[0], After: uint64(command.Value(inv, "after", int64(0)))}
	if inv.Has("tools") {
		q.View = hub.ViewTools
	}
	t, err := hub.ReadTape.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	done, out := &result{streamed: true}, front.Stdout(a.stdout)
	for {
		e, err := t.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return done, nil
		case err != nil:
			return done, err
		}
		if inv.Has("json") {
			err = front.WriteJSON(out, e, "")
		} else {
			_, err = fmt.Fprintf(out, "%6d  %s  %-22s %s\n", e.Seq, stamp(e.Time), cell(e.Kind), cell(string(e.Data)))
		}
		if err != nil {
			return done, err
		}
	}
}

func (a *app) toolsLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	tools, err := hub.ListTools.Do(ctx, h, hub.Caller{}, hub.ToolQuery{})
	if err != nil {
		return nil, err
	}
	table := front.NewTable("TOOL", "SENSITIVE", "DESCRIPTION").Keep(0)
	for _, t := range tools.Items {
		sensitive := ""
		if t.Sensitive {
			sensitive = "yes"
		}
		table.Row(t.Name, sensitive, t.Description)
	}
	left := newLines()
	for _, o := range tools.LeftOut {
		left.row("left out", strings.TrimSuffix(o.Server+" "+o.Tool, " ")+": "+o.Why)
	}
	return text(front.Document{"tools": tools.Items, "left_out": tools.LeftOut}, "%s%s", a.table(inv, table), left), nil
}

func (a *app) toolsShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	tools, err := hub.ListTools.Do(ctx, h, hub.Caller{}, hub.ToolQuery{})
	if err != nil {
		return nil, err
	}
	for _, t := range tools.Items {
		if t.Name == inv.Operands[0] {
			schema, err := json.MarshalIndent(t.InputSchema, "", "  ")
			if err != nil {
				return nil, fault.New(fault.Internal, "internal", fmt.Sprintf("show tool %q", t.Name), err)
			}
			l := newLines()
			l.row(t.Name, t.Description)
			l.row("  tier", t.Tier)
			l.row("  capabilities", fmt.Sprint(t.Capabilities))
			l.row("  limits", string(t.Limits))
			return text(front.Document{"tool": t}, "%s%s\n", l, front.Escape(string(schema))), nil
		}
	}
	return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("show tool %q", inv.Operands[0]), nil).WithHint("see palyra tools ls")
}

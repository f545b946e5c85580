package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/hub/place"
)

func (a *app) status(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.GetStatus.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	l := newLines()
	if s.StatusDetail == nil {
		l.row("palyrad", s.Version, s.Mode)
		if s.DenyNew {
			l.row("  stopped", "new runs are refused; lift with: palyra resume")
		}
		l.row("  you are", s.Caller.User, dash(s.Caller.Role))
		l.row("  hidden", "the rest takes config.read; ask an owner: palyra members set "+s.Caller.User+" operator")
		return text(front.Document{"status": s}, "%s", l), nil
	}
	l.row("palyrad", s.Version, "profile "+s.Profile, s.Mode)
	l.row("  process", s.PID, s.User, "up "+s.Uptime.Round(1e9).String())
	l.row("  policy", s.PolicySet)
	l.row("  journal", s.Journal.Size, "entries", s.Journal.Open, "open")
	l.row("  sessions", s.Counts.SessionsOpen, "open")
	l.row("  runs", s.Counts.RunsActive, "active", s.Counts.RunsQueued, "queued")
	l.row("  approvals", s.Counts.ApprovalsPending, "pending")
	l.row("  pool", s.Pool.Cells, "cells", s.Pool.Networks, "networks")
	l.row("  retention", kept(s.Retention), s.Retention.RemovedRuns, "runs removed", s.Retention.Failed)
	for _, c := range s.Confinement.Controls {
		on := "off"
		if c.On {
			on = "on"
		}
		l.row("  confined", c.Name, on, c.Detail)
	}
	if s.DenyNew {
		l.row("  stopped", "new runs are refused; lift with: palyra resume")
	}
	if len(s.FeaturesOff) > 0 {
		l.row("  features off", strings.Join(s.FeaturesOff, " "))
	}
	for _, w := range s.Warnings {
		l.row("  warning", w)
	}
	l.row("  you are", s.Caller.User, dash(s.Caller.Role))
	return text(front.Document{"status": s}, "%s", l), nil
}

// kept says how long an ended run stays.
func kept(r hub.Retention) string {
	if r.Runs == 0 {
		return "runs for ever"
	}
	return "runs " + r.Runs.String()
}

func (a *app) doctor(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	reach := a.reach(inv)
	d, err := hub.GetDoctor.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		// The user wants to know why palyrad can't be asked, and how palyra keeps keys without it.
		if !inv.Has("socket") && !inv.Has("url") && !inv.Has("device") {
			reach = append(reach, plainKeys(place.StateDir(a.getenv))...)
		}
		if r := text(front.Document{"reach": reach}, "%s", findings(newLines(), reach)); len(missing(reach)) > 0 {
			return r, err
		}
		return nil, err
	}
	l := newLines()
	l.row("linux", d.Kernel, d.Machine)
	all := append(d.Findings, reach...)
	r := text(front.Document{"doctor": d, "reach": reach}, "%s", findings(l, all))
	if none := append(missing(reach), d.Missing...); len(none) > 0 || !d.Healthy {
		r.Text += "missing: " + cell(strings.Join(none, ", ")) + "\n"
		r.Exit = front.Findings
	}
	return r, nil
}

// missing lists the names of the findings whose no costs something.
func missing(fs []hub.Finding) (names []string) {
	for _, f := range fs {
		if f.Answer == "no" && f.Cost != "" {
			names = append(names, f.Name)
		}
	}
	return names
}

func findings(l *lines, fs []hub.Finding) *lines {
	for _, f := range fs {
		l.row("  "+f.Answer, f.Name, f.Detail)
		if f.Answer == "yes" {
			continue
		}
		if f.Cost != "" {
			l.row("", "  costs", f.Cost)
		}
		if f.Fix != "" {
			l.row("", "  fix", f.Fix)
		}
	}
	return l
}

func (a *app) stop(ctx context.Context, inv *command.Invocation) (*result, error) {
	if !inv.Has("all") {
		return nil, need(inv, "all")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.Stop.Do(ctx, h, hub.Caller{}, hub.StopRequest{All: true, DenyNew: inv.Has("deny-new")})
	if err != nil {
		return nil, err
	}
	entry := fmt.Sprintf("entry %d of the journal", s.LogIndex)
	if slices.Contains(s.Pending, "journal") {
		entry = "not in the journal yet"
	}
	r := text(front.Document{"stopped": s}, "stopped %d runs, %s\n", s.Cancelled, entry)
	if s.Left > 0 {
		r.Text += fmt.Sprintf("%d of them were killed and may still have processes\n", s.Left)
	}
	if len(s.Pending) > 0 {
		r.Text += "not written down yet: " + strings.Join(s.Pending, ", ") + "; palyrad goes on trying\n"
	}
	if s.DenyNew {
		r.Text += "new runs are refused; lift with: palyra resume\n"
	}
	return r, nil
}

func (a *app) resume(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.Resume.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	return text(front.Document{"stopped": s}, "new runs are taken, entry %d of the journal\n", s.LogIndex), nil
}

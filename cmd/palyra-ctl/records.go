package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

func (a *app) attestGet(ctx context.Context, inv *command.Invocation) (*result, error) {
	index, err := strconv.ParseUint(inv.Operands[0], 10, 63)
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("read index %q", inv.Operands[0]), errors.New("want a whole number from 0")).WithHint("see palyra journal ls")
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	b, err := hub.GetReceipt.Do(ctx, h, hub.Caller{}, index)
	if err != nil {
		return nil, err
	}
	if inv.Has("json") && !inv.Has("out") {
		return text(front.Document{"index": index, "receipt": string(b)}, ""), nil
	}
	path, err := a.deliver(inv, func(w io.Writer) error { _, err := w.Write(b); return err })
	if err != nil || path == "" {
		return &result{streamed: true}, err
	}
	return text(front.Document{"index": index, "file": path}, "%s\n", cell(path)), nil
}

func (a *app) journalStatus(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.GetJournal.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	l := newLines()
	l.row(s.Origin, s.Size, "entries", len(s.Open), "open")
	// A signed note begins its signatures with an em dash (c2sp.org/signed-note).
	return text(front.Document{"journal": s}, "%s%s", l, strings.ReplaceAll(front.Escape(s.Checkpoint), `\u2014`, "\u2014")), nil
}

// newest is the number of entries to show if the command names no first one.
const newest = 100

func (a *app) journalLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	limit := int(command.Value(inv, "limit", int64(newest)))
	from := uint64(command.Value(inv, "from", int64(0)))
	if !inv.Has("from") {
		s, err := hub.GetJournal.Do(ctx, h, hub.Caller{}, hub.None{})
		if err != nil {
			return nil, err
		}
		if s.Size > uint64(limit) {
			from = s.Size - uint64(limit)
		}
	}
	p, err := hub.ListJournalEntries.Do(ctx, h, hub.Caller{}, hub.JournalQuery{From: from, Limit: limit})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("INDEX", "TIME", "WHAT", "ABOUT", "PRINCIPAL")
	for _, e := range p.Items {
		what, about := e.Outcome, e.Tool
		switch {
		case e.Reduced:
			what = "another's"
		case e.Act != "":
			what, about = e.Act, e.Subject
		case what == "":
			what = "intent"
		}
		t.Row(e.Index, e.Time, what, about, front.Principal(e.Principal))
	}
	return text(front.Document{"entries": p.Items, "next": p.Next}, "%s%s", a.table(inv, t), nextIndex(p.Next)), nil
}

func nextIndex(next string) string {
	if next == "" {
		return ""
	}
	return "more: --from " + cell(next) + "\n"
}

func (a *app) artifactGet(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	art, err := hub.GetArtifact.Do(ctx, h, hub.Caller{}, hub.ArtifactQuery{Run: inv.Operands[0], Digest: inv.Operands[1]})
	if err != nil {
		return nil, err
	}
	defer art.Close()
	path, err := a.deliver(inv, func(w io.Writer) error { _, err := io.Copy(w, art); return err })
	if err != nil || path == "" {
		return &result{streamed: true}, err
	}
	return text(front.Document{"artifact": art.Info(), "file": path}, "%s\n", cell(path)), nil
}

func (a *app) policyLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.GetPolicy.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	return a.policyResult(inv, &p), nil
}

func (a *app) policyReload(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.Reload.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	return a.policyResult(inv, &p), nil
}

func (a *app) policyResult(inv *command.Invocation, p *hub.PolicyInfo) *result {
	source := p.Source
	if source == "" {
		source = "built in"
	}
	t := front.NewTable("EFFECT", "POLICY", "WHERE", "REASON").Keep(1)
	for _, q := range p.Policies {
		t.Row(q.Effect, q.ID, fmt.Sprintf("%s:%d", q.File, q.Line), q.Reason)
	}
	return text(front.Document{"policy": p}, "policy set %s, %s\n%s", cell(p.Digest), cell(source), a.table(inv, t))
}

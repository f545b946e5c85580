package main

import (
	"cmp"
	"context"
	"fmt"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
)

// agentUsage prints what turns of models took, and what is left of budgets.
func (a *app) agentUsage(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	q := hub.UsageQuery{Session: command.Value(inv, "session", ""), Principal: command.Value(inv, "principal", ""), Days: int(command.Value(inv, "days", int64(0)))}
	of := "DAY"
	if inv.Has("all") {
		q.By, of = hub.UsageByPrincipal, "PRINCIPAL"
	}
	u, err := hub.GetUsage.Do(ctx, h, hub.Caller{}, q)
	if err != nil {
		return nil, err
	}
	t := front.NewTable(of, "MODEL", "TURNS", "ASKED", "CACHED", "ANSWERED", "REASONING", "COST").Keep(0, 2, 3, 4, 5, 6, 7)
	row := func(of, model string, n *hub.UsageCount) {
		t.Row(of, model, n.Turns, n.Input, n.Cached, n.Output, n.Reasoning, units(n.Cost))
	}
	for i := range u.Items {
		row(cmp.Or(u.Items[i].Day, u.Items[i].Principal), u.Items[i].Model, &u.Items[i].Took)
	}
	row("all", "", &u.Total)
	more := newLines()
	for _, b := range u.Budgets {
		what := "today"
		if b.Of == hub.UsageSession {
			what = "the session"
		}
		if b.Unit == hub.UsageCost {
			more.row(what, fmt.Sprintf("cost %s of %s, %s left", units(b.Used), units(b.Most), units(b.Left)))
			continue
		}
		more.row(what, fmt.Sprintf("%d of %d tokens, %d left", b.Used, b.Most, b.Left))
	}
	if u.Total.Sized > 0 {
		more.row("by size", turns(u.Total.Sized)+", under way or without their provider's count")
	}
	return text(front.Document{"usage": u}, "%s%s", a.table(inv, t), more), nil
}

func turns(n int64) string {
	if n == 1 {
		return "1 turn"
	}
	return fmt.Sprintf("%d turns", n)
}

// units is a cost in the unit of the models' prices.
func units(millionths int64) string { return fmt.Sprintf("%.6g", float64(millionths)/1e6) }

package main

import (
	"fmt"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/isolate/cache"
)

func (a *app) cachesLs(inv *command.Invocation) (*front.Report, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	list, err := cache.List(state)
	if err != nil {
		return nil, err
	}
	t := front.NewTable("CACHE", "NAME", "SIZE", "USED", "PRINCIPAL", "WORKSPACE").Keep(0)
	all := []front.Document{}
	for _, c := range list {
		made, used, size := "damaged", "damaged", ""
		if c.Damaged == nil {
			made, used = c.Made.Format(time.RFC3339), c.Use.At.Format(time.RFC3339)
			size = fmt.Sprintf("%.1f MiB", float64(c.Use.Bytes)/(1<<20))
		}
		t.Row(c.ID, c.Name, size, used, c.Owner.Principal, c.Owner.Workspace)
		all = append(all, front.Document{"id": c.ID, "name": c.Name, "made": made, "used": used, "bytes": c.Use.Bytes, "principal": c.Owner.Principal,
			"workspace": c.Owner.Workspace, "session": c.Owner.Session})
	}
	return &front.Report{Text: t.Text(a.width(inv)), Fields: front.Document{"caches": all}}, nil
}

func (a *app) cachesRm(inv *command.Invocation) (*front.Report, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	text, removed := "", []string{}
	for _, id := range inv.Operands {
		if err := cache.Remove(state, id); err != nil {
			return nil, err
		}
		text, removed = text+"removed "+id+"\n", append(removed, id)
	}
	return &front.Report{Text: text, Fields: front.Document{"removed": removed}}, nil
}

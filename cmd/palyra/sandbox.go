package main

import (
	"context"
	"fmt"
	"strings"

	"palyra/cmd/internal/front"
	"palyra/internal/fault"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
)

// cell returns the palyra-cell that belongs to this palyra.
func (a *app) cell() (string, error) {
	exe, err := a.executable()
	if err != nil {
		return "", fault.New(fault.Refused, "helper_unusable", "find palyra-cell", err)
	}
	return cellPath(exe)
}

func (a *app) sandboxProbe(ctx context.Context) (*front.Report, error) {
	cell, err := a.cell()
	if err != nil {
		return nil, err
	}
	p, err := probe.Run(ctx, cell)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "linux %s %s, uid %d\n", front.Escape(p.Kernel), front.Escape(p.Machine), p.UID)
	for _, f := range p.Findings {
		fmt.Fprintf(&b, "  %-8s%-28s %s\n", f.Answer, f.Name, front.Escape(f.Detail))
		if f.Answer != probe.Yes {
			fmt.Fprintf(&b, "          cost: %s\n", f.Cost)
			if f.Hint != "" {
				fmt.Fprintf(&b, "          hint: %s\n", f.Hint)
			}
		}
	}
	r := &front.Report{Fields: front.Document{"host": p}}
	tiers := front.Document{}
	for _, t := range []tier.Tier{tier.C, tier.B} {
		missing := p.Missing(t)
		tiers[t.String()] = front.Document{"enforceable": len(missing) == 0, "missing": missing}
		if len(missing) == 0 {
			fmt.Fprintf(&b, "tier %s can be enforced\n", t)
		} else {
			fmt.Fprintf(&b, "tier %s is refused: %s\n", t, strings.Join(missing, ", "))
		}
	}
	switch {
	case len(p.Missing(tier.C)) == 0:
	case len(p.Missing(tier.B)) == 0:
		r.Exit = front.Findings
	default:
		r.Exit = front.Exit(fault.New(fault.Refused, "", "", nil))
	}
	r.Text, r.Fields["tiers"] = b.String(), tiers
	return r, nil
}

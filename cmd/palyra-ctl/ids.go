package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

// maxPages bounds the search of a list for an id.
const maxPages = 10

// completeTime bounds the wait for palyrad after a press of the tab key.
const completeTime = time.Second

// lister lists a page of the ids or names of a kind, the newest first.
type lister func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error)

var kinds = map[string]lister{
	"session":  idsOf(hub.ListSessions, func(p hub.PageQuery) hub.SessionQuery { return hub.SessionQuery{PageQuery: p} }, func(v *hub.Session) string { return v.ID }),
	"run":      idsOf(hub.ListRuns, func(p hub.PageQuery) hub.RunQuery { return hub.RunQuery{PageQuery: p} }, func(v *hub.Run) string { return v.ID }),
	"approval": idsOf(hub.ListApprovals, func(p hub.PageQuery) hub.ApprovalQuery { return hub.ApprovalQuery{PageQuery: p} }, func(v *hub.Approval) string { return v.ID }),
	"token":    idsOf(hub.ListTokens, func(p hub.PageQuery) hub.TokenQuery { return hub.TokenQuery{PageQuery: p} }, func(v *hub.Token) string { return v.ID }),
	"passkey":  idsOf(hub.ListPasskeys, pageless, func(v *hub.Passkey) string { return v.ID }),
	"grant":    idsOf(hub.ListGrants, pageless, func(v *hub.StandingGrant) string { return v.ID }),
	"member":   idsOf(hub.ListMembers, pageless, func(v *hub.Member) string { return v.Principal }),
	"device":   idsOf(hub.ListDevices, pageless, func(v *hub.Device) string { return v.ID }),
	"model":    idsOf(hub.ListModels, pageless, func(v *hub.Model) string { return v.Name }),
	"pairing":  idsOf(hub.ListPairings, pageless, func(v *hub.Pairing) string { return v.ID }),
	"tool": func(ctx context.Context, h hub.Hub, _ hub.PageQuery) (ids []string, _ string, err error) {
		v, err := hub.ListTools.Do(ctx, h, hub.Caller{}, hub.ToolQuery{})
		for _, t := range v.Items {
			ids = append(ids, t.Name)
		}
		return ids, "", err
	},
}

// pageless is for lists that have no pages.
func pageless(hub.PageQuery) hub.None { return hub.None{} }

func idsOf[In, T any](op hub.Op[In, hub.Page[T]], in func(hub.PageQuery) In, id func(*T) string) lister {
	return func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error) {
		v, err := op.Do(ctx, h, hub.Caller{}, in(p))
		ids = make([]string, 0, len(v.Items))
		for i := range v.Items {
			ids = append(ids, id(&v.Items[i]))
		}
		return ids, v.Next, err
	}
}

// complete prints the ids or names of a kind, one a line.
func (a *app) complete(ctx context.Context, inv *command.Invocation) (*result, error) {
	kind := inv.Operands[0]
	list, ok := kinds[kind]
	if !ok {
		return nil, fault.New(fault.Usage, "bad_command", "list ids", fmt.Errorf("there is no kind %q", kind)).WithHint("see palyra help complete")
	}
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	ids, _, err := list(ctx, h, hub.PageQuery{})
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, id := range ids {
		if front.Escape(id) == id && !strings.ContainsAny(id, " \t\n\"'\\$`") {
			// Leave out the others: a shell splits the list.
			b.WriteString(id + "\n")
		}
	}
	return text(front.Document{"kind": kind, "ids": ids}, "%s", b.String()), nil
}

// beginning is the beginning of an id, as tables on a terminal show it.
var beginning = regexp.MustCompile(`^[a-z]{3}_[0-9a-f]{4,31}$`)

// whole replaces the beginnings of ids among the operands by the ids.
func (a *app) whole(ctx context.Context, inv *command.Invocation) error {
	for i, takes := range inv.Command.Takes {
		kind, ok := strings.CutPrefix(takes, "@")
		if list := kinds[kind]; ok && list != nil && i < len(inv.Operands) && beginning.MatchString(inv.Operands[i]) {
			id, err := a.find(ctx, inv, kind, inv.Operands[i])
			if err != nil {
				return err
			}
			inv.Operands[i] = id
		}
	}
	return nil
}

// find returns the one id of a kind that begins so.
func (a *app) find(ctx context.Context, inv *command.Invocation, kind, start string) (found string, err error) {
	op := fmt.Sprintf("find %s %q", kind, start)
	h, err := a.connect(inv)
	if err != nil {
		return "", err
	}
	p := hub.PageQuery{Limit: 1000}
	for range maxPages {
		ids, next, err := kinds[kind](ctx, h, p)
		if err != nil {
			return "", err
		}
		for _, id := range ids {
			switch {
			case !strings.HasPrefix(id, start):
			case found != "" && found != id:
				return "", fault.New(fault.Usage, "bad_command", op, fmt.Errorf("%s and %s begin so", found, id)).WithHint("give more digits of it")
			default:
				found = id
			}
		}
		if p.After = next; next == "" {
			break
		}
	}
	if found == "" {
		return "", fault.New(fault.NotFound, "not_found", op, fmt.Errorf("no %s begins so", kind)).WithHint(fault.Lists(kind))
	}
	return found, nil
}

package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
	"palyra/kernel/config"
	"palyra/kernel/hub"
)

// maxPages bounds how much of a list is looked through for an id.
const maxPages = 10

// completeTime bounds the wait for palyrad while somebody presses the tabulator.
const completeTime = time.Second

// kinds lists what there is of a kind: ids, or names. The newest come first.
var kinds = map[string]func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error){
	"session": func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Sessions(ctx, hub.Caller{}, hub.SessionQuery{PageQuery: p})
		for i := range v.Items {
			ids = append(ids, v.Items[i].ID)
		}
		return ids, v.Next, err
	},
	"run": func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Runs(ctx, hub.Caller{}, hub.RunQuery{PageQuery: p})
		for i := range v.Items {
			ids = append(ids, v.Items[i].ID)
		}
		return ids, v.Next, err
	},
	"approval": func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Approvals(ctx, hub.Caller{}, hub.ApprovalQuery{PageQuery: p})
		for i := range v.Items {
			ids = append(ids, v.Items[i].ID)
		}
		return ids, v.Next, err
	},
	"grant": func(ctx context.Context, h hub.Hub, _ hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Grants(ctx, hub.Caller{})
		for i := range v.Items {
			ids = append(ids, v.Items[i].ID)
		}
		return ids, "", err
	},
	"token": func(ctx context.Context, h hub.Hub, p hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Tokens(ctx, hub.Caller{}, hub.TokenQuery{PageQuery: p})
		for i := range v.Items {
			ids = append(ids, v.Items[i].ID)
		}
		return ids, v.Next, err
	},
	"member": func(ctx context.Context, h hub.Hub, _ hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Members(ctx, hub.Caller{})
		for i := range v.Items {
			ids = append(ids, v.Items[i].Principal)
		}
		return ids, "", err
	},
	"tool": func(ctx context.Context, h hub.Hub, _ hub.PageQuery) (ids []string, next string, err error) {
		v, err := h.Tools(ctx, hub.Caller{})
		for i := range v {
			ids = append(ids, v[i].Name)
		}
		return ids, "", err
	},
}

// complete prints what there is of a kind, one a line.
func (a *app) complete(ctx context.Context, inv *command.Invocation) (*result, error) {
	kind := inv.Operands[0]
	ids := []string{}
	switch list, ok := kinds[kind]; {
	case kind == "key":
		for _, k := range config.Keys() {
			ids = append(ids, k.Name)
		}
	case !ok:
		return nil, fault.New(fault.Usage, "bad_kind", "list ids", fmt.Errorf("there is no kind %q", kind)).WithHint("see palyra help complete")
	default:
		ctx, cancel := context.WithTimeout(ctx, completeTime)
		defer cancel()
		h, err := a.connect(inv)
		if err != nil {
			return nil, err
		}
		if ids, _, err = list(ctx, h, hub.PageQuery{}); err != nil {
			return nil, err
		}
	}
	var b strings.Builder
	for _, id := range ids {
		if front.Escape(id) == id && !strings.ContainsAny(id, " \t\n\"'\\$`") { // a shell splits the list
			b.WriteString(id + "\n")
		}
	}
	return text(front.Document{"kind": kind, "ids": ids}, "%s", b.String()), nil
}

// beginning is the beginning of an id: as tables on a terminal show it.
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

// find is the one id of a kind that begins so.
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
				return "", fault.New(fault.Usage, "ambiguous_id", op, fmt.Errorf("%s and %s begin so", found, id)).WithHint("give more digits of it")
			default:
				found = id
			}
		}
		if p.After = next; next == "" {
			break
		}
	}
	if found == "" {
		return "", fault.New(fault.NotFound, "no_such_"+kind, op, nil)
	}
	return found, nil
}

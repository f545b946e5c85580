package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// getUsage sums what turns of models took: the caller's, or those of a principal, a session or all,
// as far as the caller sees them.
func (h *Hub) getUsage(ctx context.Context, c hub.Caller, q hub.UsageQuery) (u hub.Usage, err error) {
	if u, err = h.usageOf(ctx, c, &q); err != nil {
		return u, err
	}
	whose, today := q.Principal, store.DayOf(time.Now())
	from := int64(0)
	if q.Session != "" {
		whose = q.Session
	} else if q.Days == 0 {
		q.Days = hub.DefaultUsageDays
	}
	if q.Days > 0 {
		from = today - int64(q.Days) + 1
	}
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return u, err
	}
	defer release()
	_, err = store.View(ctx, h.st, func(tx *store.Tx) (any, error) {
		if q.By != "" {
			return nil, tx.UsageByAll(from, func(principal string, r *store.Usage) {
				u.Items = append(u.Items, hub.DayUsage{Principal: principal, Model: r.Model, Took: took(r)})
				u.Total = plus(u.Total, took(r))
			})
		}
		rows, err := tx.Usage(whose, from)
		if err == nil && len(rows) == 0 && q.Principal != c.User && h.access.Role(q.Principal) == "" {
			return nil, noSuch("member", q.Principal)
		}
		for i := range rows {
			u.Items = append(u.Items, hub.DayUsage{Day: time.Unix(rows[i].Day*24*60*60, 0).UTC().Format(time.DateOnly), Model: rows[i].Model, Took: took(&rows[i])})
			u.Total = plus(u.Total, took(&rows[i]))
		}
		if err == nil && q.Session != "" {
			err = h.budgets(tx, &u, hub.UsageSession, q.Session, 0)
		}
		if err == nil {
			err = h.budgets(tx, &u, hub.UsageDay, q.Principal, today)
		}
		return nil, err
	})
	return u, err
}

// usageOf returns the empty answer to a query, and completes that. It refuses what the caller
// doesn't see.
func (h *Hub) usageOf(ctx context.Context, c hub.Caller, q *hub.UsageQuery) (u hub.Usage, err error) {
	bad := func(err error) (hub.Usage, error) {
		return u, fault.New(fault.Usage, "invalid_input", "get usage", err)
	}
	switch {
	case q.Days < 0 || q.Days > hub.MaxUsageDays:
		return bad(fmt.Errorf("want 1 to %d days", hub.MaxUsageDays))
	case q.By != "" && q.By != hub.UsageByPrincipal:
		return bad(fmt.Errorf("%.40q is not %q", q.By, hub.UsageByPrincipal))
	case q.Session != "" && q.Principal != "", q.By != "" && q.Session+q.Principal != "":
		return bad(errors.New("a principal, a session and all principals exclude each other"))
	case q.By != "":
		err = h.need(c, access.MemberManage)
	case q.Session != "":
		var s *store.Session
		if s, err = h.session(ctx, c, q.Session); err == nil {
			q.Principal = s.Principal
		}
	case q.Principal == "":
		q.Principal = c.User
	case !h.sees(c, q.Principal):
		err = noSuch("member", q.Principal)
	}
	return hub.Usage{Principal: q.Principal, Session: q.Session, Items: []hub.DayUsage{}, Budgets: []hub.UsageBudget{}}, err
}

func took(r *store.Usage) hub.UsageCount {
	return hub.UsageCount{Turns: r.Turns, Sized: r.Sized,
		AgentUsage: hub.AgentUsage{Input: r.Input, Cached: r.Cached, Output: r.Output, Reasoning: r.Reasoning, Cost: r.Cost}}
}

func plus(a, b hub.UsageCount) hub.UsageCount {
	return hub.UsageCount{Turns: a.Turns + b.Turns, Sized: a.Sized + b.Sized, AgentUsage: hub.AgentUsage{Input: a.Input + b.Input, Cached: a.Cached + b.Cached,
		Output: a.Output + b.Output, Reasoning: a.Reasoning + b.Reasoning, Cost: a.Cost + b.Cost}}
}

// budgets adds the bounds on the turns of a session or a principal's day.
func (h *Hub) budgets(tx *store.Tx, u *hub.Usage, of, whose string, from int64) error {
	s := h.spending()
	tokens, cost := s.DayTokens, s.DayCost
	if of == hub.UsageSession {
		tokens, cost = s.SessionTokens, s.SessionCost
	}
	took, paid, err := tx.Spent(whose, from)
	for _, b := range []hub.UsageBudget{{Of: of, Unit: hub.UsageTokens, Most: tokens, Used: took}, {Of: of, Unit: hub.UsageCost, Most: cost, Used: paid}} {
		if b.Most > 0 {
			b.Left = max(0, b.Most-b.Used)
			u.Budgets = append(u.Budgets, b)
		}
	}
	return err
}

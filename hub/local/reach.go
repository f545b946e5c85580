package local

import (
	"context"
	"slices"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// Bounds of what getReach looks at and answers.
const (
	reachEntries  = 1000
	reachSessions = 50
	reachHosts    = 100 // of each kind, in a session
)

func (h *Hub) getReach(ctx context.Context, c hub.Caller, q hub.ReachQuery) (none hub.Reach, err error) {
	if err := h.need(c, access.PolicyRead); err != nil { // it tells of statements, which are told as a whole
		return none, err
	}
	release, err := h.reads(ctx, c, scanBytes)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return none, err
	}
	defer over()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return none, err
	}
	out := hub.Reach{Size: s.Size, From: s.Size - min(s.Size, reachEntries), Sessions: []hub.SessionReach{}}
	for d, err := range kernel.Decisions(h.k.JournalEntries, s.Size, reachEntries) {
		if err == nil && ctx.Err() != nil {
			err = fault.New(fault.Canceled, "canceled", "get reach", context.Cause(ctx))
		}
		if err != nil {
			return none, err
		}
		p := &d.Statement.Predicate
		owner := ownerOf(p.Principal)
		if !h.sees(c, owner) || q.Session != "" && p.SessionID != q.Session {
			continue
		}
		out.Calls++
		i := slices.IndexFunc(out.Sessions, func(x hub.SessionReach) bool { return x.Session == p.SessionID && x.Principal == owner })
		if i < 0 {
			if len(out.Sessions) == reachSessions {
				out.Cut = true
				continue
			}
			i = len(out.Sessions)
			out.Sessions = append(out.Sessions, hub.SessionReach{Session: p.SessionID, Principal: owner, Newest: p.Time,
				Networks: []string{}, May: []string{}, Connected: []hub.HostReached{}, Denied: []hub.HostDenied{}})
		}
		out.Cut = reached(&out.Sessions[i], &d.Statement, d.Index) || out.Cut
	}
	return out, nil
}

// reached adds a call to its session's part. It reports whether something is left out.
func reached(s *hub.SessionReach, st *receipt.Statement, index uint64) (cut bool) {
	p := &st.Predicate
	s.Calls++
	if st.IsIntent() {
		s.Open++
	}
	add := func(list *[]string, text string) {
		switch i, ok := slices.BinarySearch(*list, text); {
		case ok || text == "":
		case len(*list) == reachHosts:
			cut = true
		default:
			*list = slices.Insert(*list, i, text)
		}
	}
	add(&s.Networks, p.Capsule.Network)
	for _, rule := range p.Capsule.EgressHosts {
		add(&s.May, rule)
	}
	seen := evidence.Decode(p.Evidence)
	if seen == nil {
		return cut
	}
	for _, x := range seen.Egress.Connections {
		i := slices.IndexFunc(s.Connected, func(h hub.HostReached) bool { return h.Host == x.Host && h.Port == x.Port })
		if i < 0 {
			if len(s.Connected) == reachHosts {
				cut = true
				continue
			}
			i = len(s.Connected)
			s.Connected = append(s.Connected, hub.HostReached{Host: x.Host, Port: x.Port, Entry: index})
		}
		h := &s.Connected[i]
		h.Connections, h.Sent, h.Received = h.Connections+1, h.Sent+x.Sent, h.Received+x.Received
	}
	for _, x := range seen.Egress.Denied {
		rule, why, ok := kernel.RuleFor(x)
		if !ok {
			why = x.Why
		}
		i := slices.IndexFunc(s.Denied, func(h hub.HostDenied) bool { return h.Host == x.Host && h.Port == x.Port && h.Why == why })
		if i < 0 {
			if len(s.Denied) == reachHosts {
				cut = true
				continue
			}
			i = len(s.Denied)
			s.Denied = append(s.Denied, hub.HostDenied{Host: x.Host, Port: x.Port, Why: why, Entry: index})
			if ok && why != evidence.DenyForbidden {
				s.Denied[i].Rule = rule
			}
		}
		s.Denied[i].Times += x.Times
	}
	return cut
}

package egress

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"palyra/call/egress/reach"
	"palyra/isolate/evidence"
)

// check looks up the names of the rules, judges what they lead to as for a connection, and returns
// what it found. What isn't permitted is among the denied. Rules of networks say nothing that could
// be looked up, nor do those of all names below one.
func (s *session) check(ctx context.Context) *evidence.Egress {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx, s.cancel = ctx, cancel
	var mu sync.Mutex // guards found
	var found []evidence.Checked
	var asking sync.WaitGroup
	var seen []string
	for _, r := range s.rules.All() {
		host, below := r.Name()
		if p := r.Prefix(); p.IsValid() && p.IsSingleIP() {
			if err := reach.Permit(p.Addr(), r.Port(), s.rules); err != nil {
				s.deny(p.Addr().String(), r.Port(), evidence.DenyForbidden)
			} else {
				mu.Lock()
				found = append(found, evidence.Checked{Host: p.Addr().String()})
				mu.Unlock()
			}
		}
		if host == "" || below || slices.Contains(seen, host) {
			continue
		}
		seen = append(seen, host)
		asking.Go(func() {
			n, err := s.find(host)
			if err != nil || len(n.ports) == 0 {
				return // it's among the denied
			}
			c := evidence.Checked{Host: host}
			for _, a := range n.addrs {
				c.Addresses = append(c.Addresses, a.String())
			}
			mu.Lock()
			found = append(found, c)
			mu.Unlock()
		})
	}
	asking.Wait()
	s.close()
	s.wg.Wait()
	s.Wipe()
	slices.SortFunc(found, func(a, b evidence.Checked) int { return cmp.Compare(a.Host, b.Host) })
	s.ev.Checked = slices.CompactFunc(found, func(a, b evidence.Checked) bool { return a.Host == b.Host })
	return &s.ev
}

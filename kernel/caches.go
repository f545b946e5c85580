package kernel

import (
	"fmt"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cache"
)

// Caches are folders that the program writes and that later calls of the same principal and
// workspace read. The program finds them below isolate.CacheRoot. The environment names those that
// some program is known to have. A call uses its caches from its decision to its end, beside
// others. Those that are HOME and /tmp belong to the call's session, too: what a program is told
// there, another task's isn't.

// takeCaches opens the caches that the capsule names.
func (c *call) takeCaches() error {
	if c.s.mcp != nil { // the running program has them
		return nil
	}
	who := principal(c.who.Principal)
	if most := c.k.cfg.CacheQuota; most > 0 && len(c.s.capsule.Caches) > 0 {
		held, err := cache.Held(c.k.cfg.StateDir, who)
		if err != nil {
			return err
		}
		if held >= most {
			return fault.New(fault.Unavailable, "quota", "use caches", fmt.Errorf("those of %.80s take %d bytes, limit %d", who, held, most)).
				WithHint("remove some: palyra caches ls, palyra caches rm")
		}
	}
	return c.s.takeCaches(c.k.cfg.StateDir, who, c.session)
}

func (s *sealed) takeCaches(state, who, session string) error {
	w := s.capsule.Workspace
	for _, name := range s.capsule.Caches {
		o := cache.Owner{Principal: who, Workspace: w.Source, UID: w.UID, GID: w.GID}
		if isolate.OfSession(name) {
			o.Session = session
		}
		got, err := cache.Take(state, o, name)
		if err != nil {
			return err
		}
		s.caches = append(s.caches, got)
		if name == isolate.CacheHome && len(s.home) > 0 {
			if err := got.Fill(s.home); err != nil {
				return err
			}
		}
	}
	return nil
}

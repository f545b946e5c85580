package kernel

import "palyra/isolate/cache"

// Caches are folders that the program writes and that later calls of the same principal and
// workspace read. The program finds them below isolate.CacheRoot. The environment names those that some
// program is known to have. A call uses its caches from its decision to its end, beside others.

// takeCaches opens the caches that the capsule names.
func (c *call) takeCaches() error {
	return c.s.takeCaches(c.k.cfg.StateDir, principal(c.who.Principal))
}

func (s *sealed) takeCaches(state, who string) error {
	w := s.capsule.Workspace
	for _, name := range s.capsule.Caches {
		got, err := cache.Take(state, cache.Owner{Principal: who, Workspace: w.Source, UID: w.UID, GID: w.GID}, name)
		if err != nil {
			return err
		}
		s.caches = append(s.caches, got)
	}
	return nil
}

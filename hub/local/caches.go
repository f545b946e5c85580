package local

import (
	"context"
	"errors"
	"strconv"
	"time"

	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/isolate/cache"
	"palyra/kernel"
)

// Caches lie in the state directory and are the kernel's. A session's, which programs have as
// HOME, go when it ends; a call of it that is still being killed keeps them for retireCaches.

// endCaches removes the caches of a session that has ended.
func (h *Hub) endCaches(session string) {
	if err := cache.EndSession(h.k.StateDir(), session); err != nil {
		h.cfg.Log.Warn("remove the caches of a session", "session", session, "error", err)
	}
}

// retireCaches removes the caches that no call has used for so long, and those of sessions that
// are over, and tells the journal before.
func (h *Hub) retireCaches(ctx context.Context, unused time.Duration) (removed int64, err error) {
	list, err := cache.List(h.k.StateDir())
	if err != nil {
		return 0, err
	}
	var gone []cache.Listed
	var bytes int64
	for _, c := range list {
		if c.Damaged != nil { // palyra caches ls shows it
			continue
		}
		over := unused > 0 && c.Use.At.Before(h.cfg.Clock.Earliest().Add(-unused))
		if !over && c.Owner.Session != "" {
			s, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Session, error) { return tx.Session(c.Owner.Session) })
			switch {
			case fault.KindOf(err) == fault.NotFound:
				over = true
			case err != nil:
				return 0, err
			default:
				over = s.State == store.SessionEnded
			}
		}
		if over {
			gone, bytes = append(gone, c), bytes+c.Use.Bytes
		}
	}
	if len(gone) == 0 {
		return 0, nil
	}
	detail := map[string]string{"caches": strconv.Itoa(len(gone)), "cache_bytes": strconv.FormatInt(bytes, 10)}
	ctx = context.WithoutCancel(ctx)
	if _, err := h.k.Record(ctx, kernel.Act{Act: actRetire, Principal: self(), Detail: detail}); err != nil {
		return 0, err
	}
	var errs []error
	for _, c := range gone {
		err := cache.Remove(h.k.StateDir(), c.ID)
		switch fault.KindOf(err) {
		case fault.Busy: // used again; the next sweep looks
			continue
		case fault.NotFound:
			err = nil
		}
		errs = append(errs, err)
		removed++
	}
	return removed, errors.Join(errs...)
}

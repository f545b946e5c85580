package local

import (
	"context"
	"errors"
	"strconv"
	"time"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
)

// Keep says what Retain keeps of ended things.
type Keep struct {
	Runs          time.Duration // since a run ended; 0: for ever
	ArtifactBytes int64         // of all artifacts; 0: no bound but the store's
	Caches        time.Duration // that no call uses for so long are removed; 0: never
	Sessions      time.Duration // that are open and had no run for so long end; 0: never
	Every         time.Duration // how often Retain is called; for Status
}

// actRetire is the act under which the journal lists removals.
const actRetire = "retention.sweep"

// Retain removes everything beyond keep and puts a list of it into the journal. It never
// touches the journal's own entries, or a run that hasn't ended. A clock that was set
// forward removes nothing until that has lasted for clock.Settle.
func (h *Hub) Retain(ctx context.Context, keep Keep) error {
	h.retaining.Lock()
	defer h.retaining.Unlock()
	p := store.Retention{ArtifactBytes: keep.ArtifactBytes}
	if keep.Runs > 0 {
		p.Before = h.cfg.Clock.Earliest().Add(-keep.Runs)
	}
	ended, err := h.endIdle(ctx, keep.Sessions)
	err = errors.Join(err, h.st.Retire(ctx, p))
	gone, oerr := h.recordRetired(ctx)
	layers, lerr := h.retireLayers(ctx, ended)
	caches, cerr := h.retireCaches(ctx, keep.Caches)
	err = errors.Join(err, oerr, lerr, cerr)
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.retention
	r.Runs, r.ArtifactBytes, r.Sessions, r.Every = keep.Runs, keep.ArtifactBytes, keep.Sessions, keep.Every
	now := time.Now().UTC()
	r.Last, r.Failed = &now, fault.ReasonOf(err)
	if err != nil && r.Failed == "" {
		r.Failed = "internal"
	}
	r.RemovedRuns += gone.Runs
	r.RemovedArtifacts += gone.Artifacts
	r.RemovedBytes += gone.ArtifactBytes
	r.RemovedLayers += layers
	r.Caches = keep.Caches
	r.RemovedCaches += caches
	r.EndedSessions += ended
	return err
}

// maxIdle bounds the sessions that one sweep ends.
const maxIdle = 256

// endIdle ends open sessions that had no run for so long: their clients are gone.
func (h *Hub) endIdle(ctx context.Context, idle time.Duration) (ended int64, err error) {
	if idle <= 0 {
		return 0, nil
	}
	var rows []store.Session
	err = h.st.Update(ctx, func(tx *store.Tx) (err error) {
		if rows, err = tx.IdleSessions(h.cfg.Clock.Earliest().Add(-idle), maxIdle); err != nil {
			return err
		}
		for i := range rows {
			if _, err := session.EndIn(tx, rows[i].ID, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	over := make(map[string]bool, len(rows))
	for i := range rows {
		over[rows[i].ID] = true
		err = errors.Join(err, h.release(ctx, rows[i].ID))
	}
	h.runs.Approvals().Drop(func(g *approval.Standing) bool { return over[g.Session] })
	return int64(len(rows)), err
}

// retireLayers removes the layers whose sessions are gone, and tells the journal of them and of
// the sessions that were ended, before.
func (h *Hub) retireLayers(ctx context.Context, ended int64) (int64, error) {
	names, bytes, err := h.layers.orphans(ctx)
	if len(names) == 0 && ended == 0 {
		return 0, err
	}
	detail := map[string]string{"ended_sessions": strconv.FormatInt(ended, 10), "layers": strconv.Itoa(len(names)), "layer_bytes": strconv.FormatInt(bytes, 10)}
	ctx = context.WithoutCancel(ctx)
	if _, rerr := h.k.Record(ctx, kernel.Act{Act: actRetire, Principal: self(), Detail: detail}); rerr != nil {
		return 0, errors.Join(err, rerr)
	}
	return int64(len(names)), errors.Join(err, h.layers.discard(names))
}

// recordRetired puts removals into the journal that it lacks: those of this sweep, or of
// one that was interrupted.
func (h *Hub) recordRetired(ctx context.Context) (store.Retired, error) {
	gone, err := h.st.OwedRetirement(ctx)
	if err != nil || !gone.Any() {
		return store.Retired{}, err
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	detail := map[string]string{"runs": n(gone.Runs), "steps": n(gone.Steps), "approvals": n(gone.Approvals), "sessions": n(gone.Sessions),
		"emptied_runs": n(gone.Emptied), "artifacts": n(gone.Artifacts), "artifact_bytes": n(gone.ArtifactBytes), "memories": n(gone.Memories)}
	if !gone.Last.IsZero() {
		detail["first_ended"], detail["last_ended"] = gone.First.Format(time.RFC3339), gone.Last.Format(time.RFC3339)
	}
	// Nothing may get lost between the two: an entry may appear twice instead.
	ctx = context.WithoutCancel(ctx)
	if _, err := h.k.Record(ctx, kernel.Act{Act: actRetire, Principal: self(), Detail: detail}); err != nil {
		return store.Retired{}, err
	}
	return gone, h.st.PaidRetirement(ctx, gone)
}

// retained returns the part of Status about retention.
func (h *Hub) retained() hub.Retention {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.retention
}

package local

import (
	"context"
	"errors"
	"strconv"
	"time"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
)

// Keep says what Retain keeps of ended things.
type Keep struct {
	Runs          time.Duration // since a run ended; 0: for ever
	ArtifactBytes int64         // of all artifacts; 0: no bound but the store's
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
	err := h.st.Retire(ctx, p)
	gone, oerr := h.recordRetired(ctx)
	err = errors.Join(err, oerr)
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.retention
	r.Runs, r.ArtifactBytes, r.Every = keep.Runs, keep.ArtifactBytes, keep.Every
	now := time.Now().UTC()
	r.Last, r.Failed = &now, fault.ReasonOf(err)
	if err != nil && r.Failed == "" {
		r.Failed = "internal"
	}
	r.RemovedRuns += gone.Runs
	r.RemovedArtifacts += gone.Artifacts
	r.RemovedBytes += gone.ArtifactBytes
	return err
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
		"emptied_runs": n(gone.Emptied), "artifacts": n(gone.Artifacts), "artifact_bytes": n(gone.ArtifactBytes)}
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

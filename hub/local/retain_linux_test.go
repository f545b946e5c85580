package local

import (
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/kernel"
)

// sweeps returns the details of the sweeps that the journal knows of.
func (h *house) sweeps() (found []map[string]string) {
	h.t.Helper()
	p, err := hub.ListJournalEntries.Do(h.t.Context(), h, h.owner, hub.JournalQuery{From: 0, Limit: maxEntries})
	if err != nil || p.Next != "" {
		h.t.Fatal(p.Next, err)
	}
	for _, e := range p.Items {
		if e.Act == actRetire {
			b, err := hub.GetReceipt.Do(h.t.Context(), h, h.owner, e.Index)
			if err != nil {
				h.t.Fatal(err)
			}
			found = append(found, map[string]string{"receipt": string(b), "statement": string(e.Statement)})
		}
	}
	return found
}

// TestRetain: what has ended goes when its time is over, and what has not stays;
// the journal stays whole and knows of each sweep that removed something.
func TestRetain(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	old := h.call(h.owner, argv("/usr/bin/seq", "5000"))
	ended := h.start(h.owner, argv("true"), argv("false"))
	h.ended(h.owner, ended.ID)
	live := h.start(h.owner, argv("sleep", "60"))
	h.until(h.owner, live.ID, hub.EventStepStarted)
	size := func() uint64 {
		s, err := hub.GetJournal.Do(ctx, h, h.owner, hub.None{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Size
	}

	before := size()
	if err := h.Retain(ctx, Keep{Runs: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if r, err := hub.GetRun.Do(ctx, h, h.owner, old.ID); err != nil || r.State != hub.RunDone || len(h.sweeps()) != 0 {
		t.Fatalf("too early: %+v, %v, %d sweeps", r, err, len(h.sweeps()))
	}
	if err := h.Retain(ctx, Keep{Runs: time.Nanosecond, Every: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{old.ID, ended.ID} {
		if _, err := hub.GetRun.Do(ctx, h, h.owner, id); fault.KindOf(err) != fault.NotFound {
			t.Errorf("run %s: %v", id, err)
		}
	}
	if _, err := hub.GetArtifact.Do(ctx, h, h.owner, hub.ArtifactQuery{Run: old.ID, Digest: old.Steps[0].Stdout.Artifact.String()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("its artifact: %v", err)
	}
	if _, err := hub.GetSession.Do(ctx, h, h.owner, old.Session); fault.KindOf(err) != fault.NotFound {
		t.Errorf("its session: %v", err)
	}
	if _, err := hub.GetSession.Do(ctx, h, h.owner, ended.Session); err != nil { // open
		t.Errorf("an open session: %v", err)
	}
	if r, err := hub.GetRun.Do(ctx, h, h.owner, live.ID); err != nil || r.State != hub.RunInProgress {
		t.Errorf("the live run: %+v, %v", r, err)
	}
	h.verify(old.Steps[0]) // its receipt is there for ever
	if n := len(h.sweeps()); n != 1 || size() < before+1 {
		t.Errorf("the journal knows of %d sweeps", n)
	}
	s, err := hub.GetStatus.Do(ctx, h, h.owner, hub.None{})
	if r := s.Retention; err != nil || r.Last == nil || r.Failed != "" || r.RemovedRuns != 2 || r.RemovedArtifacts != 1 || r.Every != time.Minute {
		t.Errorf("status says %+v, %v", r, err)
	}
	// Nothing more to remove: nothing to tell.
	if err := h.Retain(ctx, Keep{Runs: time.Nanosecond}); err != nil || len(h.sweeps()) != 1 {
		t.Errorf("again: %v, %d sweeps", err, len(h.sweeps()))
	}
	if _, err := hub.CancelRun.Do(ctx, h, h.owner, live.ID); err != nil {
		t.Fatal(err)
	}

	// A sweep that was cut off before it told the journal is told of later.
	if err := h.st.Retire(ctx, store.Retention{Before: time.Now()}); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.reopen(nil)
	if err := h.Retain(ctx, Keep{}); err != nil || len(h.sweeps()) != 2 {
		t.Errorf("after a restart: %v, %d sweeps", err, len(h.sweeps()))
	}
	h.stop() // asks the oracles, for which results without steps are known
}

// TestRetainClock: a clock that is set forward removes nothing until it has
// stayed so for a day; one that is set back is told of.
func TestRetainClock(t *testing.T) {
	const year, month = 365 * 24 * time.Hour, 30 * 24 * time.Hour
	host, c := clock.TestOnlyNew(time.Now())
	h := newHouse(t, func(cfg *Config, _ *kernel.Config) { cfg.Clock = c })
	r := h.call(h.owner, argv("true"))
	kept := func(when string, want bool) {
		t.Helper()
		if err := h.Retain(t.Context(), Keep{Runs: month}); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.GetRun.Do(t.Context(), h, h.owner, r.ID); want != (err == nil) || err != nil && fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %v", when, err)
		}
	}
	warned := func() bool {
		s, err := hub.GetStatus.Do(t.Context(), h, h.owner, hub.None{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, "clock: ") })
	}
	kept("at first", true)
	host.Step(-2 * year)
	kept("two years behind", true)
	if !warned() {
		t.Error("status does not tell of a clock that is behind")
	}
	host.Step(4 * year)
	kept("two years ahead", true)
	if warned() {
		t.Error("status says that a clock is behind which is ahead")
	}
	host.Pass(clock.Settle)
	kept("two years ahead, for a day", false)
}

// TestRetainClockRestart: nor does a clock that is ahead when palyrad starts.
func TestRetainClockRestart(t *testing.T) {
	h := newHouse(t, nil)
	r := h.call(h.owner, argv("true"))
	if err := h.st.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.BeginIdempotent(store.Idempotency{Principal: h.owner.User, Key: "k", Request: canon.Sum(nil), Created: time.Now(), Expires: time.Now().Add(time.Hour)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	h.stop()
	host, c := clock.TestOnlyNew(time.Now().Add(365 * 24 * time.Hour))
	for range 3 { // each makes a call, a year ahead
		h.reopen(func(cfg *Config, _ *kernel.Config) { cfg.Clock = c })
		if err := h.Retain(t.Context(), Keep{Runs: 30 * 24 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		h.call(h.owner, argv("true"))
		h.stop()
		c = host.Clock()
	}
	h.reopen(func(cfg *Config, _ *kernel.Config) { cfg.Clock = c })
	if err := h.Retain(t.Context(), Keep{Runs: 30 * 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.GetRun.Do(t.Context(), h, h.owner, r.ID); err != nil {
		t.Errorf("a run of today is gone: %v", err)
	}
	keys := func() (n int) {
		if err := h.st.Update(t.Context(), func(tx *store.Tx) (err error) { n, err = tx.ExpireIdempotent(10); return err }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := keys(); n != 0 {
		t.Errorf("%d keys of today are forgotten", n)
	}
	host.Pass(clock.Settle)
	if n := keys(); n != 1 {
		t.Errorf("a day later %d keys are forgotten, want 1", n)
	}
}

// TestRetainArtifacts: with more bytes than allowed the oldest runs lose their
// artifacts, and nothing else.
func TestRetainArtifacts(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	var runs []hub.Run
	for _, n := range []string{"4001", "4002", "4003", "4003"} { // the last two share theirs
		runs = append(runs, h.call(h.owner, argv("/usr/bin/seq", n)))
	}
	total := runs[0].Steps[0].Stdout.Size + runs[1].Steps[0].Stdout.Size + runs[2].Steps[0].Stdout.Size
	for _, test := range []struct {
		most int64
		left int // how many runs keep theirs
	}{{total, 4}, {total - 1, 3}, {total / 2, 2}, {1, 0}} {
		if err := h.Retain(ctx, Keep{ArtifactBytes: test.most}); err != nil {
			t.Fatal(err)
		}
		for i, r := range runs {
			a, err := hub.GetArtifact.Do(ctx, h, h.owner, hub.ArtifactQuery{Run: r.ID, Digest: r.Steps[0].Stdout.Artifact.String()})
			if err == nil {
				a.Close()
			}
			if kept := i >= len(runs)-test.left; kept != (err == nil) {
				t.Errorf("%d bytes: artifact of run %d: %v", test.most, i, err)
			}
			if now, err := hub.GetRun.Do(ctx, h, h.owner, r.ID); err != nil || now.State != hub.RunDone {
				t.Errorf("%d bytes: run %d: %+v, %v", test.most, i, now, err)
			}
		}
	}
	if n := len(h.sweeps()); n != 3 {
		t.Errorf("the journal knows of %d sweeps", n)
	}
}

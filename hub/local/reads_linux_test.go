package local

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/isolate/probe"
	"palyra/kernel"
)

// TestLargePages: however large entries, questions and tapes are, a page is not,
// and all pages together have everything.
func TestLargePages(t *testing.T) {
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.ApprovalTimeout = 30 * time.Second })
	ctx := t.Context()
	big := []string{"true"}
	for range 4 {
		big = append(big, strings.Repeat("x", 100<<10))
	}
	var last hub.Run
	for range 3 {
		last = h.call(h.owner, argv(big...))
	}
	size, err := hub.GetJournal.Do(ctx, h, h.owner, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	pages, next := 0, uint64(0)
	for at := uint64(0); ; pages++ {
		p, err := hub.ListJournalEntries.Do(ctx, h, h.owner, hub.JournalQuery{From: at, Limit: maxEntries})
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for i, e := range p.Items {
			if e.Index != next {
				t.Fatalf("entry %d, want %d", e.Index, next)
			}
			next++
			if bytes += len(e.Statement); bytes > pageBytes && i < len(p.Items)-1 {
				t.Errorf("from %d: %d bytes and more", at, bytes)
			}
		}
		if p.Next == "" {
			break
		}
		if _, err := fmt.Sscan(p.Next, &at); err != nil {
			t.Fatal(err)
		}
	}
	if next != size.Size || pages == 0 {
		t.Errorf("%d entries of %d on %d pages", next, size.Size, pages+1)
	}

	// Questions.
	alice := h.member(1001, access.Operator)
	var asked []hub.Run
	for i := range 5 {
		asked = append(asked, h.start(alice, writeFile(fmt.Sprint(i), strings.Repeat("y", 400<<10))))
	}
	for _, r := range asked {
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
	}
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Approval, error) {
		return tx.Approvals(store.ApprovalFilter{}, store.Page{Bytes: 1})
	})
	if err != nil || len(rows) != 1 {
		t.Errorf("a page of one byte has %d rows, %v", len(rows), err)
	}
	n := 0
	for q := (hub.ApprovalQuery{}); ; n++ {
		q.Limit = 1
		p, err := hub.ListApprovals.Do(ctx, h, h.owner, q)
		if err != nil {
			t.Fatal(err)
		}
		if q.After = p.Next; q.After == "" {
			break
		}
	}
	if n != 5 {
		t.Errorf("%d questions", n)
	}
	// Lists of runs are made without their plans.
	runs, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Run, error) { return tx.Runs(store.RunFilter{}, store.Page{}) })
	if err != nil || len(runs) < 8 {
		t.Fatal(len(runs), err)
	}
	for _, r := range runs {
		if r.Plan != nil {
			t.Fatalf("the list has a plan of %d bytes", len(r.Plan))
		}
	}
	if r, err := hub.GetRun.Do(ctx, h, h.owner, last.ID); err != nil || len(r.Steps) != 1 || len(r.Steps[0].Input) < 400<<10 {
		t.Errorf("%v", err)
	}
	if _, err := h.runs.CancelAll(ctx, run.Stop{Reason: reasonCancelled}, func(string, string) bool { return true }); err != nil {
		t.Error(err)
	}
	for _, r := range asked { // with a batch for each large event
		if last := h.until(alice, r.ID, ""); last.Kind != hub.EventRunCancelled {
			t.Errorf("the tape ends with %s", last.Kind)
		}
	}
}

// TestReadsAreCounted: an answer is counted until it is written; a caller has its
// share of that, and the others theirs.
func TestReadsAreCounted(t *testing.T) {
	h := newHouse(t, nil)
	alice, bob := h.member(1001, access.Operator), h.member(1002, access.Operator)
	request, end := budget.Request(t.Context())
	for range h.pools.reads.Limits().Each / listBytes {
		if _, err := hub.ListRuns.Do(request, h, alice, hub.RunQuery{}); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := hub.ListRuns.Do(soon, h, alice, hub.RunQuery{}); fault.KindOf(err) != fault.Canceled {
		t.Errorf("beyond its share: %v", err)
	}
	if _, err := hub.ListRuns.Do(t.Context(), h, bob, hub.RunQuery{}); err != nil {
		t.Errorf("another: %v", err)
	}
	end()
	if _, err := hub.ListRuns.Do(t.Context(), h, alice, hub.RunQuery{}); err != nil || h.pools.reads.Held() != 0 {
		t.Errorf("afterwards: %v, %d bytes", err, h.pools.reads.Held())
	}
}

// TestDecidedIndex: entries are read once for all look-ups, from the newest back,
// and not for a caller that has left.
func TestDecidedIndex(t *testing.T) {
	h := newHouse(t, nil)
	var ids []string
	for range 3 {
		h.call(h.owner, argv("true"))
	}
	size, err := h.k.JournalStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for d, err := range kernel.Decisions(h.k.JournalEntries, size.Size, size.Size) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, d.ID())
		// The newest entry of it: its result.
		x, ctx := newDecidedIndex(), t.Context()
		for _, id := range []string{d.ID(), d.ID()[:12]} {
			if at, ok, err := x.find(ctx, h.k.JournalEntries, size.Size, id); err != nil || !ok || at != d.Index {
				t.Errorf("%s: %d %v %v, want %d", id, at, ok, err, d.Index)
			}
		}
	}
	if len(ids) != 3 {
		t.Fatalf("%d decisions", len(ids))
	}
	const long = 1000
	other := (&receipt.Envelope{Payload: []byte("{}"), PayloadType: keyring.StatementType, Signatures: []receipt.Signature{{Sig: []byte{1}}}}).Encode()
	read := 0
	entries := func(from, to uint64) iter.Seq2[journal.Record, error] {
		return func(yield func(journal.Record, error) bool) {
			for i := from; i < to; i++ {
				read++
				if !yield(journal.Record{Index: i, Content: other}, nil) {
					return
				}
			}
		}
	}
	x := newDecidedIndex()
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, _, err := x.find(gone, entries, long, ids[0]); fault.KindOf(err) != fault.Canceled || read > 1 {
		t.Errorf("%v, after %d entries", err, read)
	}
	read = 0
	for range 3 {
		if _, ok, err := x.find(t.Context(), entries, long, ids[0]); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
	}
	if _, _, err := x.find(t.Context(), entries, long+7, "0123456789"); err != nil || read != long+7 {
		t.Errorf("%v, %d entries were read, the journal has %d", err, read, long+7)
	}
	// Through the hub.
	if _, err := hub.GetDecision.Do(t.Context(), h, h.owner, "deadbeefdeadbeef"); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
	if _, err := hub.GetDecision.Do(t.Context(), h, h.owner, "dead"); fault.ReasonOf(err) != "invalid_input" {
		t.Error(err)
	}
	if r, err := hub.GetDecision.Do(t.Context(), h, h.owner, ids[2]); err != nil || r.DecisionID != ids[2] {
		t.Errorf("%v", err)
	}
}

// TestDoctorOnce: however many ask, the host is examined once at a time, and not
// again for seconds.
func TestDoctorOnce(t *testing.T) {
	var at, most, all atomic.Int64
	h := newHouse(t, func(c *Config, _ *kernel.Config) {
		c.Probe = func(context.Context) (*probe.Report, error) {
			most.Store(max(most.Load(), at.Add(1)))
			all.Add(1)
			defer at.Add(-1)
			<-time.After(20 * time.Millisecond)
			return &probe.Report{}, nil
		}
	})
	var wg sync.WaitGroup
	began := time.Now()
	for range 30 {
		wg.Go(func() {
			if _, err := hub.GetDoctor.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 || all.Load() > 1+int64(time.Since(began)/probeAge) {
		t.Errorf("%d examinations, %d at once", all.Load(), most.Load())
	}
}

// TestRunsAreCounted: whatever answers with a run, makes something of the journal or checks an
// artifact takes room and a processor for it first.
func TestRunsAreCounted(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	r := h.call(h.owner, argv("true"))
	s, err := hub.CreateSession.Do(ctx, h, h.owner, hub.NewSession{})
	if err != nil {
		t.Fatal(err)
	}
	index := *r.Steps[0].LogIndex
	type run = hub.Run
	done := map[string]func() (run, error){ // something is done, so these are answered all the same
		"cancel": func() (run, error) { return hub.CancelRun.Do(ctx, h, h.owner, r.ID) },
		"start": func() (run, error) {
			return hub.StartRun.Do(ctx, h, h.owner, hub.NewRun{Session: s.ID, Steps: []hub.Step{argv("true")}})
		},
		"call": func() (run, error) {
			return hub.Call.Do(ctx, h, h.owner, hub.NewCall{Tool: r.Steps[0].Tool, Input: argv("true").Input})
		},
	}
	reads := map[string]func() error{
		"get":       func() error { _, err := hub.GetRun.Do(ctx, h, h.owner, r.ID); return err },
		"runs":      func() error { _, err := hub.ListRuns.Do(ctx, h, h.owner, hub.RunQuery{}); return err },
		"approvals": func() error { _, err := hub.ListApprovals.Do(ctx, h, h.owner, hub.ApprovalQuery{}); return err },
		"receipt":   func() error { _, err := hub.GetReceipt.Do(ctx, h, h.owner, index); return err },
		"entries": func() error {
			_, err := hub.ListJournalEntries.Do(ctx, h, h.owner, hub.JournalQuery{})
			return err
		},
	}
	proofs := map[string]func() error{
		"proof": func() error { _, err := hub.ProveJournalEntry.Do(ctx, h, h.owner, index); return err },
		"consistency": func() error {
			_, err := hub.ProveJournalConsistency.Do(ctx, h, h.owner, hub.JournalSince{Old: 1})
			return err
		},
	}
	maps.Copy(proofs, reads)
	kept := h.start(h.owner, argv("/usr/bin/seq", "10000"))
	kept = h.ended(h.owner, kept.ID)
	content := func() (hub.Artifact, error) {
		return hub.GetArtifact.Do(ctx, h, h.owner, hub.ArtifactQuery{Run: kept.ID, Digest: kept.Steps[0].Stdout.Artifact.String()})
	}
	proofs["artifact"] = func() error { _, err := content(); return err }
	was := h.pools.proofs
	h.pools.proofs = budget.New(budget.Limits{Name: "proofs", Total: 1}) // and no line
	for range 2 {                                                        // a reader of an artifact holds no processor
		a, err := content()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
	}
	h.pools.proofs = was
	for _, c := range []struct {
		pool **budget.Pool
		name string
		all  map[string]func() error
	}{{&h.pools.reads, "reads", reads}, {&h.pools.proofs, "proofs", proofs}} {
		was := *c.pool
		*c.pool = budget.New(budget.Limits{Name: c.name, Total: 1}) // and no line
		if _, err := (*c.pool).Take(budget.Owner{Name: "another"}, 1); err != nil {
			t.Fatal(err)
		}
		for name, do := range c.all {
			if err := do(); fault.ReasonOf(err) != "budget" || !strings.Contains(err.Error(), "take "+c.name+": ") {
				t.Errorf("%s without %s: %v", name, c.name, err)
			}
		}
		for name, do := range done {
			if r, err := do(); err != nil || r.ID == "" || len(r.Steps) != 0 {
				t.Errorf("%s without %s: %+v, %v", name, c.name, r, err)
			}
		}
		*c.pool = was
		for name, do := range c.all {
			if err := do(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, do := range done {
			if r, err := do(); err != nil || len(r.Steps) == 0 {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
		}
	}
	// A stop ends what is being made.
	working, over, err := h.prove(ctx, h.owner)
	if err != nil {
		t.Fatal(err)
	}
	defer over()
	h.works.stop("")
	if context.Cause(working) != errStopped {
		t.Errorf("after a stop: %v", context.Cause(working))
	}
}

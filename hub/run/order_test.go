package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// TestOrder: a session makes one run at a time, in the order in which they came.
func TestOrder(t *testing.T) {
	h := open(t, nil)
	var ids []string
	for i := range 4 {
		ids = append(ids, h.start(Request{Steps: steps(fmt.Sprintf(`hold {"n":%d}`, i))}))
	}
	for i, id := range ids {
		h.until(id, hub.EventRunInProgress)
		if got := <-h.g.in; got != "hold" {
			t.Fatal(got)
		}
		for n, later := range ids[i+1:] {
			want := hub.RunPending
			if n == 0 {
				h.until(later, hub.EventRunPending)
			}
			if got := h.read(later).State; got != want && i == 0 {
				t.Errorf("%s is %s while %s runs", later, got, id)
			}
		}
		if active, queued := h.Counts(); active != 1 || queued != 3-i {
			t.Errorf("%d active, %d queued", active, queued)
		}
		h.g.free <- struct{}{}
		h.ended(id)
	}
}

func TestBounds(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds = session.Bounds{Active: 2, Share: 2, Queue: 4, Line: 1} })
	own := Request{User: alice, Steps: steps("hold")} // a session each
	a, b := h.start(own), h.start(own)
	c := h.start(own)
	h.until(c, hub.EventRunAccepted)
	if s := h.read(c).State; s != hub.RunAccepted {
		t.Errorf("the third is %s", s)
	}
	d := h.start(Request{Steps: steps("hold")})
	e := h.start(Request{Steps: steps("ok")})
	for _, q := range []Request{own, {Steps: steps("ok")}} {
		if _, err := h.try(q); fault.KindOf(err) != fault.Busy || fault.ReasonOf(err) != "too_many" {
			t.Errorf("three quarters of the queue: %v", err)
		}
	}
	if _, err := store.View(t.Context(), h.st, func(tx *store.Tx) (any, error) {
		runs, err := tx.Runs(store.RunFilter{}, store.Page{})
		if len(runs) != 5 {
			t.Errorf("%d runs on record", len(runs))
		}
		return nil, err
	}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		h.g.free <- struct{}{}
	}
	for _, id := range []string{a, b, c, d, e} {
		if r := h.ended(id); r.State != hub.RunDone {
			t.Errorf("%s: %s %s", id, r.State, r.Reason)
		}
	}
}

func TestIdempotent(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds = session.Bounds{Active: 1, Queue: 1, Line: 1} })
	q := Request{Key: "key-1", Steps: steps(`hold {"a": 1}`)}
	id := h.start(q)
	other := h.start(Request{Steps: steps("ok")}) // the queue is full now
	same := q
	same.Steps = steps(`hold { "a":1 }`)
	for _, q := range []Request{q, same} {
		if got, err := h.try(q); err != nil || got != id {
			t.Errorf("again: %q, %v", got, err)
		}
	}
	changed := q
	changed.Steps = steps(`hold {"a": 2}`)
	budget := q
	budget.Budget.Calls = 7
	for _, q := range []Request{changed, budget} {
		if _, err := h.try(q); fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) != "idempotency_key_reused" {
			t.Errorf("another request: %v", err)
		}
	}
	// A key belongs to its user.
	bob, err := session.Create(t.Context(), h.st, "uid:2", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.try(Request{User: "uid:2", Session: bob.ID, Key: "key-1", Steps: steps("ok")}); fault.ReasonOf(err) != "queue_full" {
		t.Errorf("another user: %v", err)
	}
	h.g.free <- struct{}{}
	h.ended(id)
	h.ended(other)
	if got, err := h.try(q); err != nil || got != id {
		t.Errorf("after its end: %q, %v", got, err)
	}
	if h.g.count() != 2 {
		t.Errorf("%d calls", h.g.count())
	}
}

// TestIdempotentRace: however many ask at once, there is one run.
func TestIdempotentRace(t *testing.T) {
	h := open(t, nil)
	var wg sync.WaitGroup
	ids := make([]string, 20)
	for i := range ids {
		wg.Go(func() {
			id, err := h.try(Request{Key: "k", Steps: steps("ok")})
			if err != nil && fault.ReasonOf(err) != "queue_full" { // its own place was taken by the others for a moment
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) != 1 {
		t.Fatalf("runs %q", ids)
	}
	h.ended(ids[0])
	if active, queued := h.Counts(); h.g.count() != 1 || active+queued != 0 {
		t.Errorf("%d calls, %d active, %d queued", h.g.count(), active, queued)
	}
}

func TestCancel(t *testing.T) {
	by := Stop{Reason: "cancelled", By: "uid:0"}
	h := open(t, nil)
	active := h.start(Request{Steps: steps("hold", "ok")})
	second, third := h.start(Request{Steps: steps("ok")}), h.start(Request{Steps: steps("hold")})
	<-h.g.in
	for _, id := range []string{second, active} {
		if err := h.Cancel(t.Context(), id, by); err != nil {
			t.Fatal(err)
		}
		r := h.ended(id)
		evs := h.check(r)
		if r.State != hub.RunCancelled || r.Reason != "cancelled" || !strings.Contains(string(evs[len(evs)-1].Data), `"by":"uid:0"`) {
			t.Errorf("%s: %s %q, %s", id, r.State, r.Reason, evs[len(evs)-1].Data)
		}
	}
	if r := h.read(active); r.Steps[0].Outcome != "killed" || r.Steps[1].State != hub.StepSkipped {
		t.Errorf("%+v", r.Steps)
	}
	if r := h.read(second); r.Steps[0].State != hub.StepSkipped {
		t.Errorf("%+v", r.Steps)
	}
	<-h.g.in // the third has got its turn
	h.g.free <- struct{}{}
	if r := h.ended(third); r.State != hub.RunDone {
		t.Errorf("%s", r.State)
	}
	version := h.read(third).Version
	for _, id := range []string{third, active, ident.New(ident.Run)} { // no error, no change
		if err := h.Cancel(t.Context(), id, by); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	if h.read(third).Version != version || h.g.count() != 2 {
		t.Errorf("cancelling an ended run changed it; %d calls", h.g.count())
	}
}

func TestCancelAll(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds = session.Bounds{Active: 3, Share: 3} })
	own := Request{User: alice, Steps: steps("hold")}
	var ids []string
	for range 5 {
		ids = append(ids, h.start(own))
	}
	keep := h.start(Request{Steps: steps("ok")})
	n, err := h.CancelAll(t.Context(), Stop{Reason: "stopped"}, func(session, user string) bool { return session != h.sess && user == alice })
	if n != 5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, id := range ids {
		if r := h.ended(id); r.State != hub.RunCancelled || r.Reason != "stopped" {
			t.Errorf("%s %s", r.State, r.Reason)
		}
	}
	if r := h.ended(keep); r.State != hub.RunDone {
		t.Errorf("%s", r.State)
	}
}

// TestCancelRace: runs that are cancelled at any moment of their lives end once,
// and every place comes back.
func TestCancelRace(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds = session.Bounds{Active: 2, Share: 2, Queue: 200, Each: 150, Line: 100} })
	var wg sync.WaitGroup
	var mu sync.Mutex
	var ids []string
	for i := range 4 {
		wg.Go(func() {
			for n := range 12 {
				q := Request{Steps: steps("ok", "ok")}
				if i%2 == 0 {
					q.User = alice
				}
				id, err := h.try(q)
				if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				ids = append(ids, id)
				mu.Unlock()
				if n%3 != 0 {
					if err := h.Cancel(t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if r := h.ended(id); r.State != hub.RunDone && r.State != hub.RunCancelled {
			t.Errorf("%s %s", r.State, r.Reason)
		}
	}
	if active, queued := h.Counts(); active+queued != 0 {
		t.Errorf("%d active, %d queued", active, queued)
	}
}

func TestTape(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps("hold", "ok")})
	live, err := h.Tape(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	got := make(chan []string, 1)
	go func() {
		var kinds []string
		for {
			ev, err := live.Next(t.Context())
			if err != nil {
				if !errors.Is(err, io.EOF) {
					kinds = append(kinds, err.Error())
				}
				got <- kinds
				return
			}
			kinds = append(kinds, ev.Kind)
		}
	}()
	// A long call shows what was decided about it before it has ended.
	h.until(id, hub.EventStepDecided)
	// A reader that waits gives up with its ctx and can go on afterwards.
	r, err := h.Tape(id, h.read(id).LastSeq)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a tape without news: %v", err)
	}
	h.g.free <- struct{}{}
	if ev, err := r.Next(t.Context()); err != nil || ev.Kind != hub.EventStepEnded {
		t.Errorf("after giving up: %+v, %v", ev, err)
	}
	h.ended(id)
	want := []string{"run.pending", "run.accepted", "run.in_progress", "step.started", "step.decided", "step.ended", "step.started", "step.decided", "step.ended", "run.done"}
	if k := <-got; !slices.Equal(k, want) {
		t.Errorf("live: %q", k)
	}
	// Whatever a reader has, the rest follows.
	for after := range uint64(12) {
		evs := h.tape(id, after)
		if n := max(0, 10-int(after)); len(evs) != n || n > 0 && evs[0].Seq != after+1 {
			t.Errorf("after %d: %d events", after, len(evs))
		}
	}
	// A reader keeps nothing of the events that it has returned: they can be large.
	early, err := h.Tape(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	for len(early.batch) != 1 {
		if _, err := early.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last := early.batch
	if ev, err := early.Next(t.Context()); err != nil || ev.Data == nil || last[0].Data != nil {
		t.Errorf("it returned %s and keeps %s, %v", ev.Data, last[0].Data, err)
	}
	early.Close()
	if len(h.tapes.bells) != 0 {
		t.Errorf("%d bells that nobody waits for", len(h.tapes.bells))
	}
	if n := h.Readers(); n != 2 { // live and r
		t.Errorf("%d readers", n)
	}
	x, err := h.Tape(ident.New(ident.Run), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Next(t.Context()); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the tape of no run: %v", err)
	}
}

// TestTapeLong: more events than one batch, many readers, each at its own pace.
func TestTapeLong(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps(strings.Split(strings.Repeat("ok,", 30)+"hold", ",")...)})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			n := len(h.tape(id, uint64(i*10)))
			if want := 4 + 3*31 - i*10; n != want {
				t.Errorf("from %d: %d events, want %d", i*10, n, want)
			}
		})
	}
	slow, err := h.Tape(id, 0) // does not read until the run is over, and delays nobody
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.g.free <- struct{}{}
	h.ended(id)
	if len(slow.batch) >= tapeBatch {
		t.Errorf("a slow reader holds %d events", len(slow.batch))
	}
	wg.Wait()
}

func TestTapeReaders(t *testing.T) {
	h := open(t, func(c *Config) { c.Readers = 2 })
	id := h.start(Request{Steps: steps("ok")})
	h.ended(id)
	a, _ := h.Tape(id, 0)
	b, _ := h.Tape(id, 0)
	if _, err := h.Tape(id, 0); fault.ReasonOf(err) != "too_many" {
		t.Errorf("one too many: %v", err)
	}
	a.Close()
	a.Close()
	c, err := h.Tape(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	c.Close()
	if n := h.Readers(); n != 0 {
		t.Errorf("%d readers", n)
	}
}

func (h *house) question() *store.Approval {
	h.t.Helper()
	all, err := store.View(h.t.Context(), h.st, func(tx *store.Tx) ([]store.Approval, error) {
		return tx.Approvals(store.ApprovalFilter{States: []store.ApprovalState{store.ApprovalPending}}, store.Page{})
	})
	if err != nil || len(all) != 1 {
		h.t.Fatalf("%d questions, %v", len(all), err)
	}
	return &all[0]
}

func TestApproval(t *testing.T) {
	for _, test := range []struct {
		yes           bool
		state, reason string
	}{{true, hub.RunDone, ""}, {false, hub.RunFailed, "denied"}} {
		h := open(t, nil)
		id := h.start(Request{Steps: steps("ask", "ok")})
		h.until(id, hub.EventRunWaitingApproval)
		if s := h.read(id).State; s != hub.RunWaitingApproval {
			t.Errorf("it is %s", s)
		}
		q := h.question()
		if q.Run != id || q.Requester != alice || q.Session != h.sess || q.Call == "" {
			t.Errorf("%+v", q)
		}
		if _, err := h.Approvals().Resolve(t.Context(), q.ID, 0, approval.By{Principal: "uid:0", Surface: "unix"}, approval.Reply{Approve: test.yes}); err != nil {
			t.Fatal(err)
		}
		r := h.ended(id)
		if r.State != test.state || r.Reason != test.reason || r.Steps[0].Approval != q.ID {
			t.Errorf("%s %q, %+v", r.State, r.Reason, r.Steps[0])
		}
		a, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Approval, error) { return tx.Approval(q.ID) })
		if err != nil || a.Used.IsZero() == test.yes || a.Approver != "uid:0" {
			t.Errorf("%+v, %v", a, err)
		}
		var kinds []string
		for _, ev := range h.tape(id, 0) {
			kinds = append(kinds, ev.Kind)
		}
		want := "run.pending run.accepted run.in_progress step.started step.decided approval.requested run.waiting_approval approval.resolved run.in_progress step.ended"
		if got := strings.Join(kinds, " "); !strings.HasPrefix(got, want) {
			t.Errorf("%s", got)
		}
	}
}

// TestApprovalGivesPlace: who waits for a person keeps nobody from working.
func TestApprovalGivesPlace(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds = session.Bounds{Active: 1} })
	id := h.start(Request{Steps: steps("ask")})
	h.until(id, hub.EventRunWaitingApproval)
	if r := h.ended(h.start(Request{User: alice, Steps: steps("ok")})); r.State != hub.RunDone {
		t.Errorf("%s", r.State)
	}
	held := h.start(Request{User: alice, Steps: steps("hold")})
	h.until(held, hub.EventRunInProgress)
	q := h.question()
	if _, err := h.Approvals().Resolve(t.Context(), q.ID, 0, approval.By{Principal: "uid:0"}, approval.Reply{Approve: true}); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(id); r.State != hub.RunDone { // at once, beside the other
		t.Errorf("%s", r.State)
	}
	h.g.free <- struct{}{}
	h.ended(held)
}

// TestApprovalWithdrawn: a cancelled run takes its question back.
func TestApprovalWithdrawn(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps("ask")})
	h.until(id, hub.EventRunWaitingApproval)
	q := h.question()
	if err := h.Cancel(t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(id); r.State != hub.RunCancelled || r.Steps[0].Outcome != "not_approved" {
		t.Errorf("%s, %+v", r.State, r.Steps[0])
	}
	if _, err := h.Approvals().Resolve(t.Context(), q.ID, 0, approval.By{Principal: "uid:0"}, approval.Reply{Approve: true}); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("an answer after the cancel: %v", err)
	}
	a, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Approval, error) { return tx.Approval(q.ID) })
	if err != nil || a.State != store.ApprovalWithdrawn {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestBudgetWhileWaiting: the wall time of a run goes on while a person is asked.
func TestBudgetWhileWaiting(t *testing.T) {
	h := open(t, nil)
	r := h.ended(h.start(Request{Steps: steps("ask"), Budget: hub.Budget{Wall: 50 * time.Millisecond}}))
	if r.State != hub.RunFailed || r.Reason != ReasonWall || r.Steps[0].Outcome != "not_approved" {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps[0])
	}
}

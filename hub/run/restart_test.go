package run

import (
	"context"
	"testing"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// TestDrain: Close waits for what is at work, and what waits keeps its place.
func TestDrain(t *testing.T) {
	one := func(c *Config) { c.Bounds = session.Bounds{Active: 1} }
	h := open(t, one)
	a := h.start(Request{Steps: steps("hold", "ok")})
	b := h.start(Request{Steps: steps("ok")})
	gone := h.start(Request{User: alice, Steps: steps("ok"), Attended: true})
	keyed := h.start(Request{User: alice, Key: "k", Steps: steps("ok"), Attended: true})
	<-h.g.in
	waited := make(chan error, 1)
	go func() { waited <- h.Wait(t.Context(), b) }()
	closed := make(chan error, 1)
	e := h.Engine
	go func() { closed <- e.Close(context.Background()) }()
	for {
		e.mu.Lock()
		draining := e.closed
		e.mu.Unlock()
		if draining {
			break
		}
	}
	if _, err := h.try(Request{Steps: steps("ok")}); fault.ReasonOf(err) != "not_ready" {
		t.Errorf("a new run: %v", err)
	}
	h.g.free <- struct{}{}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := <-waited; fault.ReasonOf(err) != "not_ready" {
		t.Errorf("who waits for a queued run: %v", err)
	}
	if r := h.read(a); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	if r := h.read(b); r.State != hub.RunPending && r.State != hub.RunAccepted {
		t.Errorf("%s", r.State)
	}
	h.stop()
	h.reopen(one)
	for _, id := range []string{b, keyed} {
		if r := h.ended(id); r.State != hub.RunDone {
			t.Errorf("after the restart: %s %s", r.State, r.Reason)
		}
	}
	if r := h.ended(gone); r.State != hub.RunCancelled || r.Reason != ReasonCallerGone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	s, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Session, error) { return tx.Session(h.read(gone).Session) })
	if err != nil || s.State != store.SessionEnded {
		t.Errorf("%+v, %v", s, err)
	}
	if h.g.count() != 4 {
		t.Errorf("%d calls", h.g.count())
	}
}

// TestDrainOfQuestions: Close waits for no person's answer, and ends those runs as a restart does;
// what is at work goes on until it asks.
func TestDrainOfQuestions(t *testing.T) {
	h := open(t, nil)
	works := h.start(Request{Steps: steps("hold", "ask")})
	answered := h.start(Request{User: alice, Steps: steps("ask", "hold", "ok")})
	h.until(answered, hub.EventRunWaitingApproval)
	if _, err := h.Approvals().Resolve(t.Context(), h.question().ID, 0, approval.By{Principal: "uid:0", Surface: "unix"}, approval.Reply{Approve: true}); err != nil {
		t.Fatal(err)
	}
	asks := h.start(Request{User: alice, Steps: steps("ask", "ok")})
	h.until(asks, hub.EventRunWaitingApproval)
	for holds := 0; holds < 2; {
		if <-h.g.in == "hold" {
			holds++
		}
	}
	closed, e := make(chan error, 1), h.Engine
	go func() { closed <- e.Close(context.Background()) }()
	if r := h.ended(asks); r.State != hub.RunFailed || r.Reason != ReasonInterrupted || r.Steps[0].Reason != "withdrawn" || r.Steps[1].State != hub.StepSkipped {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	}
	for _, id := range []string{works, answered} {
		if r := h.read(id); r.State != hub.RunInProgress {
			t.Errorf("%s %s", r.State, r.Reason)
		}
	}
	h.g.free <- struct{}{}
	h.g.free <- struct{}{}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if r := h.read(works); r.State != hub.RunFailed || r.Reason != ReasonInterrupted || r.Steps[0].State != hub.StepDone {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	}
	if r := h.read(answered); r.State != hub.RunDone {
		t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps)
	}
}

// TestCloseNow: without time to drain, what is at work ends as interrupted.
func TestCloseNow(t *testing.T) {
	h := open(t, nil)
	a := h.start(Request{Steps: steps("hold", "ok")})
	b := h.start(Request{User: alice, Steps: steps("ask")})
	<-h.g.in
	h.until(b, hub.EventRunWaitingApproval)
	h.stop()
	h.reopen(nil)
	for _, id := range []string{a, b} {
		if r := h.ended(id); r.State != hub.RunFailed || r.Reason != ReasonInterrupted {
			t.Errorf("%s %s", r.State, r.Reason)
		}
	}
}

// TestRecover: a process that died leaves runs in every state; the next one
// brings each to its end, and makes no step again.
func TestRecover(t *testing.T) {
	one := func(c *Config) { c.Bounds = session.Bounds{Active: 2, Share: 2, Paused: 1} }
	h := open(t, one)
	working := h.start(Request{Steps: steps("hold", "ok")})
	queued := h.start(Request{Steps: steps("ok")})
	asking := h.start(Request{User: alice, Steps: steps("ask")})
	h.until(asking, hub.EventRunWaitingApproval)
	q := h.question()
	attended := h.start(Request{User: alice, Steps: steps("hold"), Attended: true})
	h.until(attended, hub.EventStepStarted)
	<-h.g.in
	<-h.g.in
	<-h.g.in
	before := h.g.count()
	// The engine is dead from here on: its store is closed under it.
	if err := h.st.Close(); err != nil {
		t.Fatal(err)
	}
	dead := h.Engine
	h.Engine = nil
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		dead.Close(now)
	})
	h.reopen(one)
	for _, id := range []string{working, asking, attended} {
		r := h.ended(id)
		if r.State != hub.RunFailed || r.Reason != ReasonInterrupted || r.Steps[0].State != hub.StepFailed || r.Steps[0].Reason != ReasonInterrupted {
			t.Errorf("%s %s, %+v", r.State, r.Reason, r.Steps[0])
		}
	}
	if r := h.ended(queued); r.State != hub.RunDone {
		t.Errorf("%s %s", r.State, r.Reason)
	}
	a, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Approval, error) { return tx.Approval(q.ID) })
	if err != nil || a.State != store.ApprovalExpired {
		t.Errorf("%+v, %v", a, err)
	}
	if n := h.g.count() - before; n != 1 {
		t.Errorf("%d calls after the restart", n)
	}
	h.stop()
	// Once more: nothing is left to do.
	h.reopen(one)
	if active, waiting := h.Counts(); active+waiting != 0 || h.g.count() != before+1 {
		t.Errorf("%d active, %d wait, %d calls", active, waiting, h.g.count())
	}
}

// TestHold: while an emergency stop is in force what had been accepted is
// cancelled; in safe mode it goes on waiting.
func TestHold(t *testing.T) {
	one := func(c *Config) { c.Bounds = session.Bounds{Active: 1} }
	for _, test := range []struct {
		name          string
		change        func(*Config)
		refused       string
		state, reason string
	}{
		{"stop", func(c *Config) { c.Hold = true }, "stopped", hub.RunCancelled, ReasonStopped},
		{"safe mode", func(c *Config) { c.Park = true }, "safe_mode", hub.RunPending, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := open(t, one)
			a := h.start(Request{Steps: steps("hold")})
			b := h.start(Request{Steps: steps("ok")})
			<-h.g.in
			h.stop()
			h.reopen(test.change)
			if _, err := h.try(Request{Steps: steps("ok")}); fault.ReasonOf(err) != test.refused {
				t.Errorf("a new run: %v", err)
			}
			if r := h.read(a); r.State != hub.RunFailed {
				t.Errorf("%s", r.State)
			}
			if r := h.read(b); r.State != test.state || r.Reason != test.reason {
				t.Errorf("%s %s", r.State, r.Reason)
			}
			h.stop()
			h.reopen(one)
			if r := h.ended(b); test.name == "safe mode" && r.State != hub.RunDone {
				t.Errorf("%s %s", r.State, r.Reason)
			}
		})
	}
}

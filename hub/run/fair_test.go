package run

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// TestShare: 56 runs of one principal that never end keep neither another's call
// nor the owner's waiting, also after a restart, and places that come free go
// round the principals.
func TestShare(t *testing.T) {
	h := open(t, nil)
	const (
		mallory = "uid:666"
		bob     = "uid:2"
	)
	crowd := func() (ids []string) {
		for range 56 {
			id, err := h.try(Request{User: mallory, Steps: steps("hold")})
			if fault.ReasonOf(err) == "too_many" {
				return ids
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		return ids
	}
	others := func(when string) {
		t.Helper()
		for _, q := range []Request{{User: bob, Steps: steps("ok")}, {User: "uid:0", Reserve: true, Steps: steps("ok")},
			// whose token holds what others may hold
			{User: mallory, Reserve: true, Steps: steps("ok")}} {
			id := h.start(q)
			h.until(id, hub.EventRunInProgress)
			if r := h.ended(id); r.State != hub.RunDone {
				t.Errorf("%s: %+v: %s %s", when, q, r.State, r.Reason)
			}
		}
	}
	ids := crowd()
	if active, waiting := h.Counts(); active != 6 || waiting != 48 {
		t.Errorf("%d at work, %d wait", active, waiting)
	}
	others("full")
	// One that was under way fails, and those that waited are made, within the share.
	h.stop()
	h.reopen(nil)
	if active, waiting := h.Counts(); active != 6 || waiting != 42 {
		t.Errorf("after a restart: %d at work, %d wait", active, waiting)
	}
	others("after a restart")

	// Two places are left, which one more principal has. What it has in line comes
	// before what has waited for longer.
	first := h.start(Request{User: bob, Steps: steps("hold")})
	second := h.start(Request{User: bob, Steps: steps("hold")})
	third := h.start(Request{User: bob, Steps: steps("hold")})
	h.until(first, hub.EventRunInProgress)
	h.until(second, hub.EventRunInProgress)
	if s := h.read(third).State; s != hub.RunAccepted {
		t.Errorf("the ninth run is %s", s)
	}
	if err := h.Cancel(t.Context(), ids[6], Stop{Reason: "cancelled"}); err != nil {
		t.Fatal(err)
	}
	h.until(third, hub.EventRunInProgress)
	n, err := h.CancelAll(t.Context(), Stop{Reason: "stopped"}, func(_, user string) bool { return user == mallory })
	if n != 47 || err != nil {
		t.Errorf("%d cancelled, %v", n, err)
	}
	if active, waiting := h.Counts(); active != 3 || waiting != 0 {
		t.Errorf("after a stop: %d at work, %d wait", active, waiting)
	}
	if i := slices.IndexFunc(ids, func(id string) bool { return !isOver(h.read(id).State) }); i >= 0 {
		t.Errorf("run %d goes on", i)
	}
}

func isOver(state string) bool {
	return slices.Contains([]string{hub.RunDone, hub.RunFailed, hub.RunCancelled}, state)
}

// TestShareOfPaused: a run that waits for a person holds no place of its
// principal's share.
func TestShareOfPaused(t *testing.T) {
	h := open(t, nil)
	for range 20 {
		h.until(h.start(Request{User: alice, Steps: steps("ask")}), hub.EventRunWaitingApproval)
	}
	h.until(h.start(Request{User: alice, Steps: steps("hold")}), hub.EventRunInProgress)
	if n, err := h.CancelAll(context.Background(), Stop{Reason: "stopped"}, func(string, string) bool { return true }); n != 21 || err != nil {
		t.Errorf("%d cancelled, %v", n, err)
	}
}

// TestReturn: runs whose questions end in a no get a place again before their next
// step, and no more of them are at work than there are places.
func TestReturn(t *testing.T) {
	h := open(t, func(c *Config) { c.Bounds = session.Bounds{Active: 2, Share: 2} })
	const runs = 5
	var ids []string
	for range runs {
		id := h.start(Request{User: alice, Steps: steps("ask", "hold"), KeepGoing: true})
		h.until(id, hub.EventRunWaitingApproval)
		ids = append(ids, id)
	}
	all, err := store.View(t.Context(), h.st, func(tx *store.Tx) ([]store.Approval, error) {
		return tx.Approvals(store.ApprovalFilter{States: []store.ApprovalState{store.ApprovalPending}}, store.Page{})
	})
	if err != nil || len(all) != runs {
		t.Fatalf("%d questions, %v", len(all), err)
	}
	for _, q := range all {
		if _, err := h.Approvals().Resolve(t.Context(), q.ID, 0, approval.By{Principal: "uid:0", Surface: "unix"}, approval.Reply{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		h.until(id, hub.EventStepEnded)
	}
	begun := 0
	for freed := range runs {
		for begun < min(freed+2, runs) {
			if <-h.g.in == "hold" {
				begun++
			}
		}
		for len(h.g.in) > 0 {
			if <-h.g.in == "hold" {
				t.Fatalf("%d are at work with two places", begun+1-freed)
			}
		}
		h.g.free <- struct{}{}
	}
	for _, id := range ids {
		if r := h.ended(id); r.Steps[1].Outcome != "executed" {
			t.Errorf("%s, %+v", r.State, r.Steps[1])
		}
	}
	// One that waits for a place ends with a stop.
	h.start(Request{User: alice, Steps: steps("hold")})
	h.start(Request{User: alice, Steps: steps("ask", "hold"), KeepGoing: true})
	n, err := h.CancelAll(t.Context(), Stop{Reason: "stopped"}, func(string, string) bool { return true })
	if n != 2 || err != nil {
		t.Errorf("%d cancelled, %v", n, err)
	}
}

// slow has one program that answers, which takes its time to start.
type slow struct {
	waits chan struct{} // has an element for each call that waits
	ready chan struct{} // closed when it has started
}

func (s *slow) Attach(ctx context.Context, a Attaching) (context.Context, *Attached, error) {
	if a.Tool != "ask_it" {
		return ctx, nil, nil
	}
	resume := a.Pause()
	defer resume()
	s.waits <- struct{}{}
	select {
	case <-s.ready:
	case <-ctx.Done():
	}
	return ctx, new(Attached), nil
}

// TestReturnFromServers: a run that waited for the start of a program which answers it has a place
// when it goes on, as one that waited for a person has.
func TestReturnFromServers(t *testing.T) {
	servers := &slow{waits: make(chan struct{})}
	h := open(t, func(c *Config) {
		c.Bounds = session.Bounds{Active: 1, Share: 1}
		c.Servers = servers
	})
	// ready returns a run that waits for a place, which another one has.
	ready := func() string {
		t.Helper()
		servers.ready = make(chan struct{})
		id := h.start(Request{User: alice, Steps: []hub.Step{{Tool: "ask_it", Input: []byte("{}")}}})
		<-servers.waits
		h.start(Request{User: alice, Steps: steps("hold")})
		if tool := <-h.g.in; tool != "hold" {
			t.Fatalf("%s is at work", tool)
		}
		close(servers.ready)
		for waits := false; !waits; runtime.Gosched() {
			if len(h.g.in) > 0 {
				t.Fatalf("%s is at work, too, with one place", <-h.g.in)
			}
			h.mu.Lock()
			waits = h.jobs[id].back != nil
			h.mu.Unlock()
		}
		return id
	}
	id := ready()
	h.g.free <- struct{}{}
	if r := h.ended(id); r.State != hub.RunDone {
		t.Errorf("%+v", r)
	}
	<-h.g.in
	ready()
	if n, err := h.CancelAll(t.Context(), Stop{Reason: "stopped"}, func(string, string) bool { return true }); n != 2 || err != nil {
		t.Errorf("%d cancelled, %v", n, err)
	}
}

// TestResultsKept: of a step that has ended a run keeps no output.
func TestResultsKept(t *testing.T) {
	h := open(t, nil)
	id := h.start(Request{Steps: steps(`print {"bytes":100}`, "hold")})
	for h.g.count() < 2 { // the second is at work
		runtime.Gosched()
	}
	h.mu.Lock()
	kept := h.jobs[id].results
	h.mu.Unlock()
	if len(kept) != 1 || kept[0].Outcome != "executed" || kept[0].Input != nil || kept[0].Stdout.Text != "" || kept[0].Stdout.Size != 0 {
		t.Errorf("%+v", kept)
	}
	if r, err := h.Read(t.Context(), id); err != nil || r.Steps[0].Stdout.Size == 0 {
		t.Errorf("the store has %+v, %v", r.Steps, err)
	}
	if err := h.Cancel(t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
		t.Fatal(err)
	}
}

// TestRunsMemory: what runs keep is counted from their start to their end, of each
// principal and for all.
func TestRunsMemory(t *testing.T) {
	memory := budget.New(budget.Limits{Name: "sealed", Total: 1 << 20, Each: 400 << 10})
	h := open(t, func(c *Config) { c.Memory = memory })
	big := Request{User: "uid:666", Steps: steps(fmt.Sprintf("hold {%q:%q}", "x", strings.Repeat("x", 90<<10)))}
	var ids []string
	for {
		id, err := h.try(big)
		if fault.ReasonOf(err) == "budget" {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if len(ids) != 2 {
		t.Errorf("%d runs of some 196 KiB within 400 KiB", len(ids))
	}
	ids = append(ids, h.start(Request{User: "uid:2", Steps: steps("ok")}))
	for _, id := range ids {
		if err := h.Cancel(t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
			t.Fatal(err)
		}
		if err := h.Wait(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if memory.Held() != 0 {
		t.Errorf("%d bytes are held after the last run", memory.Held())
	}
}

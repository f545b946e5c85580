package run

import (
	"maps"
	"slices"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
)

// transition is from one state of a run to another.
type transition struct{ from, to store.RunState }

// transitions say what brings an agent's run from one state to the next. Each returns the run, over
// an engine with one place.
var transitions = map[transition]func(h *house) string{
	{"", store.RunPending}:                          func(h *house) string { return h.start(agent("three")) },
	{store.RunPending, store.RunAccepted}:           func(h *house) string { return h.start(agent("three")) },
	{store.RunAccepted, store.RunInProgress}:        func(h *house) string { return h.start(agent("three")) },
	{store.RunInProgress, store.RunDone}:            func(h *house) string { return h.start(agent("three")) },
	{store.RunInProgress, store.RunFailed}:          func(h *house) string { return h.start(agent("stop")) },
	{store.RunInProgress, store.RunCancelled}:       func(h *house) string { return h.cancelled(h.holding()) },
	{store.RunPending, store.RunCancelled}:          func(h *house) string { return h.cancelled(h.behind(h.sess)) },
	{store.RunAccepted, store.RunCancelled}:         func(h *house) string { return h.cancelled(h.behind(h.session())) },
	{store.RunPending, store.RunFailed}:             func(h *house) string { return h.withoutModels(h.behind(h.sess)) },
	{store.RunAccepted, store.RunFailed}:            func(h *house) string { return h.withoutModels(h.behind(h.session())) },
	{store.RunInProgress, store.RunWaitingApproval}: func(h *house) string { return h.answered(h.asking(), true) },
	{store.RunWaitingApproval, store.RunInProgress}: func(h *house) string { return h.answered(h.asking(), false) },
}

// withdrawn are transitions that no run makes whose question's end is put down: that comes first, as
// "waiting_approval to in_progress". Only a store that fails at the one and not at the other leaves
// them, and TestTable has them.
var withdrawn = map[transition]func(h *house) string{
	{store.RunWaitingApproval, store.RunFailed}: func(h *house) string {
		q := agent("ask")
		q.Budget.Wall = 50 * time.Millisecond
		return h.start(q)
	},
	{store.RunWaitingApproval, store.RunCancelled}: func(h *house) string { return h.cancelled(h.asking()) },
}

// TestTransitions makes each transition that the table of states has, and no tape of these runs has
// another. A run that waited for a person or worked when its process died goes on by them, too.
func TestTransitions(t *testing.T) {
	var all []transition
	for from, states := range next {
		for _, to := range states {
			all = append(all, transition{from, to})
			if transitions[transition{from, to}] == nil && withdrawn[transition{from, to}] == nil {
				t.Errorf("no row says what brings a run from %q to %q", from, to)
			}
		}
	}
	if len(transitions)+len(withdrawn) != len(all) {
		t.Errorf("%d rows for %d transitions", len(transitions)+len(withdrawn), len(all))
	}
	for tr, begin := range transitions {
		t.Run(string(tr.from)+" to "+string(tr.to), func(t *testing.T) {
			h := open(t, onePlace)
			id := begin(h)
			h.ended(id) // looks at each transition
			if got := h.moves(id); !slices.Contains(got, tr) {
				t.Errorf("the tape has %q", got)
			}
		})
	}
	for tr, begin := range withdrawn {
		t.Run("a question before "+string(tr.to), func(t *testing.T) {
			h := open(t, onePlace)
			id := begin(h)
			h.ended(id)
			want := []transition{{store.RunWaitingApproval, store.RunInProgress}, {store.RunInProgress, tr.to}}
			if got := h.moves(id); !slices.Equal(got[len(got)-2:], want) {
				t.Errorf("the tape has %q", got)
			}
		})
	}
	for name, begin := range map[string]func(*house) string{"at work": (*house).holding, "waits for a person": (*house).asking} {
		t.Run("killed: "+name, func(t *testing.T) {
			h := open(t, onePlace)
			id := begin(h)
			h.stop()
			h.reopen(onePlace)
			if r := h.ended(id); r.State != hub.RunDone {
				t.Errorf("%s %s", r.State, r.Reason)
			}
			seen := make(map[transition]int)
			for _, tr := range h.moves(id) {
				seen[tr]++
			}
			if n := slices.Max(slices.Collect(maps.Values(seen))); n > 1 {
				t.Errorf("the tape has a transition %d times: %v", n, seen)
			}
		})
	}
}

func onePlace(c *Config) { withAgents(c); c.Bounds = session.Bounds{Active: 1, Paused: 2} }

// moves returns the transitions on a run's tape.
func (h *house) moves(id string) (all []transition) {
	h.t.Helper()
	from := store.RunState("")
	for _, ev := range h.tape(id, 0) {
		if len(ev.Kind) > 4 && ev.Kind[:4] == "run." {
			to := store.RunState(ev.Kind[4:])
			all, from = append(all, transition{from, to}), to
		}
	}
	return all
}

// holding is an agent's run whose step is under way.
func (h *house) holding() string {
	h.t.Helper()
	id := h.start(agent("hold"))
	<-h.g.in // ok
	<-h.g.in // hold
	return id
}

// asking is one that waits for a person.
func (h *house) asking() string {
	h.t.Helper()
	id := h.start(agent("ask"))
	h.until(id, hub.EventRunWaitingApproval)
	return id
}

// behind is a run in a session that waits for the one place.
func (h *house) behind(sess string) string {
	h.t.Helper()
	h.holding()
	q := agent("three")
	q.User, q.Session = alice, sess
	return h.start(q)
}

func (h *house) cancelled(id string) string {
	h.t.Helper()
	if err := h.Cancel(h.t.Context(), id, Stop{Reason: "cancelled"}); err != nil {
		h.t.Fatal(err)
	}
	return id
}

// withoutModels has the process begin again with a configuration that has none.
func (h *house) withoutModels(id string) string {
	h.t.Helper()
	h.stop()
	h.reopen(nil)
	return id
}

func (h *house) answered(id string, yes bool) string {
	h.t.Helper()
	if _, err := h.Approvals().Resolve(h.t.Context(), h.question().ID, 0, approval.By{Principal: "uid:0", Surface: "unix"}, approval.Reply{Approve: yes}); err != nil {
		h.t.Fatal(err)
	}
	return id
}

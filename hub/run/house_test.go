package run

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// house is an engine over a store of its own.
type house struct {
	*Engine
	t    *testing.T
	g    *gate
	st   *store.Store
	dir  string
	sess string
}

const alice = "uid:1000"

func open(t *testing.T, change func(*Config)) *house {
	t.Helper()
	h := &house{t: t, g: newGate(), dir: filepath.Join(t.TempDir(), "store")}
	h.reopen(change)
	s, err := session.Create(t.Context(), h.st, alice, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	h.sess = s.ID
	return h
}

func (h *house) reopen(change func(*Config)) {
	h.t.Helper()
	st, err := store.Open(h.dir, store.Options{})
	if fault.KindOf(err) == fault.Unsupported {
		h.t.Skip("needs linux")
	}
	if err != nil {
		h.t.Fatal(err)
	}
	cfg := Config{Store: st, Gate: h.g, WhoIs: func(c hub.Caller) (policy.Entity, error) { return policy.LocalUser(c.User), nil }}
	if change != nil {
		change(&cfg)
	}
	e, err := Open(h.t.Context(), cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Engine, h.st = e, st
	h.t.Cleanup(h.stop)
}

// stop closes the engine as a process that has no time would, and checks the store.
func (h *house) stop() {
	if h.Engine == nil {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Close(now); err != nil {
		h.t.Error(err)
	}
	if err := h.st.Check(context.Background()); err != nil {
		h.t.Errorf("store: %v", err)
	}
	if err := h.st.Close(); err != nil {
		h.t.Error(err)
	}
	h.Engine = nil
}

func steps(tools ...string) (s []hub.Step) {
	for _, t := range tools {
		name, input, _ := strings.Cut(t, " ")
		s = append(s, hub.Step{Tool: name, Input: json.RawMessage(input)})
	}
	return s
}

func (h *house) start(q Request) string {
	h.t.Helper()
	id, err := h.try(q)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

func (h *house) try(q Request) (string, error) {
	if q.User == "" {
		q.User, q.Session = alice, h.sess
	}
	return h.Start(h.t.Context(), q)
}

func (h *house) read(id string) hub.Run {
	h.t.Helper()
	r, err := h.Read(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// ended waits for a run and checks its tape against its state.
func (h *house) ended(id string) hub.Run {
	h.t.Helper()
	if err := h.Wait(h.t.Context(), id); err != nil {
		h.t.Fatal(err)
	}
	r := h.read(id)
	h.check(r)
	return r
}

// check holds a run's tape to the table of states and to what is in its row.
func (h *house) check(r hub.Run) []hub.Event {
	h.t.Helper()
	evs := h.tape(r.ID, 0)
	state, began, over := store.RunState(""), -1, -1
	for i, ev := range evs {
		if ev.Seq != uint64(i+1) || ev.Run != r.ID {
			h.t.Errorf("event %d of %s has number %d of %s", i, r.ID, ev.Seq, ev.Run)
		}
		if s, ok := strings.CutPrefix(ev.Kind, "run."); ok {
			if !slices.Contains(next[state], store.RunState(s)) {
				h.t.Errorf("the tape of %s goes from %q to %q", r.ID, state, s)
			}
			state = store.RunState(s)
		}
		switch ev.Kind {
		case hub.EventStepStarted:
			began++
			if began != over+1 {
				h.t.Errorf("step %d begins before %d has ended", began, over+1)
			}
		case hub.EventStepEnded:
			over++
		}
	}
	if string(state) != r.State || !state.Terminal() || began != over {
		h.t.Errorf("the tape of %s ends in %q with %d steps begun and %d ended; the run is %s", r.ID, state, began+1, over+1, r.State)
	}
	return evs
}

// tape reads a tape to its end.
func (h *house) tape(id string, after uint64) (evs []hub.Event) {
	h.t.Helper()
	r, err := h.Tape(id, after)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Close()
	for {
		ev, err := r.Next(h.t.Context())
		if errors.Is(err, io.EOF) {
			return evs
		}
		if err != nil {
			h.t.Fatal(err)
		}
		evs = append(evs, ev)
	}
}

// until reads a tape until an event of this kind and returns it.
func (h *house) until(id, kind string) hub.Event {
	h.t.Helper()
	r, err := h.Tape(id, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Close()
	for {
		ev, err := r.Next(h.t.Context())
		if err != nil {
			h.t.Fatalf("before %s: %v", kind, err)
		}
		if ev.Kind == kind {
			return ev
		}
	}
}

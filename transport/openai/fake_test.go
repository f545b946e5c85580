package openai

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/transport/behind"
)

// fake is a palyrad that has one answer for each run: the events of its steps.
type fake struct {
	hub.Table
	t *testing.T

	mu        sync.Mutex
	sessions  map[string]string // state by id
	titles    map[string]string // by id
	runs      map[string]*hub.Run
	started   []hub.NewRun
	of        map[string]hub.NewRun // by run
	cancelled []string

	steps    []step
	end      hub.Run // what a run's end has: state, reason and answer
	hang     bool    // the run doesn't end
	cut      int     // bytes of a part of output; 0: as they are
	noOutput bool    // output can't be followed while it comes
	may      error   // why the caller may ask no more
	most     int     // open sessions; 0: no bound
	refuses  error   // why no run begins
}

// step is one of each run.
type step struct {
	tool   string
	output string
	result hub.StepResult
	asked  *hub.Approval
}

func newFake(t *testing.T, steps ...step) *fake {
	f := &fake{t: t, sessions: map[string]string{}, titles: map[string]string{}, runs: map[string]*hub.Run{}, of: map[string]hub.NewRun{}, steps: steps, end: hub.Run{State: hub.RunDone}}
	f.Table = hub.NewTable(
		hub.ListModels.By(func(context.Context, hub.Caller, hub.None) (hub.Page[hub.Model], error) {
			return hub.Page[hub.Model]{Items: []hub.Model{{Name: "main", Provider: turn.Chat, Model: "m", Default: true}, {Name: "claude", Provider: turn.Messages}, {Name: "gpt", Provider: turn.Responses}, {Name: "gone", Reason: "helper_unusable"}}}, nil
		}),
		hub.CreateSession.By(f.createSession), hub.GetSession.By(f.getSession), hub.EndSession.By(f.endSession),
		hub.ListSessions.By(f.listSessions),
		hub.ListRuns.By(f.listRuns), hub.StartRun.By(f.startRun), hub.GetRun.By(f.getRun), hub.CancelRun.By(f.cancelRun), hub.SetMetadata.By(f.setMetadata),
		hub.ReadTape.By(f.readTape), hub.ReadOutput.By(f.readOutput),
		hub.ListApprovals.By(func(context.Context, hub.Caller, hub.ApprovalQuery) (hub.Page[hub.Approval], error) {
			return hub.Page[hub.Approval]{}, nil
		}),
	)
	return f
}

// lines are events of a turn as its program writes them.
func lines(events ...turn.Event) string {
	var b strings.Builder
	for _, ev := range events {
		if (turn.Writer{W: &b}).Write(ev) != nil {
			panic("an event can't be written")
		}
	}
	return b.String()
}

// says is a turn that answers with a text.
func says(text string) step {
	var events []turn.Event
	for _, w := range strings.SplitAfter(text, " ") {
		events = append(events, turn.Event{Text: w})
	}
	return step{tool: turn.Tool, output: lines(append(events, turn.Event{End: turn.EndStop, Usage: &turn.Usage{Input: 5, Cached: 2, Output: 3}})...)}
}

func (f *fake) createSession(_ context.Context, c hub.Caller, n hub.NewSession) (hub.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most > 0 && len(f.openSessions()) >= f.most {
		return hub.Session{}, fault.New(fault.Busy, "too_many", "create session", nil)
	}
	id := ident.New(ident.Session)
	f.sessions[id], f.titles[id] = hub.SessionOpen, n.Title
	return hub.Session{ID: id, Title: n.Title, State: hub.SessionOpen}, nil
}

func (f *fake) openSessions() (all []hub.Session) {
	for id, state := range f.sessions {
		if state == hub.SessionOpen {
			all = append(all, hub.Session{ID: id, Title: f.titles[id], State: state})
		}
	}
	return all
}

func (f *fake) listSessions(context.Context, hub.Caller, hub.SessionQuery) (hub.Page[hub.Session], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return hub.Page[hub.Session]{Items: f.openSessions()}, nil
}

func (f *fake) getSession(_ context.Context, _ hub.Caller, id string) (hub.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[id] == "" {
		return hub.Session{}, fault.New(fault.NotFound, "no_such_session", "read session", nil)
	}
	return hub.Session{ID: id, Principal: "alice", State: f.sessions[id]}, nil
}

func (f *fake) endSession(_ context.Context, _ hub.Caller, in hub.SessionChange) (hub.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if in.Idle {
		for _, r := range f.runs {
			if r.Session == in.ID && r.Ended == nil {
				return hub.Session{}, fault.New(fault.Busy, "locked", "end session", nil)
			}
		}
	}
	f.sessions[in.ID] = hub.SessionEnded
	for id, r := range f.runs {
		if r.Session == in.ID && r.State == hub.RunInProgress {
			f.cancelled = append(f.cancelled, id)
		}
	}
	return hub.Session{ID: in.ID}, nil
}

func (f *fake) startRun(_ context.Context, _ hub.Caller, n hub.NewRun) (hub.Run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[n.Session] != hub.SessionOpen {
		return hub.Run{}, fault.New(fault.NotFound, "no_such_session", "start run", nil)
	}
	if f.refuses != nil {
		return hub.Run{}, f.refuses
	}
	f.started = append(f.started, n)
	r := &hub.Run{ID: ident.New(ident.Run), Session: n.Session, Principal: "alice", State: hub.RunInProgress, Agent: n.Agent, Metadata: n.Metadata, Created: time.Now()}
	f.runs[r.ID], f.of[r.ID] = r, n
	return *r, nil
}

func (f *fake) getRun(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.runs[id]
	if r == nil {
		return hub.Run{}, fault.New(fault.NotFound, "not_found", "read run", nil)
	}
	out := *r
	if !f.hang {
		out.State, out.Reason, out.Answer = f.end.State, f.end.Reason, f.end.Answer
	}
	for i := range f.steps {
		s := f.result(i)
		if s.Tool = f.steps[i].tool; i == 0 && len(f.of[id].Steps) > 0 {
			s.Input = f.of[id].Steps[0].Input
		}
		out.Steps = append(out.Steps, s)
	}
	out.LastSeq = uint64(len(f.tape(id)))
	return out, nil
}

// listRuns has the newest of a session, or all that haven't ended.
func (f *fake) listRuns(_ context.Context, _ hub.Caller, q hub.RunQuery) (p hub.Page[hub.Run], err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last *hub.Run
	for _, r := range f.runs {
		if len(q.States) > 0 {
			if r.Ended == nil {
				p.Items = append(p.Items, *r)
			}
			continue
		}
		if r.Session == q.Session && (last == nil || r.Created.After(last.Created)) {
			last = r
		}
	}
	if last != nil {
		p.Items = []hub.Run{*last}
	}
	return p, nil
}

func (f *fake) result(i int) hub.StepResult {
	s := f.steps[i].result
	index := uint64(40 + i)
	s.Index, s.State, s.LogIndex = i, hub.StepDone, &index
	if s.Outcome == "" {
		s.Outcome = "executed"
	}
	s.Stdout = hub.Output{Size: int64(len(f.steps[i].output)), Text: f.steps[i].output}
	return s
}

func (f *fake) cancelRun(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancelled = append(f.cancelled, id)
	f.end.State = hub.RunCancelled
	return *f.runs[id], nil
}

func (f *fake) setMetadata(_ context.Context, _ hub.Caller, in hub.RunMetadata) (none hub.None, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs[in.Run].Metadata = in.Metadata.Metadata
	return none, nil
}

// events is a tape, or output.
type events[T any] struct {
	all  []T
	hang bool
}

func (e *events[T]) Next(ctx context.Context) (v T, err error) {
	switch {
	case len(e.all) > 0:
		v, e.all = e.all[0], e.all[1:]
		return v, nil
	case e.hang:
		<-ctx.Done()
		return v, ctx.Err()
	}
	return v, io.EOF
}

func (e *events[T]) Close() error { return nil }

func (f *fake) readTape(_ context.Context, _ hub.Caller, q hub.TapeQuery) (hub.Tape, error) {
	return &events[hub.Event]{all: f.tape(q.Run), hang: f.hang}, nil
}

func (f *fake) tape(run string) (all []hub.Event) {
	add := func(kind string, data any) {
		b, err := json.Marshal(data)
		if err != nil {
			f.t.Error(err)
		}
		all = append(all, hub.Event{Run: run, Seq: uint64(len(all) + 1), Kind: kind, Data: b})
	}
	add(hub.EventRunInProgress, hub.RunChange{})
	for i, s := range f.steps {
		add(hub.EventStepStarted, hub.StepStarted{Step: i, Tool: s.tool})
		if s.asked != nil {
			add(hub.EventApprovalRequested, s.asked)
			if f.hang {
				return all
			}
			add(hub.EventApprovalResolved, hub.ApprovalResolved{Step: i, Approval: s.asked.ID, State: hub.ApprovalApproved})
		}
		if f.hang && i == len(f.steps)-1 {
			return all
		}
		add(hub.EventStepEnded, f.result(i))
	}
	return all
}

func (f *fake) readOutput(_ context.Context, _ hub.Caller, q hub.OutputQuery) (hub.Outputs, error) {
	if f.noOutput && q.Until == "" {
		return nil, fault.New(fault.Unavailable, "too_many", "read output", errors.New("no place"))
	}
	text := f.steps[q.Step].output[q.Stdout:]
	n := f.cut
	if n == 0 {
		n = max(len(text), 1)
	}
	o := &events[hub.OutputPart]{hang: f.hang}
	for len(text) > 0 {
		n = min(n, len(text))
		o.all = append(o.all, hub.OutputPart{Step: q.Step, Stream: "stdout", Base64: []byte(text[:n])})
		text = text[n:]
	}
	return o, nil
}

// ask sends a request as alice.
func (f *fake) ask(h *Handler, method, path, body string) *httptest.ResponseRecorder {
	f.t.Helper()
	return f.askIn(f.t.Context(), h, method, path, body)
}

func (f *fake) askIn(ctx context.Context, h *Handler, method, path, body string) *httptest.ResponseRecorder {
	f.t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, path, nil)
	v := &behind.Visitor{Caller: hub.Caller{User: "alice", Token: "tok_1"}, Hub: f, Body: json.RawMessage(body), May: func() error { return f.may },
		Hold: func(int64) (func(), error) { return func() {}, nil }}
	if err := h.Serve(w, r, v); err != nil {
		flawOfError(err).answer(w, r)
	}
	return w
}

// object reads an answer.
func (f *fake) object(w *httptest.ResponseRecorder, status int) object {
	f.t.Helper()
	var o object
	if err := json.Unmarshal(w.Body.Bytes(), &o); err != nil || w.Code != status {
		f.t.Fatalf("%d %s, want %d: %v", w.Code, w.Body, status, err)
	}
	return o
}

// at returns a part of an answer.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			o, _ := v.(object)
			v = o[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

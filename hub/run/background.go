package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// A run in the background is one call of process.run whose input says so, or the own call of a
// program that answers others (Config.Servers), in a session of its own. Nothing waits for its
// end: it stands in no line, neither its session's nor that of the places, and has a budget of its
// own. There is room for it at once, or it is refused. It ends with its program, when it is
// cancelled, with its session, with its limits, in an emergency stop, and when palyrad ends: each
// way as any run does, with a result and a receipt.

// Background bounds runs in the background.
type Background struct {
	// Places counts them, by principal. Default: 16, of which 8 are one principal's, and two the
	// owners' at the socket alone.
	Places *budget.Pool
	// Session is how many one session has. Default 8.
	Session int
	// Wall is how long one may take, waiting for people included. Default 8 h.
	Wall time.Duration
	// Settled is how long a program must have been running before its run is told as started: one
	// that fails at once is told as ended. Default 250 ms.
	Settled time.Duration
}

// NewBackground returns the budget of runs in the background: total in all and each of one
// principal's, and beside these an eighth more for owners at the socket.
func NewBackground(total, each int) *budget.Pool {
	reserve := (total + 7) / 8
	return budget.New(budget.Limits{Name: "background", Total: int64(total + reserve), Each: int64(min(each, total)), Reserve: int64(reserve)})
}

func (b Background) withDefaults() Background {
	if b.Places == nil {
		b.Places = NewBackground(16, 8)
	}
	if b.Session <= 0 {
		b.Session = 8
	}
	if b.Wall <= 0 {
		b.Wall = 8 * time.Hour
	}
	if b.Settled <= 0 {
		b.Settled = 250 * time.Millisecond
	}
	return b
}

// checkBackground finds out whether a request is for the background.
func (q *Request) checkBackground() (bool, error) {
	if serves(q.Steps) {
		return true, nil
	}
	for i, s := range q.Steps {
		if s.Tool != kernel.ToolRun || !toolproto.Background(s.Input) {
			continue
		}
		bad := func(why, hint string) (bool, error) {
			return false, fault.New(fault.Usage, "invalid_input", "start run", fmt.Errorf("step %d: %s", i, why)).WithHint(hint)
		}
		switch {
		case len(q.Steps) > 1:
			return bad("a program in the background is a run of its own", "leave out the other steps, or start it before them")
		case q.Session == "":
			return bad("a program in the background ends with its session, and there is none", "name one: palyra sessions new makes it")
		}
		return true, nil
	}
	return false, nil
}

// serves says that a run is the own call of a program that answers others.
func serves(steps []hub.Step) bool { return len(steps) == 1 && steps[0].Tool == hub.ToolMCPServe }

// endServersLocked ends the programs that answer others when no run is left that could ask them,
// once the engine is closed.
func (e *Engine) endServersLocked() {
	var servers []*job
	for id, j := range e.jobs {
		switch {
		case serves(j.plan.Steps):
			servers = append(servers, j)
		case j.plan.Background || e.lines.Place(id) == session.Active:
			return
		}
	}
	for _, j := range servers {
		j.cancel(&Stop{State: store.RunFailed, Reason: ReasonInterrupted})
	}
}

// enterBackgroundLocked gives a run in the background its place, or says why there is none.
func (e *Engine) enterBackgroundLocked(j *job) (err error) {
	mine := 0
	for _, o := range e.jobs {
		if o.plan.Background && o.session == j.session {
			mine++
		}
	}
	const hint = "end one: palyra runs ls --background, palyra runs cancel; agents have process.list and process.stop"
	if most := e.cfg.Background.Session; mine >= most {
		return fault.New(fault.Busy, "too_many", "start in the background", fmt.Errorf("%d programs of this session are", mine)).WithHint(hint)
	}
	if j.place, err = e.cfg.Background.Places.Take(j.owner(), 1); err != nil {
		if f, ok := errors.AsType[*fault.Error](err); ok {
			err = f.WithHint(hint)
		}
		return err
	}
	return nil
}

// starting tells of a program that has run for a while that it has started. The caller calls stop
// when the program is gone.
func (e *Engine) starting(j *job) (stop func()) {
	if !j.plan.Background {
		return func() {}
	}
	t := time.AfterFunc(e.cfg.Background.Settled, sync.OnceFunc(func() { close(j.started) }))
	return func() { t.Stop() }
}

// Answer returns when there is something to say to the caller who made a run: it has ended, or runs
// in the background. Its errors are those of Wait.
func (e *Engine) Answer(ctx context.Context, id string) error {
	j := e.job(id)
	if j == nil {
		return nil
	}
	select {
	case <-j.started:
		return nil
	case <-j.ended:
		return j.err
	case <-ctx.Done():
		return fault.New(fault.Canceled, "canceled", "wait for run", ctx.Err())
	}
}

// ReviewBackground is Review for runs in the background, and for policies that take the right to
// begin runs away. Other runs are asked about that before each step, and such a run has one alone.
func (e *Engine) ReviewBackground() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.jobs {
		if !j.plan.Background {
			continue
		}
		if _, err := e.cfg.WhoIs(j.caller()); err != nil {
			e.cancelLocked(j, &Stop{State: store.RunCancelled, Reason: fault.ReasonOf(err)})
		}
	}
}

// BackgroundPlaces is the budget of runs in the background.
func (e *Engine) BackgroundPlaces() *budget.Pool { return e.cfg.Background.Places }

// Live is a run in the background that hasn't ended.
type Live struct{ ID, Session, User string }

// InBackground returns the runs in the background that haven't ended, newest first.
func (e *Engine) InBackground() []Live {
	e.mu.Lock()
	defer e.mu.Unlock()
	type dated struct {
		Live
		made time.Time
	}
	var all []dated
	for _, j := range e.jobs {
		if j.plan.Background {
			all = append(all, dated{Live{j.id, j.session, j.user}, j.made})
		}
	}
	slices.SortFunc(all, func(a, b dated) int { return b.made.Compare(a.made) })
	out := make([]Live, len(all))
	for i := range all {
		out[i] = all[i].Live
	}
	return out
}

// Mark says of a run from a list whether it's in the background, as far as that's known without
// its plan: until it has ended.
func (e *Engine) Mark(r *hub.Run) {
	j := e.job(r.ID)
	r.Background = r.Background || j != nil && j.plan.Background
}

// Written returns how much a run's step has written to both streams, whether it's under way or on
// record.
func (e *Engine) Written(r *hub.Run) (n [2]int64) {
	if len(r.Steps) == 0 {
		return n
	}
	s := &r.Steps[0]
	n = [2]int64{s.Stdout.Size, s.Stderr.Size}
	if l := e.liveOf(r.ID); l != nil && s.State == string(store.StepRunning) {
		for i, c := range l.out {
			n[i] = c.written()
		}
	}
	return n
}

func (c *capture) written() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

package run

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// op is one change within a commit. It may change the row of the run, which is
// written once after all of them.
type op func(tx *store.Tx, r *store.Run) error

// note is an event that is not worth a commit of its own.
type note struct {
	kind string
	data any
}

// ending is how a run ends.
type ending struct {
	state  store.RunState
	reason string
	by     string
}

// bytesLeft is how much output a run may still make.
type bytesLeft struct{ n atomic.Int64 }

// run takes a run that has got a place to its end.
func (e *Engine) run(j *job) {
	defer e.leave(j)
	<-j.recorded
	if !j.ok {
		return
	}
	if c, ok := j.src.(io.Closer); ok {
		defer c.Close()
	}
	e.step("run:begun")
	end, err := e.steps(j)
	if err == nil && end.reason == ReasonInterrupted && j.plan.Agent != nil && e.closing() {
		if err = e.persist(j); err == nil { // the next Open goes on with it
			err = fault.New(fault.Unavailable, "not_ready", "wait for run", errEnding)
		}
	}
	if err != nil { // what it was doing is not on record: the next Open resolves it
		j.end(err)
		return
	}
	e.finish(j, end)
}

// steps makes one step after the other. An error means that the store is closed.
func (e *Engine) steps(j *job) (ending, error) {
	ctx := j.ctx
	if j.began.IsZero() && j.plan.Agent != nil && ctx.Err() == nil { // what the session said until now is history to it
		j.stage(e.begin(j))
		if err := e.persist(j); err != nil {
			return ending{}, err
		}
	}
	if !j.began.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = j.limited()
		defer cancel()
	}
	for {
		if j.current == nil {
			if end := j.over(ctx); end != nil {
				return *end, nil
			}
			if j.plan.Agent != nil && e.closing() {
				return ending{state: store.RunFailed, reason: ReasonInterrupted}, nil
			}
			s, more, err := j.src.Next(ctx, j.results)
			if !more || err != nil {
				j.inbox.shut() // nothing comes between what an agent ends with and the end
			}
			if t, ok := j.src.(Telling); ok {
				for _, told := range t.Tell() {
					j.note(told.Kind, told.Data)
				}
			}
			if j.plan.Agent != nil && more && err == nil {
				s, err = plain(s, len(j.results))
			}
			stop, ended := errors.AsType[*Stop](err)
			switch {
			case ctx.Err() != nil:
				return stopped(ctx), nil
			case ended:
				return ending{store.RunFailed, stop.Reason, stop.By}, nil
			case err != nil:
				return ending{state: store.RunFailed, reason: reasonOf(err)}, nil
			case !more:
				return ending{state: store.RunDone}, nil
			}
			if back := e.regain(j); back != nil { // nobody said yes to the last step, and this one needs a place
				if err := e.persist(j); err != nil {
					return ending{}, err
				}
				select {
				case <-back:
				case <-ctx.Done():
					return stopped(ctx), nil
				}
			}
			if j.began.IsZero() {
				j.stage(e.begin(j))
			}
			j.stage(e.beginStep(j, s))
			if err := e.persist(j); err != nil {
				return ending{}, err
			}
			if ctx == j.ctx {
				var cancel context.CancelFunc
				ctx, cancel = j.limited()
				defer cancel()
			}
			continue
		}
		e.step("run:step")
		row := j.current
		calling, over := j.inbox.interruptible(ctx)
		res := e.call(calling, j)
		if over() && !well(&res.StepResult) {
			res.Reason, res.Error, res.Hint = ReasonSteered, "the caller said something else meanwhile", ""
		}
		e.step("run:called")
		j.stage(e.endStep(j, res))
		kept := res.StepResult // without what is large and in the store: a run can wait for long
		kept.Index, kept.Tool = row.Index, row.Tool
		kept.Input, kept.Stdout, kept.Stderr = nil, hub.Output{}, hub.Output{}
		j.results = append(j.results, kept)
		if !well(&res.StepResult) && ctx.Err() != nil {
			return stopped(ctx), nil
		}
		if _, ok := j.src.(*List); !ok { // Next may take its time
			if err := e.persist(j); err != nil {
				return ending{}, err
			}
		}
	}
}

// closing reports whether the engine is being closed.
func (e *Engine) closing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// limited is the run's ctx with its wall time.
func (j *job) limited() (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(j.ctx, j.began.Add(j.budget.Wall), &Stop{State: store.RunFailed, Reason: ReasonWall})
}

// over says whether the run may not make another step.
func (j *job) over(ctx context.Context) *ending {
	failed := func(reason string) *ending { return &ending{state: store.RunFailed, reason: reason} }
	switch {
	case ctx.Err() != nil:
		end := stopped(ctx)
		return &end
	case len(j.results) > 0 && j.done(): // nothing more is wanted: no budget is exceeded
		return nil
	case j.use.Calls >= j.budget.Calls:
		return failed(ReasonCalls)
	case !j.began.IsZero() && time.Since(j.began) >= j.budget.Wall:
		return failed(ReasonWall)
	case j.left.n.Load() <= 0:
		return failed(ReasonBytes)
	}
	return nil
}

// done reports whether a List has come to its end, for which no budget is needed.
func (j *job) done() bool {
	l, ok := j.src.(*List)
	if !ok {
		return false
	}
	_, more, err := l.Next(j.ctx, j.results)
	return !more || err != nil
}

// stopped is the ending that the cause of ctx asks for.
func stopped(ctx context.Context) ending {
	if s, ok := errors.AsType[*Stop](context.Cause(ctx)); ok {
		return ending{s.State, s.Reason, s.By}
	}
	return ending{state: store.RunFailed, reason: ReasonInterrupted}
}

func reasonOf(err error) string {
	if r := fault.ReasonOf(err); r != "" {
		return r
	}
	return "internal"
}

// begin brings a run to work. It runs within a commit.
func (e *Engine) begin(j *job) op {
	j.began = time.Now()
	return func(tx *store.Tx, r *store.Run) error {
		r.Started = j.began.UTC()
		return move(tx, r, store.RunInProgress, hub.RunChange{})
	}
}

// finish writes down how a run ended, with whatever else is staged. Who waits
// for the run hears of it from forget, when its place is given back.
func (e *Engine) finish(j *job, end ending) {
	j.inbox.shut()
	if !j.began.IsZero() {
		j.use.Wall = time.Since(j.began)
	}
	j.use.Bytes = j.budget.Bytes - j.left.n.Load()
	j.stage(func(tx *store.Tx, r *store.Run) error {
		r.Use, r.Ended = j.use, time.Now().UTC()
		if err := move(tx, r, end.state, hub.RunChange{Reason: end.reason, By: end.by}); err != nil {
			return err
		}
		if j.plan.Ephemeral {
			// The row of the run is written first: a session ends with no run at work.
			if err := tx.UpdateRun(r); err != nil {
				return err
			}
			_, err := session.EndIn(tx, j.session, 0)
			return err
		}
		return nil
	})
	if err := e.persist(j); err != nil {
		j.end(err)
		return
	}
	if j.plan.Ephemeral && e.cfg.Over != nil {
		e.cfg.Over(j.session)
	}
	e.step("run:ended")
}

// stage adds to what the next commit does.
func (j *job) stage(o op) { j.ops = append(j.ops, o) }

// apply does what is staged and writes the row. The tape has what was noted
// before the changes.
func (j *job) apply(tx *store.Tx, r *store.Run) error {
	version := r.Version
	for _, o := range j.ops {
		if err := o(tx, r); err != nil {
			return err
		}
	}
	if r.Version != version { // an op has written it
		return nil
	}
	return tx.UpdateRun(r)
}

// persist commits what is staged. It tries until that is durable: nothing more
// of the run happens before. It gives up when the engine is closed, or on an
// error of ours.
func (e *Engine) persist(j *job) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := e.update(context.WithoutCancel(j.ctx), j, j.apply)
		if err == nil {
			j.ops = nil
			return nil
		}
		e.cfg.Log.Error("write down what a run did", "run", j.id, "error", err)
		j.stuckOnce.Do(func() { close(j.stuck) })
		if k := fault.KindOf(err); k == fault.Internal || k == fault.Usage || k == fault.Integrity || errors.Is(err, store.ErrClosed) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-e.dead.Done():
			return err
		}
	}
}

// update runs f on the row of a run in a transaction that begins with what was
// noted. Updates of one run follow each other.
func (e *Engine) update(ctx context.Context, j *job, f func(tx *store.Tx, r *store.Run) error) error {
	j.commit.Lock()
	defer j.commit.Unlock()
	j.mu.Lock()
	notes := j.notes
	j.mu.Unlock()
	err := e.store.Update(ctx, func(tx *store.Tx) error {
		r, err := tx.RunHead(j.id)
		if err != nil {
			return err
		}
		for _, n := range notes {
			if err := event(tx, j.id, n.kind, n.data); err != nil {
				return err
			}
		}
		return f(tx, r)
	})
	if err != nil {
		return err
	}
	j.mu.Lock()
	j.notes = j.notes[len(notes):]
	j.mu.Unlock()
	e.tapes.ring(j.id)
	return nil
}

// note puts an event into the next commit of the run.
func (j *job) note(kind string, data any) {
	j.mu.Lock()
	j.notes = append(j.notes, note{kind, data})
	j.mu.Unlock()
}

// flush commits what was noted, if anything was.
func (e *Engine) flush(j *job) {
	j.mu.Lock()
	n := len(j.notes)
	j.mu.Unlock()
	if n == 0 {
		return
	}
	err := e.update(context.WithoutCancel(j.ctx), j, func(*store.Tx, *store.Run) error { return nil })
	if err != nil { // it comes with the next commit
		e.cfg.Log.Warn("write events of a run", "run", j.id, "error", err)
	}
}

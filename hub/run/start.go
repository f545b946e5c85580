package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"palyra/call"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// job is a run that has not ended.
type job struct {
	id, session, user string
	plan              *plan
	beside            func(context.Context) context.Context // nil: nothing comes beside its calls
	unasked           bool                                  // no person is asked about its calls
	stdout            *bytes.Buffer                         // of its calls; nil: it's kept
	src               Source
	inbox             Inbox // of an agent

	ctx    context.Context // done when the run is to end; the cause is a *Stop
	cancel context.CancelCauseFunc

	recorded chan struct{} // closed when the run is durable, or is not going to be
	ok       bool          // it is; written before recorded is closed

	place   *budget.Hold  // of a run in the background
	started chan struct{} // closed when its program has run for a while
	made    time.Time

	asking bool // it waits for a person's answer, and has nothing at work; guarded by Engine.mu

	back chan struct{} // closed when a run that gave its place away has one again; nil: it wants none; guarded by Engine.mu

	label *label // of its session, once a call of it was about to be made; what it points to is guarded by Engine.mu
	read  bool   // the label has what the store had; owned by the run's goroutine

	live *live // what its step writes, and after it the last one's; nil: none; guarded by Engine.mu

	ended chan struct{} // closed by end
	once  sync.Once
	err   error // why the end is not durable; written before ended is closed

	// Owned by whoever works on it: Start until recorded is closed, then the run's
	// goroutine.
	budget  store.Budget
	use     store.Budget
	left    bytesLeft
	began   time.Time // zero: it has not
	results []hub.StepResult
	current *store.Step // begun and not ended
	told    []uint64    // inputs that the agent was told before it
	turn    *turned     // that it is; nil: none that is counted
	from    uint64      // an index that the journal had not passed when it began
	ops     []op        // what the next commit is to do

	hold *budget.Hold // of its memory; nil: none is counted

	stuck     chan struct{} // closed when what it did could not be written down, for the first time
	stuckOnce sync.Once

	commit sync.Mutex // held during a commit: one after the other
	mu     sync.Mutex
	notes  []note        // events that go into the next commit, before its own; guarded by mu
	alive  chan struct{} // closed when the program that may be running is gone; nil: none is; guarded by mu
}

func (e *Engine) newJob(id, session, user string, p *plan, b store.Budget) *job {
	j := &job{id: id, session: session, user: user, plan: p, budget: b,
		recorded: make(chan struct{}), ended: make(chan struct{}), stuck: make(chan struct{}),
		started: make(chan struct{}), made: time.Now()}
	j.ctx, j.cancel = context.WithCancelCause(context.Background())
	j.left.n.Store(b.Bytes)
	j.src = e.source(j)
	return j
}

// caller is who began the run, as they came.
func (j *job) caller() hub.Caller {
	return hub.Caller{User: j.user, Token: j.plan.Token, Surface: j.plan.Surface, Device: j.plan.Device}
}

// keeps is the memory of a run in bytes: its inputs, as they came and as they are kept,
// and for each step what is kept of its result.
func (p *plan) keeps() (n int64) {
	for i := range p.Steps {
		n += 2*int64(len(p.Steps[i].Input)) + 1<<10
	}
	for name, value := range p.Metadata {
		n += 2 * int64(len(name)+len(value))
	}
	if p.Agent != nil {
		n += agentKeeps
		for _, text := range texts(p.Agent) {
			n += 2 * int64(len(text))
		}
	}
	return n
}

// agentKeeps is what an agent's run keeps of its conversation and its tools, in bytes.
const agentKeeps = 512 << 10

// remember takes the memory that the run keeps until it ends.
func (e *Engine) remember(j *job) (err error) {
	if e.cfg.Memory != nil {
		j.hold, err = e.cfg.Memory.Take(j.owner(), j.plan.keeps())
	}
	return err
}

// owner is whose place the run takes.
func (j *job) owner() budget.Owner { return budget.Owner{Name: j.user, Reserve: j.plan.Reserve} }

// end wakes who waits for the run. err says why it is not known to have ended.
func (j *job) end(err error) {
	j.once.Do(func() {
		j.err = err
		j.hold.Release()
		j.place.Release()
		close(j.ended)
	})
}

func (j *job) wait(ctx context.Context) error {
	select {
	case <-j.ended:
		return j.err
	case <-ctx.Done():
		return fault.New(fault.Canceled, "canceled", "wait for run", ctx.Err())
	}
}

// errEnding is the cause of what a daemon that is about to end refuses.
var errEnding = errors.New("draining")

// errExists is how the transaction of Start says that the key was used before.
var errExists = errors.New("the run exists")

// Start makes a run durable, and returns its id without waiting for it. With a
// key that the user gave before it returns the run of that time, if the request
// is the same; another one is fault.Usage "idempotency_key_reused".
func (e *Engine) Start(ctx context.Context, q Request) (string, error) {
	p, err := q.check()
	if err != nil {
		return "", err
	}
	for i, s := range p.Steps { // before the tape has it
		if e.cfg.HoldsSecret != nil && e.cfg.HoldsSecret(q.User, s.Input) {
			return "", fault.New(fault.Usage, "secret_in_call", "start run", fmt.Errorf("the input of step %d has the value of a secret", i))
		}
	}
	if err := e.checkNoted(q.User, p.Metadata); err != nil {
		return "", err
	}
	if p.Agent != nil {
		if e.cfg.Agents == nil {
			return "", fault.New(fault.Usage, "not_found", "start run", errors.New("this palyrad has no models")).WithHint("[models.NAME] in its configuration declares one: docs/AGENT.md")
		}
		for _, text := range texts(p.Agent) {
			if e.cfg.HoldsSecret != nil && e.cfg.HoldsSecret(q.User, []byte(text)) {
				return "", fault.New(fault.Usage, "secret_in_call", "start run", errors.New("the prompt, or what comes with it, has the value of a secret"))
			}
		}
	}
	old, err := e.look(ctx, &q)
	if err != nil || old != nil {
		return existing(old, p, err)
	}
	if p.Agent != nil {
		c := hub.Caller{User: q.User, Token: q.Token, Surface: q.Surface, Device: q.Device}
		if err := e.cfg.Agents.Check(ctx, Agent{Session: q.Session, Caller: c, Agent: *p.Agent}); err != nil {
			return "", err
		}
	}
	if err := e.cfg.Quota.Check(q.User, q.Reserve); err != nil {
		return "", err
	}
	sess := q.Session
	if p.Ephemeral {
		sess = ident.New(ident.Session)
	}
	wrote := e.labelOf(q.Wrote) // before the store is read: what isn't in memory any more is there
	most := e.cfg.Budget
	if p.Background {
		most.Wall = e.cfg.Background.Wall
	}
	j := e.newJob(ident.New(ident.Run), sess, q.User, p, bound(q.Budget, most))
	j.beside, j.unasked, j.stdout = q.Beside, q.Unasked, q.Stdout
	if err := e.remember(j); err != nil {
		return "", err
	}
	place, err := e.enter(j)
	if err != nil {
		j.hold.Release()
		return "", err
	}
	err = e.store.Update(ctx, func(tx *store.Tx) (err error) {
		if q.Key != "" {
			if old, err = tx.RunByKey(q.User, q.Key); fault.KindOf(err) != fault.NotFound {
				if err == nil {
					err = errExists
				}
				return err
			}
			old = nil
		}
		if err := e.create(tx, j, place, q.Key); err != nil {
			return err
		}
		if p.Agent != nil { // the first turn brings the prompt
			return tx.JoinInputs(j.session, j.user, inputsOf(p.Agent, j.id)...)
		}
		var in call.Inputs
		if q.Wrote != "" {
			if in, err = tx.Inputs(q.Wrote); err != nil {
				return err
			}
		}
		for _, o := range q.Origins {
			wrote = wrote.Join(call.Input{Origin: o, Tool: p.Steps[0].Tool, Run: j.id, Time: time.Now().UTC()})
		}
		if in = in.Join(wrote...); len(in) == 0 {
			return nil
		}
		return tx.JoinInputs(j.session, j.user, in...)
	})
	j.ok = err == nil
	if err == nil {
		j.ops = nil
		e.step("run:created")
	}
	close(j.recorded)
	if err != nil {
		e.drop(j)
		j.hold.Release()
		if errors.Is(err, errExists) {
			return existing(old, p, nil)
		}
		return "", err
	}
	e.tapes.ring(j.id)
	return j.id, nil
}

// look returns the run that was started with the same key before, if there is
// one, also when the queue is full, and otherwise refuses a session that is not
// the user's: nothing of the session is taken before it is known whose it is. The
// owner of a session never changes.
func (e *Engine) look(ctx context.Context, q *Request) (*store.Run, error) {
	if q.Key == "" && q.Session == "" {
		return nil, nil
	}
	return store.View(ctx, e.store, func(tx *store.Tx) (*store.Run, error) {
		if q.Key != "" {
			if r, err := tx.RunByKey(q.User, q.Key); fault.KindOf(err) != fault.NotFound {
				return r, err
			}
		}
		if q.Session == "" {
			return nil, nil
		}
		return nil, ownSession(tx, q.Session, q.User)
	})
}

// ownSession refuses a session of another as if it did not exist.
func ownSession(tx *store.Tx, id, user string) error {
	s, err := tx.Session(id)
	if err == nil && s.Principal != user {
		err = store.NoSuch("session", id)
	}
	return err
}

func existing(r *store.Run, p *plan, err error) (string, error) {
	if err != nil {
		return "", err
	}
	was, err := planOf(r)
	if err != nil {
		return "", err
	}
	if was.Digest != p.Digest {
		return "", fault.New(fault.Usage, "idempotency_key_reused", "start run",
			fmt.Errorf("the key belongs to another request, which made %s", r.ID)).WithHint("use a new key for a new request")
	}
	return r.ID, nil
}

// enter gives a new run its place in the lines.
func (e *Engine) enter(j *job) (session.Place, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return session.Gone, fault.New(fault.Unavailable, "not_ready", "start run", errEnding).WithHint("try again when the daemon is back")
	case e.cfg.Park:
		return session.Gone, fault.New(fault.Unavailable, "safe_mode", "start run", nil).
			WithHint("mend what status names and start the daemon again: in safe mode it makes no calls")
	case e.denied:
		d := &hub.DenialError{Denial: hub.Denial{Layer: hub.LayerStop, Reason: "stopped", Fix: "palyra resume"}}
		return session.Gone, fault.New(fault.Denied, "stopped", "start run", d).WithHint("an operator stopped this daemon and must let it go on")
	}
	if j.plan.Background {
		if err := e.enterBackgroundLocked(j); err != nil {
			return session.Gone, err
		}
		e.jobs[j.id] = j
		e.startLocked([]string{j.id})
		return session.Active, nil
	}
	place, err := e.lines.Enter(j.session, j.id, j.owner(), j.plan.Parallel)
	if err != nil {
		return place, err
	}
	e.jobs[j.id] = j
	if place == session.Active {
		e.startLocked([]string{j.id})
	}
	return place, nil
}

// startLocked tells runs that wait for a place again that they have it, and makes
// goroutines for new ones, unless the engine was closed: those wait for the next Open.
func (e *Engine) startLocked(ids []string) {
	for _, id := range ids {
		switch j := e.jobs[id]; {
		case j.back != nil:
			close(j.back)
			j.back = nil
		case !e.closed:
			e.work.Go(func() { e.run(j) })
		}
	}
}

// drop takes out a run that could not be recorded.
func (e *Engine) drop(j *job) {
	e.mu.Lock()
	active := j.plan.Background || e.lines.Place(j.id) == session.Active
	e.mu.Unlock()
	if active { // its goroutine sees that it is not recorded
		<-j.ended
		return
	}
	e.leave(j)
}

// leave gives back the place of a run and starts those that get it.
func (e *Engine) leave(j *job) {
	e.mu.Lock()
	moves := e.lines.Leave(j.id)
	e.startLocked(moves.Active)
	if e.closed {
		moves = session.Moves{}
	}
	e.mu.Unlock()
	e.forget(j)
	e.accept(moves)
}

// accept puts down that runs are now the next of their session. If that cannot be
// done now it comes with the change that follows.
func (e *Engine) accept(m session.Moves) {
	for _, id := range m.Heads {
		if !slices.Contains(m.Active, id) {
			e.acceptOne(id)
		}
	}
}

func (e *Engine) acceptOne(id string) {
	e.mu.Lock()
	j := e.jobs[id]
	e.mu.Unlock()
	if j == nil {
		return
	}
	select {
	case <-j.recorded:
	default:
		return
	}
	if !j.ok {
		return
	}
	err := e.update(context.Background(), j, func(tx *store.Tx, r *store.Run) error {
		if r.State != store.RunPending { // it has gone on meanwhile
			return nil
		}
		if err := move(tx, r, store.RunAccepted, hub.RunChange{}); err != nil {
			return err
		}
		return tx.UpdateRun(r)
	})
	if err != nil {
		e.cfg.Log.Warn("accept run", "run", j.id, "error", err)
	}
}

// forget ends the memory of a run.
func (e *Engine) forget(j *job) {
	j.hold.Release() // before Wait finds no run and returns
	e.mu.Lock()
	delete(e.jobs, j.id)
	e.unlabelLocked(j)
	if e.closed {
		e.endServersLocked()
	}
	e.mu.Unlock()
	e.setLive(j, nil)
	j.cancel(nil)
	j.end(nil)
}

// create writes a new run, and its first step if it has a place already: a call
// that need not wait costs one transaction before it begins.
func (e *Engine) create(tx *store.Tx, j *job, place session.Place, key string) error {
	if j.plan.Ephemeral {
		s, err := session.New(j.user, "call")
		if err != nil {
			return err
		}
		s.ID = j.session
		if err := tx.CreateSession(s); err != nil {
			return err
		}
	} else if err := ownSession(tx, j.session, j.user); err != nil {
		return err
	}
	b, err := j.plan.encode()
	if err != nil {
		return fault.New(fault.Internal, "internal", "start run", err)
	}
	r := &store.Run{ID: j.id, Session: j.session, Principal: j.user, Plan: b, Budget: j.budget, IdempotencyKey: key, Parallel: j.plan.Parallel, State: store.RunPending}
	if err := tx.CreateRun(r); err != nil {
		return err
	}
	to := map[session.Place]store.RunState{session.Queued: store.RunPending, session.Head: store.RunAccepted, session.Active: store.RunInProgress}[place]
	if place != session.Active {
		r.State = ""
		if err := move(tx, r, to, hub.RunChange{}); err != nil || to == store.RunPending {
			return err
		}
		return tx.UpdateRun(r)
	}
	r.State = ""
	j.stage(e.begin(j))
	if j.plan.Agent != nil {
		return j.apply(tx, r)
	}
	first, _, err := j.src.Next(j.ctx, nil) // a List answers at once
	if err != nil {
		return err
	}
	j.stage(e.beginStep(j, first))
	return j.apply(tx, r)
}

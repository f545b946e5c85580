// Package run makes runs: it queues them, takes them through their steps, one
// call of the gate after the other, and writes what happens to their tapes.
//
//	e, err := run.Open(ctx, run.Config{Store: st, Gate: k, WhoIs: whoIs})
//	id, err := e.Start(ctx, run.Request{User: "uid:1000", Session: s.ID, Steps: steps})
//	tape, err := e.Tape(id, 0)
//	ev, err := tape.Next(ctx) // durable before it is seen
//	err = e.Cancel(ctx, id, run.Stop{Reason: "cancelled", By: "uid:1000"})
//
// # States
//
//	pending → accepted → in_progress ⇄ waiting_approval
//	                     in_progress → done | failed | cancelled
//
// A run that waits may be cancelled or fail, too; states.go holds the table and
// nothing moves a run but [move], which refuses everything else. Each change is
// one transaction with its event: who sees the event will find the state.
//
// # Contract
//
// Start returns when the run is durable: from then on it is made, or ends with a
// reason, whatever happens to the process. A step is put down as running before
// its call begins; the next Open finds it so and makes it no second time. It
// gives a run that was under way the end failed "interrupted", and its step what
// the journal says became of the call; but an agent's run goes on behind that step.
// Runs that had not begun are made, in their order, except those whose caller waited.
//
// Budgets are looked at before every step; wall time and bytes also end a step
// that is under way. Turns of models are counted by session, principal and day (usage.go).
//
// # What it does not protect against
//
// It asks nobody for permission: palyra/hub/local does. What a call may do
// is the gate's to decide, step by step.
package run

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"sync"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/kernel"
)

// Gate makes calls. *kernel.Kernel is one.
type Gate interface {
	CallAs(ctx context.Context, who kernel.Caller, p kernel.Proposal, stdio kernel.IO) (*kernel.Outcome, error)
	// JournalStatus and JournalEntries are for finding out what became of calls
	// after a crash.
	JournalStatus(ctx context.Context) (kernel.JournalStatus, error)
	JournalEntries(from, to uint64) iter.Seq2[journal.Record, error]
}

var _ Gate = (*kernel.Kernel)(nil)

// Quota bounds what users leave behind for good. Store and Gate tell it of what
// they write; see store.OnWritten and kernel.OnLogged.
type Quota interface {
	Check(user string, free bool) error // free: an owner whom the kernel has named
}

// Layers has the layers of staged workspaces.
type Layers interface {
	// Hold keeps a session's layers for one of its calls until release is called. Others that
	// read them are waited for.
	Hold(ctx context.Context, session string) (release func(), err error)
	// Name returns the name of a session's layer over a workspace, or why the user may write no
	// more to layers.
	Name(ctx context.Context, session, user, workspace string) (string, error)
}

// Servers has programs that go on running and answer calls.
type Servers interface {
	// Attach is asked before each call. It returns the call's ctx and its part in an exchange,
	// nil for a call that has none. It may take its time until ctx is done.
	Attach(ctx context.Context, a Attaching) (context.Context, *Attached, error)
}

// Attaching is a call that is about to be made.
type Attaching struct {
	Caller       hub.Caller
	Reserve      bool // may use what budgets keep for the installation's owner
	Session, Run string
	Tool         string
	Input        []byte
	// Pause gives the run's place to others until resume is called. That waits for a place, or
	// for the end of Attach's ctx.
	Pause func() (resume func())
	// Starting puts on the tape that the call waits for a server whose own call is run.
	Starting func(server, run string)
}

// Attached is a call's part in exchanges: it makes one, or is the answering program's own call.
type Attached struct {
	Exchange kernel.Exchanger // nil: it makes none
	// Of a program's own call. Its standard error is kept as any call's.
	Stdin   io.Reader
	Stdout  io.Writer
	Observe func(kernel.Event)
	// Over is told that the call is over. o is nil if there is no outcome, and err then says why.
	Over func(o *kernel.Outcome, err error)
}

// noQuota bounds nothing.
type noQuota struct{}

func (noQuota) Check(string, bool) error { return nil }

// Config says how to open an Engine.
type Config struct {
	Store *store.Store
	Gate  Gate
	// WhoIs returns who a caller is for policy, with the roles of this moment, or
	// why what they began, as they came then, may not go on. It is asked when a step
	// begins, once more before its program does, and by Review with locks held, for
	// a standing grant with a user alone. It waits for nothing.
	WhoIs func(hub.Caller) (policy.Entity, error)
	// Quota says whether a user may leave more behind. It waits for nothing.
	// Default: no bound.
	Quota Quota
	// Layers has the layers of staged workspaces. Default: none, and each call in a workspace
	// that is staged gets its own.
	Layers Layers
	// HoldsSecret reports whether an input has the value of a secret that was given to a user. Such
	// a run of that user's is refused, before its tape has it. Default: none does.
	HoldsSecret func(user string, input []byte) bool
	// Servers has programs that answer calls. Default: none.
	Servers Servers
	// Agents has the sources of runs whose steps an agent chooses. Default: none, and such a run is
	// refused.
	Agents Agents
	// Meter knows what turns of models cost. Default: none is counted.
	Meter Meter
	// Spending bounds what counted turns take.
	Spending Spending
	// Over is told of the session of a run that had one of its own, when both have ended.
	// Default: nobody is.
	Over func(session string)
	// Memory counts the bytes that runs keep from their start to their end. Default: no
	// bound.
	Memory *budget.Pool
	// Bounds are on runs at work and runs that wait, of all and of one principal.
	Bounds session.Bounds
	// Budget is what a run has that asks for nothing, and what none exceeds.
	// Default: 256 calls, 1 hour, 256 MiB of output.
	Budget store.Budget
	// Background bounds runs in the background.
	Background Background
	// Readers bounds the readers of tapes. Default 1024.
	Readers int
	// Approvals tune the hub of approvals; see approval.HubOptions.
	Approvals approval.HubOptions
	// Hold is DenyNew from the start; runs that had been accepted are cancelled,
	// "stopped".
	Hold bool
	// Park takes no runs either, and leaves those that had been accepted as they
	// are, for an Open without it: the daemon is in safe mode.
	Park bool
	// Log is told of what cannot be written down and will be tried again. Default: nobody.
	Log *slog.Logger

	// TestOnlyStep is called at the named steps "run:created", "run:begun",
	// "run:step", "run:called", "run:ended" and "run:recover", so that a test can kill
	// the process there.
	TestOnlyStep func(name string)
}

// Engine makes runs. It is safe for concurrent use.
type Engine struct {
	cfg       Config
	store     *store.Store
	step      func(string)
	approvals *approval.Hub
	tapes     *tapes

	work sync.WaitGroup  // goroutines: one per active run, and one per queued run that is being cancelled
	dead context.Context // ends what is tried again and again; cancelled by Close
	die  context.CancelFunc

	mu     sync.Mutex
	lines  *session.Lines         // guarded by mu
	jobs   map[string]*job        // of runs that have not ended; guarded by mu
	labels map[string]*label      // by session, of those with runs that made calls; guarded by mu
	closed bool                   // guarded by mu
	denied bool                   // guarded by mu; see DenyNew
	turns  map[string]store.Usage // guarded by mu; what turns took that have ended, by model
	seen   uint64                 // guarded by mu; the journal was at least as long, in entries
}

// Open resolves what an earlier process left and starts the runs that had been
// accepted. Approvals that were pending expire.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	for _, f := range []struct {
		v   *int64
		def int64
	}{{&cfg.Budget.Calls, 256}, {(*int64)(&cfg.Budget.Wall), int64(time.Hour)}, {&cfg.Budget.Bytes, 256 << 20}} {
		if *f.v <= 0 {
			*f.v = f.def
		}
	}
	cfg.Background = cfg.Background.withDefaults()
	if cfg.Readers <= 0 {
		cfg.Readers = 1024
	}
	if cfg.Quota == nil {
		cfg.Quota = noQuota{}
	}
	if cfg.TestOnlyStep == nil {
		cfg.TestOnlyStep = func(string) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Approvals.TestOnlyStep = cfg.TestOnlyStep
	e := &Engine{
		cfg: cfg, store: cfg.Store, step: cfg.TestOnlyStep, tapes: newTapes(cfg.Store, cfg.Readers),
		lines: session.NewLines(cfg.Bounds), jobs: make(map[string]*job), labels: make(map[string]*label), turns: make(map[string]store.Usage), denied: cfg.Hold,
	}
	e.approvals = approval.NewHub(&book{e}, cfg.Approvals)
	e.dead, e.die = context.WithCancel(context.Background())
	if err := e.recover(ctx); err != nil {
		e.die()
		return nil, err
	}
	return e, nil
}

// Approvals is where the questions of runs are answered.
func (e *Engine) Approvals() *approval.Hub { return e.approvals }

// Counts returns how many runs are at work and how many wait for their turn.
func (e *Engine) Counts() (active, queued int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lines.Counts()
}

// Readers returns how many readers of tapes there are.
func (e *Engine) Readers() int { return e.tapes.count() }

// DenyNew makes Start refuse everything, or ends that. It does not outlive the
// process.
func (e *Engine) DenyNew(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.denied = on
}

// Stop is why a run ends before its time, and who wanted that.
type Stop struct {
	State  store.RunState // RunCancelled, the default, or RunFailed
	Reason string         // code
	By     string         // principal; "" is the daemon
}

// Error implements error: a Stop is the cause of a run's ctx.
func (s *Stop) Error() string { return "run ended: " + s.Reason }

// settle fills the default in. A Stop is read by many, and written no more.
func (s *Stop) settle() {
	if s.State != store.RunFailed {
		s.State = store.RunCancelled
	}
}

// The reasons for which the engine itself ends runs.
const (
	ReasonInterrupted = "interrupted"  // the daemon stopped or died while it was under way
	ReasonStopped     = "stopped"      // the emergency stop was in force when it should have begun
	ReasonCallerGone  = "caller_gone"  // nobody waits for it any more
	ReasonSteered     = "steered"      // of a step: the agent's caller interrupted it
	ReasonStepFailed  = "step_failed"  // a step did not end well, and the run went on
	ReasonCalls       = "budget_calls" // the budget is used up
	ReasonWall        = "budget_wall"
	ReasonBytes       = "budget_bytes"
	ReasonTokens      = "budget_tokens" // of a turn, and the run that wanted it: its session, or its principal's day, has taken enough
	ReasonCost        = "budget_cost"
)

// Wait returns when the run's end is durable, or with the error of ctx.
func (e *Engine) Wait(ctx context.Context, id string) error {
	e.mu.Lock()
	j := e.jobs[id]
	e.mu.Unlock()
	if j == nil {
		return nil
	}
	return j.wait(ctx)
}

// Cancel ends a run and returns when no process of it is left and that is
// durable. One that has ended, or does not exist, is left as it is. With a ctx
// that is done before, the run ends all the same.
func (e *Engine) Cancel(ctx context.Context, id string, s Stop) error {
	s.settle()
	e.mu.Lock()
	j := e.jobs[id]
	if j != nil {
		e.cancelLocked(j, &s)
	}
	e.mu.Unlock()
	if j == nil {
		return nil
	}
	return j.wait(ctx)
}

// CancelAll cancels the runs that match chooses, by session and user, as Cancel
// does, all at once. It returns how many they were. match is called with locks held.
func (e *Engine) CancelAll(ctx context.Context, s Stop, match func(session, user string) bool) (int, error) {
	chosen := e.cancel(s, match)
	var errs []error
	for _, j := range chosen {
		errs = append(errs, j.wait(ctx))
	}
	return len(chosen), errors.Join(errs...)
}

// Review cancels the runs that have lost their authority, each for the reason that
// Config.WhoIs gives, and drops the standing grants of those who may begin none.
// It waits for nothing, and returns how many runs they were.
func (e *Engine) Review(by string) (cancelled int) {
	e.approvals.Drop(func(g *approval.Standing) bool {
		_, err := e.cfg.WhoIs(hub.Caller{User: g.Requester})
		return err != nil
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.jobs {
		if _, err := e.cfg.WhoIs(j.caller()); err != nil {
			e.cancelLocked(j, &Stop{State: store.RunCancelled, Reason: fault.ReasonOf(err), By: by})
			cancelled++
		}
	}
	return cancelled
}

// cancel cancels the runs that match chooses.
func (e *Engine) cancel(s Stop, match func(session, user string) bool) (chosen []*job) {
	s.settle()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.jobs {
		if match(j.session, j.user) {
			e.cancelLocked(j, &s)
			chosen = append(chosen, j)
		}
	}
	return chosen
}

// cancelLocked ends an active run through its ctx, and a queued one itself.
func (e *Engine) cancelLocked(j *job, s *Stop) {
	j.cancel(s)
	if p := e.lines.Place(j.id); p != session.Queued && p != session.Head || e.closed {
		return
	}
	moves := e.lines.Leave(j.id)
	e.startLocked(moves.Active)
	e.work.Go(func() {
		<-j.recorded
		if j.ok {
			e.finish(j, ending{s.State, s.Reason, s.By})
		}
		e.forget(j)
		e.accept(moves)
	})
}

// Close takes no new runs, ends those in the background and those that wait for a person's answer,
// waits until the others at work have ended, ends the programs that answered them, and when ctx is
// done ends all as interrupted. Those that wait for their turn keep it for the next Open.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	for _, j := range e.jobs {
		// No caller waits for a run in the background, and it may take hours; so may an answer.
		if j.plan.Background && !serves(j.plan.Steps) || j.asking {
			j.cancel(&Stop{State: store.RunFailed, Reason: ReasonInterrupted})
		}
	}
	e.endServersLocked()
	e.mu.Unlock()
	idle := make(chan struct{})
	go func() { // ends with the runs, which die makes sure of
		e.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		e.mu.Lock()
		for id, j := range e.jobs {
			if j.plan.Background || e.lines.Place(id) == session.Active {
				j.cancel(&Stop{State: store.RunFailed, Reason: ReasonInterrupted})
			}
		}
		e.mu.Unlock()
		give := time.AfterFunc(closeGrace, e.die)
		<-idle
		give.Stop()
	}
	e.die()
	e.mu.Lock()
	for _, j := range e.jobs { // who waits for a queued one waits in vain
		j.end(fault.New(fault.Unavailable, "not_ready", "wait for run", errEnding))
	}
	e.mu.Unlock()
	e.tapes.close()
	return nil
}

// closeGrace is how long Close goes on trying to write down how runs ended.
const closeGrace = 5 * time.Second

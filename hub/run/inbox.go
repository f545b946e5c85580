package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// What the caller says to an agent at work is an event on the run's tape before it's acknowledged.
// The Source takes it from the run's Inbox, and the step that comes next has on record which events
// the model was told before it: so a run that goes on after a restart, or is told to a later one,
// is told the same between the same steps. What no step names waits for the next Open.

// maxWaiting is how many inputs wait for an agent that hasn't been told them.
const maxWaiting = 8

// Inbox is what an agent hasn't been told yet. It is safe for concurrent use.
type Inbox struct {
	mu        sync.Mutex
	waiting   []input            // guarded by mu
	taken     []uint64           // since the last step began; guarded by mu
	closed    bool               // guarded by mu
	interrupt context.CancelFunc // of the call that is being made; nil: none is; guarded by mu
	bell      chan struct{}      // closed when an urgent input comes; nil: no one waits for it; guarded by mu
}

// input is an event of a tape that has an hub.AgentInput.
type input struct {
	seq  uint64
	mode string
}

func (i input) urgent() bool { return i.mode != hub.InputFollowUp }

// Take returns the sequence number of the next input, and whether there is one. Those that follow
// up are among them only if all is true: then the agent has nothing else to do.
func (b *Inbox) Take(all bool) (seq uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.waiting, input.urgent)
	if i < 0 && all && len(b.waiting) > 0 {
		i = 0
	}
	if i < 0 {
		return 0, false
	}
	seq = b.waiting[i].seq
	b.waiting = slices.Delete(b.waiting, i, i+1)
	b.taken = append(b.taken, seq)
	return seq, true
}

// Close takes no more inputs. It reports false, and goes on taking them, if some wait.
func (b *Inbox) Close() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = len(b.waiting) == 0
	return b.closed
}

// shut takes no more inputs: the run ends.
func (b *Inbox) shut() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
}

// Until returns a context that is done when an input comes that can't wait.
func (b *Inbox) Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.waiting, input.urgent) {
		cancel()
		return ctx, cancel
	}
	if b.bell == nil {
		b.bell = make(chan struct{})
	}
	bell := b.bell
	go func() { // ends with ctx, which the caller cancels
		select {
		case <-bell:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// begins returns what was taken since the last step.
func (b *Inbox) begins() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.taken
	b.taken = nil
	return taken
}

// interruptible returns the context of a call that an input may end, and what ends that: it reports
// whether one has.
func (b *Inbox) interruptible(ctx context.Context) (_ context.Context, over func() bool) {
	mine, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.interrupt = cancel
	if slices.ContainsFunc(b.waiting, func(i input) bool { return i.mode == hub.InputInterrupt }) {
		cancel()
	}
	return mine, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.interrupt = nil
		ended := mine.Err() != nil && ctx.Err() == nil
		cancel()
		return ended
	}
}

// put adds an input that record makes durable.
func (b *Inbox) put(mode string, record func() (uint64, error)) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const op = "tell agent"
	switch {
	case b.closed:
		return 0, fault.New(fault.Usage, "run_ended", op, errors.New("it has nothing more to do")).WithHint("start another run in its session")
	case len(b.waiting) >= maxWaiting:
		return 0, fault.New(fault.Busy, "queue_full", op, fmt.Errorf("%d inputs wait for it", len(b.waiting))).WithHint("try again when it has been told these, or cancel it")
	}
	seq, err := record()
	if err != nil {
		return 0, err
	}
	b.addLocked(input{seq, mode})
	return seq, nil
}

func (b *Inbox) addLocked(i input) {
	b.waiting = append(b.waiting, i)
	if i.urgent() && b.bell != nil {
		close(b.bell)
		b.bell = nil
	}
	if i.mode == hub.InputInterrupt && b.interrupt != nil {
		b.interrupt()
	}
}

// Input puts what a caller says to an agent at work on its run's tape, and has the agent told. It
// returns the event's sequence number. Whose run it is the caller has looked at.
func (e *Engine) Input(ctx context.Context, id string, in hub.AgentInput) (uint64, error) {
	const op = "tell agent"
	e.mu.Lock()
	j, closed, denied := e.jobs[id], e.closed, e.denied
	e.mu.Unlock()
	if strings.TrimSpace(in.Text) == "" || len(in.Text) > hub.MaxInput || !utf8.ValidString(in.Text) {
		return 0, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("an input is text of 1 to %d bytes", hub.MaxInput))
	}
	switch {
	case closed:
		return 0, fault.New(fault.Unavailable, "not_ready", op, errEnding)
	case denied:
		return 0, fault.New(fault.Denied, "stopped", op, errors.New("an operator stopped this daemon"))
	case j == nil:
		return 0, fault.New(fault.Usage, "run_ended", op, nil).WithHint("start another run in its session")
	case j.plan.Agent == nil:
		return 0, fault.New(fault.Usage, "invalid_input", op, errors.New("no agent chooses the steps of this run"))
	case e.cfg.HoldsSecret != nil && e.cfg.HoldsSecret(j.user, []byte(in.Text)):
		return 0, fault.New(fault.Usage, "secret_in_call", op, errors.New("the input has the value of a secret"))
	}
	if err := e.cfg.Quota.Check(j.user, j.plan.Reserve); err != nil {
		return 0, err
	}
	select {
	case <-j.recorded:
	case <-ctx.Done():
		return 0, fault.New(fault.Canceled, "canceled", op, ctx.Err())
	}
	return j.inbox.put(in.Mode, func() (seq uint64, err error) {
		err = e.update(context.WithoutCancel(ctx), j, func(tx *store.Tx, r *store.Run) error {
			if r.State.Terminal() {
				return fault.New(fault.Usage, "run_ended", op, nil)
			}
			b, err := json.Marshal(in)
			if err != nil {
				return fault.New(fault.Internal, "internal", op, err)
			}
			ev, err := tx.AppendEvent(id, hub.EventAgentInput, b)
			seq = ev.Seq
			return err
		})
		return seq, err
	})
}

// ReadInput reads what a caller said to an agent, from its run's tape.
func ReadInput(ctx context.Context, st *store.Store, id string, seq uint64) (hub.AgentInput, error) {
	return store.View(ctx, st, func(tx *store.Tx) (in hub.AgentInput, err error) {
		evs, err := tx.Events(id, seq-1, 1)
		if err == nil && (len(evs) == 0 || evs[0].Seq != seq || evs[0].Kind != hub.EventAgentInput || json.Unmarshal(evs[0].Payload, &in) != nil) {
			err = fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read event %d of run %q", seq, id), errors.New("it's no input"))
		}
		return in, err
	})
}

// refill finds the inputs of a run that goes on which no step names.
func (b *Inbox) refill(tx *store.Tx, run string, steps []hub.StepResult) error {
	told := make(map[uint64]bool)
	for _, s := range steps {
		for _, seq := range s.Inputs {
			told[seq] = true
		}
	}
	for after := uint64(0); ; {
		evs, err := tx.Events(run, after, store.MaxPage)
		if err != nil || len(evs) == 0 {
			return err
		}
		for _, ev := range evs {
			after = ev.Seq
			var in hub.AgentInput
			if ev.Kind == hub.EventAgentInput && !told[ev.Seq] && json.Unmarshal(ev.Payload, &in) == nil {
				b.addLocked(input{ev.Seq, in.Mode}) // no one else has it yet
			}
		}
	}
}

package run

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/call"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// flushAfter is how long a call may have been running before what was decided
// about it is put on the tape for itself; that of a short call comes with its end.
const flushAfter = 25 * time.Millisecond

// record is what the output column of a step holds: the result, and until there
// is one what a later process needs to find it.
type record struct {
	hub.StepResult
	// From is an index that the journal had not passed when the step began. It is
	// kept of a step that the journal has not settled, for the next Open.
	From uint64 `json:"from,omitempty"`
	// Turn is what was counted of a turn of a model when it began.
	Turn *store.Usage `json:"turn,omitempty"`
}

// result is what became of a call.
type result struct {
	hub.StepResult
	log      *uint64 // of the result
	seen     uint64  // the journal was at least as long after it
	intended bool    // an intent is on record: an approval that was given is used
	from     uint64  // an index that the journal had not passed when it began

	// turn is what a turn of a model took; nil: nothing.
	turn *store.Usage

	reads   call.Inputs     // what it can have read
	sources *kernel.Sources // so, of one that recovery found in the journal; nil: it had no intent
}

// beginStep puts a step down as running. Its call begins when that is durable.
func (e *Engine) beginStep(j *job, s hub.Step) op {
	e.mu.Lock()
	from := e.seen
	e.mu.Unlock()
	j.from = from
	j.told = j.inbox.begins()
	told := j.told
	row := store.Step{Run: j.id, Index: len(j.results), Tool: s.Tool, Input: s.Input, Started: time.Now().UTC()}
	err := moveStep(&row, store.StepRunning)
	j.current, j.turn = &row, e.turnOf(j, &row)
	j.use.Calls++
	return func(tx *store.Tx, r *store.Run) error {
		if err != nil {
			return err
		}
		counted, err := e.countBegun(tx, j)
		if err != nil {
			return err
		}
		b, err := json.Marshal(record{StepResult: hub.StepResult{Inputs: told}, From: from, Turn: counted})
		if err != nil {
			return fault.New(fault.Internal, "internal", "begin step", err)
		}
		row.Output = b
		r.Use.Calls = j.use.Calls
		if err := tx.CreateStep(&row); err != nil {
			return err
		}
		return event(tx, j.id, hub.EventStepStarted, hub.StepStarted{Step: row.Index, Tool: row.Tool, Inputs: told})
	}
}

// endStep puts down what became of the step that is running.
func (e *Engine) endStep(j *job, res result) op {
	row, turn := *j.current, j.turn
	j.current, j.turn, res.Inputs = nil, nil, j.told
	e.mu.Lock()
	e.seen = max(e.seen, res.seen)
	if turn != nil && res.turn != nil {
		e.turns[res.turn.Model] = e.turns[res.turn.Model].And(*res.turn)
	}
	e.mu.Unlock()
	calls, bytes, plan := j.use.Calls, j.budget.Bytes-j.left.n.Load(), j.plan
	return func(tx *store.Tx, r *store.Run) error {
		r.Use.Calls, r.Use.Bytes = calls, bytes
		if turn != nil && turn.over == nil {
			if err := countEnded(tx, r, plan, &turn.begun, res.turn); err != nil {
				return err
			}
		}
		return closeStep(tx, r, row, res)
	}
}

// closeStep writes the end of a running step, and joins what its call can have read to the label of
// its session.
func closeStep(tx *store.Tx, r *store.Run, row store.Step, res result) error {
	if err := moveStep(&row, store.StepState(res.State)); err != nil {
		return err
	}
	res.Input, res.Index, res.Tool = nil, row.Index, row.Tool
	row.Ended = time.Now().UTC()
	res.Started, res.Ended = &row.Started, &row.Ended
	rec := record{StepResult: res.StepResult}
	if res.log != nil {
		if row.LogIndex = *res.log; row.LogIndex == store.NotLogged {
			rec.From = res.from
		}
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return fault.New(fault.Internal, "internal", "end step", err)
	}
	row.Output, row.OutputDigest = b, res.Stdout.Artifact
	if row.State == store.StepDone {
		row.CallID = res.CallID
	}
	row.Capsule, row.Outcome, row.Exit, row.Reason = res.Capsule, res.Outcome, res.Exit, res.Reason
	if err := tx.UpdateStep(&row, store.StepRunning); err != nil {
		return err
	}
	if err := tx.JoinInputs(r.Session, r.Principal, res.reads...); err != nil {
		return err
	}
	if err := joinFound(tx, r, &row, res.sources); err != nil {
		return err
	}
	if res.Approval != "" && res.intended {
		if err := spent(tx, res.Approval); err != nil {
			return err
		}
	}
	return event(tx, row.Run, hub.EventStepEnded, res.StepResult)
}

// spent marks the approval of a call that went on because of it as used.
func spent(tx *store.Tx, id string) error {
	err := tx.UseApproval(id)
	if fault.KindOf(err) == fault.NotApproved { // it was not used, or is marked
		return nil
	}
	return err
}

// call puts the step that is on record as running through the gate.
func (e *Engine) call(ctx context.Context, j *job) result {
	row := j.current
	res := result{StepResult: hub.StepResult{State: string(store.StepFailed)}, from: j.from}
	who, err := e.cfg.WhoIs(j.caller())
	if err == nil && j.turn != nil {
		err = j.turn.over
	}
	if err == nil {
		err = e.cfg.Quota.Check(j.user, j.plan.Reserve)
	}
	if err == nil && e.cfg.Layers != nil {
		var release func()
		if release, err = e.cfg.Layers.Hold(ctx, j.session); err == nil {
			defer release()
		}
	}
	var carried call.Inputs
	if err == nil {
		if err = e.labelled(ctx, j); err == nil {
			carried, err = e.carried(ctx, j, row)
		}
	}
	part := new(Attached)
	if err == nil && e.cfg.Servers != nil {
		var a *Attached
		if ctx, a, err = e.cfg.Servers.Attach(ctx, e.attaching(ctx, j, row)); a != nil {
			part = a
		}
	}
	if err != nil {
		res.fail(err)
		return res
	}
	ctx = tool.WithSession(ctx, &tool.Within{Session: j.session, Label: func() call.Inputs { return e.inputs(j) },
		Brought: func(origins ...string) { carried = carried.Join(entriesOf(row, origins...)...) }})
	if j.beside != nil {
		ctx = j.beside(ctx)
	}
	before := 0
	if j.stdout != nil {
		part.Stdout, before = j.stdout, j.stdout.Len()
	}
	subject := approval.Subject{Run: j.id, Session: j.session, Step: row.Index, Requester: j.user}
	var timer *time.Timer
	settle := func() {}
	live := e.goLive(j)
	observe := func(ev kernel.Event) {
		if part.Observe != nil {
			part.Observe(ev)
		}
		switch ev.Step {
		case kernel.StepSealed:
			subject.CallID, res.CallID, res.Capsule = ev.CallID, ev.CallID, ev.Capsule
		case kernel.StepDecided:
			d := ev.Decision
			res.DecisionID = hex.EncodeToString(d.ID[:])
			j.note(hub.EventStepDecided, hub.StepDecided{Step: row.Index, CallID: ev.CallID, Capsule: ev.Capsule,
				DecisionID: res.DecisionID, Effect: d.Effect.String(), Reason: d.Reason, Policies: some(d.Policies)})
		case kernel.StepAnswered:
			e.answered(j)
			if ev.Approval.Answer == approval.Approved {
				e.resume(j)
			}
		case kernel.StepIntent:
			j.begins() // before the gate looks at ctx for the last time
			if ev.Sources != nil {
				res.reads = entriesOf(row, originsOf(row.Tool, *ev.Sources)...).Join(carried...)
				e.enters(j, res.reads)
			}
			settle = e.starting(j)
			timer = time.AfterFunc(flushAfter, func() { live.tardy(); e.flush(j) })
		case kernel.StepExecuted:
			j.gone()
		}
	}
	var ask approval.Approver
	if !j.unasked {
		ask = approverFunc(func(ctx context.Context, q approval.Request) (approval.Answer, error) {
			return e.approvals.For(subject).Ask(ctx, q)
		})
	}
	o, err := e.cfg.Gate.CallAs(ctx,
		kernel.Caller{
			Principal: who, Device: j.plan.Device, Channel: j.plan.Surface, Reserve: j.plan.Reserve,
			Still: func() (policy.Entity, error) { return e.cfg.WhoIs(j.caller()) },
			Read:  func() call.Inputs { return e.inputs(j) },
			Layer: e.layer(j), Exchange: part.Exchange, Approver: ask,
		},
		kernel.Proposal{Tool: row.Tool, Input: row.Input, SessionID: j.session, RunID: j.id},
		part.streams(live, observe))
	j.gone()
	if part.Over != nil {
		part.Over(o, err)
	}
	settle()
	if timer != nil {
		timer.Stop()
	}
	res.Stdout, res.Stderr = live.close()
	if o != nil {
		res.took(o)
	}
	if d := res.Denial; d != nil && d.Comment != "" { // the caller is told it
		res.reads = entriesOf(row, call.OriginPerson)
		e.enters(j, res.reads)
	}
	if j.turn != nil && res.intended {
		var out io.ReaderAt = readerAt{ctx, live}
		size := live.size(0)
		if j.stdout != nil {
			b := j.stdout.Bytes()[before:]
			out, size = bytes.NewReader(b), int64(len(b))
		}
		res.turn = j.turn.took(io.NewSectionReader(out, 0, size))
	}
	switch {
	case err == nil:
	case o != nil && o.LogIndex > 0: // the result is on record; only its receipt could not be made now
		e.cfg.Log.Warn("make receipt", "run", j.id, "log_index", o.LogIndex, "error", err)
	case res.CallID == "": // not sealed: nothing of it can be in the journal
		res.fail(err)
	default:
		res.unsettled(err)
	}
	return res
}

// attaching describes a step to Config.Servers.
func (e *Engine) attaching(ctx context.Context, j *job, row *store.Step) Attaching {
	return Attaching{Caller: j.caller(), Reserve: j.plan.Reserve, Session: j.session, Run: j.id, Tool: row.Tool, Input: row.Input,
		Pause: func() func() {
			e.pause(j)
			return func() { await(ctx, e.regain(j)) }
		},
		Starting: func(server, run string) {
			j.note(hub.EventServerStarting, hub.ServerStarting{Step: row.Index, Server: server, Run: run})
			e.flush(j)
		}}
}

// await waits for what regain returned.
func await(ctx context.Context, back <-chan struct{}) {
	if back == nil {
		return
	}
	select {
	case <-back:
	case <-ctx.Done():
	}
}

// streams returns the streams of a call whose output live takes.
func (p *Attached) streams(live *live, observe func(kernel.Event)) kernel.IO {
	out := kernel.IO{Stdin: p.Stdin, Stdout: live.out[0], Stderr: live.out[1], Observe: observe}
	if p.Stdout != nil {
		out.Stdout = p.Stdout
	}
	return out
}

// layer says which layer a call of the run in a workspace writes to.
func (e *Engine) layer(j *job) func(ctx context.Context, workspace string, staged bool) (string, error) {
	if e.cfg.Layers == nil {
		return nil
	}
	return func(ctx context.Context, workspace string, staged bool) (string, error) {
		if !staged && !j.plan.Staged {
			return "", nil
		}
		return e.cfg.Layers.Name(ctx, j.session, j.user, workspace)
	}
}

// approverFunc is an Approver in a line.
type approverFunc func(ctx context.Context, q approval.Request) (approval.Answer, error)

// Ask implements approval.Approver.
func (f approverFunc) Ask(ctx context.Context, q approval.Request) (approval.Answer, error) {
	return f(ctx, q)
}

// reasonExit is the reason of a step whose program ended by itself with another
// status than 0.
const reasonExit = "exit_status"

// took takes over what became of a decided call.
func (r *result) took(o *kernel.Outcome) {
	r.State, r.CallID, r.Capsule, r.Outcome, r.Exit = string(store.StepDone), o.CallID, o.CapsuleDigest, o.Outcome, o.Exit
	r.Diagnosis, r.Layer = o.Diagnosis, o.Layer
	r.log, r.LogIndex, r.seen, r.intended = &o.LogIndex, &o.LogIndex, o.LogIndex+1, o.Intent != nil
	if o.Approval != nil {
		r.Approval = o.Approval.ID
	}
	if f := o.Error; f != nil {
		r.Reason, r.Error, r.Hint = f.Reason, f.Text, f.Hint
	} else if o.Exit != 0 {
		r.Reason = reasonExit
	}
	d := o.Decision
	den := hub.Denial{DecisionID: r.DecisionID, Reason: r.Reason, Policies: some(d.Policies), PolicySet: d.PolicySet,
		Capsule: r.Capsule, Errors: d.Errors}
	switch o.Outcome {
	case receipt.Denied:
		den.Layer = hub.LayerPolicy // its fix is made for whoever asks about the decision
	case receipt.NotApproved:
		den.Layer, den.Fix = hub.LayerApproval, "propose the call again and have it approved: palyra approvals ls"
		if a := o.Approval; a != nil && a.Answer == approval.Denied {
			den.Fix, den.Comment = "a person said no to this call: propose another one", a.Comment
		}
	case receipt.Refused:
		den.Layer, den.Fix = hub.LayerIsolation, r.Hint
		switch {
		case fault.Code(r.Reason) == fault.ErrPolicyChanged:
			den.Layer = hub.LayerPolicy
		case o.Error != nil && o.Error.Kind == fault.Denied.String(): // by Still
			den.Layer = hub.LayerAccess
		}
	default:
		return
	}
	r.Denial = &den
}

// unsettled puts down that the journal failed in the middle of the call. With an
// intent on record something may have happened, and what the next start finds is
// an intent without a result: outcome_unknown. Without one nothing happened, but
// an entry that was being written may be found all the same.
func (r *result) unsettled(err error) {
	ran := r.intended
	r.fail(err)
	notLogged := store.NotLogged
	r.log = &notLogged
	if ran {
		r.State, r.Outcome, r.Denial = string(store.StepDone), receipt.OutcomeUnknown, nil
	}
}

// fail puts down an error: of a call that came to no decision, or that did not
// get as far as to be recorded.
func (r *result) fail(err error) {
	r.State, r.log, r.LogIndex, r.Outcome = string(store.StepFailed), nil, nil, ""
	r.Reason, r.Error, r.Hint = reasonOf(err), err.Error(), fault.HintOf(err)
	r.Denial = hub.DenialOf(err)
}

func some[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// pause gives the place of a run that waits for a person to others.
func (e *Engine) pause(j *job) {
	e.mu.Lock()
	moves := e.lines.Pause(j.id)
	e.startLocked(moves.Active)
	e.mu.Unlock()
}

// asks gives the place of a run to others while it waits for a person's answer. When the engine
// closes it doesn't wait any more.
func (e *Engine) asks(j *job) {
	e.pause(j)
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.asking = true; e.closed {
		j.cancel(&Stop{State: store.RunFailed, Reason: ReasonInterrupted})
	}
}

// answered notes that a run waits for no answer any more.
func (e *Engine) answered(j *job) {
	e.mu.Lock()
	j.asking = false
	e.mu.Unlock()
}

// regain ends the pause of a run that no person said yes to, if it has one. Where there
// is no place for it now it returns what is closed when it has one.
func (e *Engine) regain(j *job) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lines.Return(j.id) {
		return nil
	}
	j.back = make(chan struct{})
	return j.back
}

// resume ends the pause, if there was one.
func (e *Engine) resume(j *job) {
	e.mu.Lock()
	e.lines.Resume(j.id)
	e.mu.Unlock()
}

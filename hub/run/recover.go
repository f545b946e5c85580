package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// recover gives every run of an earlier process a defined state. The rules:
//
//   - an approval that was pending has expired;
//   - a run that was under way failed, "interrupted". The step that was running
//     has the outcome that the journal has for its call, outcome_unknown where the
//     gate found an intent without a result; a call that the journal does not know
//     never ran. No step is made again;
//   - but an agent's run goes on: it's told what became of that step;
//   - a run that had not begun is made, in its place, unless it was a call of
//     somebody who waited: that is cancelled, "caller_gone". While an emergency stop
//     is in force all of these are cancelled, "stopped"; in safe mode they go on waiting;
//   - a step in whose call the journal failed gets what the journal has of it now.
func (e *Engine) recover(ctx context.Context) error {
	if _, err := e.approvals.Expire(ctx); err != nil {
		return fmt.Errorf("expire approvals: %w", err)
	}
	runs, err := e.unfinished(ctx)
	if err != nil {
		return err
	}
	unsettled, err := store.View(ctx, e.store, (*store.Tx).UnsettledSteps)
	if err != nil {
		return err
	}
	calls, err := e.whatBecame(ctx, runs, unsettled)
	if err != nil {
		return err
	}
	for i := range unsettled {
		if err := e.settle(ctx, &unsettled[i], calls); err != nil {
			return fmt.Errorf("settle step of run %s: %w", unsettled[i].Run, err)
		}
	}
	var start []string
	for i := range runs {
		r := &runs[i]
		p, err := e.planOf(ctx, r.ID)
		if err != nil {
			return err
		}
		e.step("run:recover")
		switch {
		case r.State.Active() && p.Agent != nil && e.cfg.Agents != nil && !e.cfg.Hold && !e.cfg.Park:
			var j *job
			if j, err = e.resumed(ctx, r, p, calls.run[r.ID]); err == nil && e.lines.Restore(j.session, j.id, j.owner(), p.Parallel) == session.Active {
				start = append(start, j.id)
			}
		case r.State.Active():
			err = e.interrupted(ctx, r.ID, p, calls.run[r.ID])
		case e.cfg.Hold:
			err = e.abandoned(ctx, r.ID, p, Stop{State: store.RunCancelled, Reason: ReasonStopped})
		case p.Attended:
			err = e.abandoned(ctx, r.ID, p, Stop{State: store.RunCancelled, Reason: ReasonCallerGone})
		case e.cfg.Park:
		case p.Agent != nil && e.cfg.Agents == nil: // the configuration has no models any more
			err = e.abandoned(ctx, r.ID, p, Stop{State: store.RunFailed, Reason: "not_found"})
		default:
			j := e.newJob(r.ID, r.Session, r.Principal, p, r.Budget)
			_ = e.remember(j) // it has been promised, also without room
			j.ok = true
			close(j.recorded)
			e.jobs[j.id] = j
			if e.lines.Restore(j.session, j.id, j.owner(), p.Parallel) == session.Active {
				start = append(start, j.id)
			}
		}
		if err != nil {
			return fmt.Errorf("recover run %s: %w", r.ID, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.startLocked(start)
	return nil
}

// planOf reads the plan of a run from the store. Together the plans of the runs that have
// not ended may be larger than memory: recover has one of them at a time.
func (e *Engine) planOf(ctx context.Context, id string) (*plan, error) {
	return store.View(ctx, e.store, func(tx *store.Tx) (*plan, error) {
		r, err := tx.Run(id)
		if err != nil {
			return nil, err
		}
		return planOf(r)
	})
}

// unfinished returns the runs that have not ended, oldest first, without their plans.
func (e *Engine) unfinished(ctx context.Context) (all []store.Run, err error) {
	live := []store.RunState{store.RunPending, store.RunAccepted, store.RunInProgress, store.RunWaitingApproval}
	for after := ""; ; {
		page, err := store.View(ctx, e.store, func(tx *store.Tx) ([]store.Run, error) {
			return tx.Runs(store.RunFilter{States: live}, store.Page{After: after, Limit: store.MaxPage, OldestFirst: true})
		})
		if err != nil || len(page) == 0 {
			return all, err
		}
		all = append(all, page...)
		after = page[len(page)-1].ID
	}
}

// became is what the journal says of the calls that were looked up in it.
type became struct {
	run  map[string]result // the last one of a run, from where its running step began
	call map[string]result // by call id
}

// whatBecame looks the calls of the steps that were running up in the journal,
// and of those that it had not settled. A run makes one call at a time: the call
// of a running step is the only one of its run from where the step began.
// Statements that name no run were made before there was a name for it: a session
// has one active run, so its session stands for it.
func (e *Engine) whatBecame(ctx context.Context, runs []store.Run, unsettled []store.Step) (*became, error) {
	from := make(map[string]uint64) // by run
	of := make(map[string]string)   // runs by session
	journal, err := e.cfg.Gate.JournalStatus(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.seen = journal.Size
	e.mu.Unlock()
	first := journal.Size
	for i := range runs {
		if !runs[i].State.Active() {
			continue
		}
		s, err := e.runningStep(ctx, runs[i].ID)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		r, err := recordOf(s)
		if err != nil {
			return nil, err
		}
		from[runs[i].ID], of[runs[i].Session] = r.From, runs[i].ID
		first = min(first, r.From)
	}
	wanted := make(map[string]bool) // by call
	for i := range unsettled {
		r, err := recordOf(&unsettled[i])
		if err != nil {
			return nil, err
		}
		wanted[r.CallID] = true
		first = min(first, r.From)
	}
	b := &became{make(map[string]result), make(map[string]result)}
	names := slices.Concat(slices.Collect(maps.Keys(wanted)), slices.Collect(maps.Keys(from)), slices.Collect(maps.Keys(of)))
	for rec, err := range e.cfg.Gate.JournalEntries(first, journal.Size) {
		if err != nil {
			return nil, err
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return nil, err
		}
		if !mentions(env.Payload, names) {
			continue
		}
		st, _, err := receipt.ParsePayload(env.Payload)
		if err != nil {
			return nil, err
		}
		if st == nil || st.IsIntent() {
			continue
		}
		p := &st.Predicate
		run := p.RunID
		if run == "" {
			run = of[p.SessionID]
		}
		if wanted[p.CallID] {
			b.call[p.CallID] = foundIn(p, rec.Index)
		} else if at, ok := from[run]; ok && rec.Index >= at {
			b.run[run] = foundIn(p, rec.Index)
		}
	}
	return b, nil
}

// mentions reports whether any of these ids stands in a statement. Few of those that were
// journaled since the oldest unfinished step are looked for, and to parse one takes ten times
// as long.
func mentions(statement []byte, ids []string) bool {
	return slices.ContainsFunc(ids, func(id string) bool { return bytes.Contains(statement, []byte(id)) })
}

func recordOf(s *store.Step) (r record, err error) {
	if err := json.Unmarshal(s.Output, &r); err != nil {
		return r, fault.New(fault.Integrity, "store_corrupt", fmt.Sprintf("read step %d of %s", s.Index, s.Run), err)
	}
	return r, nil
}

// settle gives a step what the journal says of its call after all. Its run has
// ended, and its tape stays as it was. What the journal does not have after it
// was recovered it will never have: then nothing ran.
func (e *Engine) settle(ctx context.Context, s *store.Step, b *became) error {
	r, err := recordOf(s)
	if err != nil {
		return err
	}
	was := s.State
	if f, ok := b.call[r.CallID]; ok {
		s.State, s.CallID, s.Capsule, s.Outcome, s.LogIndex = store.StepDone, r.CallID, f.Capsule, f.Outcome, *f.log
		r.State, r.Capsule, r.Outcome, r.LogIndex = f.State, f.Capsule, f.Outcome, f.LogIndex
	} else if was == store.StepFailed {
		s.LogIndex = 0
	} else {
		e.cfg.Log.Error("settle step: the journal has no result of a call that had an intent", "run", s.Run, "step", s.Index, "call", s.CallID)
		return nil
	}
	if s.Output, err = json.Marshal(record{StepResult: r.StepResult}); err != nil {
		return fault.New(fault.Internal, "internal", "settle step", err)
	}
	return e.store.Update(ctx, func(tx *store.Tx) error {
		if err := tx.UpdateStep(s, was); err != nil {
			return err
		}
		run, err := tx.RunHead(s.Run)
		if err != nil {
			return err
		}
		return joinFound(tx, run, s, b.call[r.CallID].sources)
	})
}

func (e *Engine) runningStep(ctx context.Context, run string) (*store.Step, error) {
	return store.View(ctx, e.store, func(tx *store.Tx) (*store.Step, error) { return running(tx, run) })
}

// running returns the step of a run that has begun and not ended, nil if none.
func running(tx *store.Tx, run string) (*store.Step, error) {
	s, err := tx.LastStep(run)
	if err != nil || s == nil || s.State != store.StepRunning {
		return nil, err
	}
	return s, nil
}

// foundIn is what the journal says became of a call. Its output is gone.
func foundIn(p *receipt.Predicate, index uint64) result {
	r := result{StepResult: hub.StepResult{
		State: string(store.StepDone), CallID: p.CallID, Capsule: p.Capsule.Digest, DecisionID: p.Decision.ID, Outcome: p.Outcome,
		Reason: ReasonInterrupted, Error: "the daemon stopped before the result was taken", LogIndex: &index,
	}, log: &index, intended: p.Intent != nil}
	if p.Error != nil {
		r.Reason = p.Error.Reason
	}
	if p.Approval != nil {
		r.Approval = p.Approval.ID
	}
	if r.intended {
		from := kernel.SourcesOf(p)
		r.sources = &from
	}
	var ev evidence.Evidence
	if json.Unmarshal(p.Evidence, &ev) == nil && ev.Exit.Code > 0 {
		r.Exit = ev.Exit.Code
	}
	return r
}

// interrupted ends a run that was under way. The zero found is a call that the
// journal does not know.
func (e *Engine) interrupted(ctx context.Context, id string, p *plan, found result) error {
	return e.alone(ctx, id, func(tx *store.Tx, r *store.Run) error {
		if err := settleRunning(tx, r, p, found); err != nil {
			return err
		}
		return e.close(tx, r, p, Stop{State: store.RunFailed, Reason: ReasonInterrupted})
	})
}

// resumed brings an agent's run that was under way to where it can go on. The zero found is a call
// that the journal does not know.
func (e *Engine) resumed(ctx context.Context, r *store.Run, p *plan, found result) (*job, error) {
	j := e.newJob(r.ID, r.Session, r.Principal, p, r.Budget)
	_ = e.remember(j) // it has been promised, also without room
	err := e.alone(ctx, r.ID, func(tx *store.Tx, r *store.Run) error {
		if err := settleRunning(tx, r, p, found); err != nil {
			return err
		}
		if r.State == store.RunWaitingApproval {
			if err := move(tx, r, store.RunInProgress, hub.RunChange{}); err != nil {
				return err
			}
		}
		j.began, j.use = r.Started, r.Use
		j.left.n.Store(r.Budget.Bytes - r.Use.Bytes)
		rows, err := tx.Steps(r.ID)
		if err != nil {
			return err
		}
		for i := range rows {
			s, err := stepOf(&rows[i])
			if err != nil {
				return err
			}
			s.Input, s.Stdout, s.Stderr = nil, hub.Output{}, hub.Output{}
			j.results = append(j.results, s)
		}
		if err := j.inbox.refill(tx, r.ID, j.results); err != nil {
			return err
		}
		return tx.UpdateRun(r)
	})
	if err != nil {
		return nil, err
	}
	j.ok = true
	close(j.recorded)
	e.jobs[j.id] = j
	return j, nil
}

// settleRunning gives the step of a run that was running its end.
func settleRunning(tx *store.Tx, r *store.Run, p *plan, found result) error {
	s, err := running(tx, r.ID)
	if err != nil || s == nil {
		return err
	}
	rec, err := recordOf(s)
	if err != nil {
		return err
	}
	known, err := knows(tx, found.CallID)
	if err != nil {
		return err
	}
	if found.CallID == "" || known { // known: of an earlier step, whose result could not be taken
		found = result{}
		found.fail(fault.New(fault.Canceled, ReasonInterrupted, "call", errors.New("the daemon stopped before it was decided; nothing ran")))
	}
	found.Inputs = rec.Inputs
	if rec.Turn != nil && !found.intended { // its model wasn't asked
		if err := countEnded(tx, r, p, rec.Turn, nil); err != nil {
			return err
		}
	}
	return closeStep(tx, r, *s, found)
}

// knows reports whether a step has this call already.
func knows(tx *store.Tx, call string) (bool, error) {
	_, err := tx.StepByCall(call)
	if fault.KindOf(err) == fault.NotFound {
		return false, nil
	}
	return err == nil, err
}

// abandoned ends a run that had not begun.
func (e *Engine) abandoned(ctx context.Context, id string, p *plan, s Stop) error {
	return e.alone(ctx, id, func(tx *store.Tx, r *store.Run) error { return e.close(tx, r, p, s) })
}

// close ends a run that nobody works on.
func (e *Engine) close(tx *store.Tx, r *store.Run, p *plan, s Stop) error {
	r.Ended = time.Now().UTC()
	if err := move(tx, r, s.State, hub.RunChange{Reason: s.Reason, By: s.By}); err != nil {
		return err
	}
	if err := tx.UpdateRun(r); err != nil || !p.Ephemeral {
		return err
	}
	_, err := session.EndIn(tx, r.Session, 0)
	return err
}

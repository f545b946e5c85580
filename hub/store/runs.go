package store

import (
	"database/sql"
	"errors"

	"palyra/internal/fault"
	"palyra/internal/ident"
)

const selectRun = `SELECT id, session, principal, state, reason, plan, budget_calls, budget_wall, budget_bytes,
	use_calls, use_wall, use_bytes, key, version, created, started, ended FROM runs`

// selectRunOnly is selectRun for lists: without the plan, of up to 4 MiB.
const selectRunOnly = `SELECT id, session, principal, state, reason, NULL, budget_calls, budget_wall, budget_bytes,
	use_calls, use_wall, use_bytes, key, version, created, started, ended FROM runs`

func scanRun(r scanner, v *Run) error {
	var created, started, ended int64
	err := r.Scan(&v.ID, &v.Session, &v.Principal, &v.State, &v.Reason, &v.Plan, &v.Budget.Calls, (*int64)(&v.Budget.Wall), &v.Budget.Bytes,
		&v.Use.Calls, (*int64)(&v.Use.Wall), &v.Use.Bytes, &v.IdempotencyKey, &v.Version, &created, &started, &ended)
	v.Created, v.Started, v.Ended = at(created), at(started), at(ended)
	return err
}

func (tx *Tx) createRun(r *Run) error {
	const op = "create run"
	fill(&r.ID, ident.New(ident.Run))
	fill(&r.State, RunPending)
	fill(&r.Version, 1)
	fill(&r.Created, tx.now)
	if r.State.Terminal() {
		fill(&r.Ended, tx.now)
	}
	if err := ident.Check(ident.Run, r.ID); err != nil {
		return err
	}
	if err := checkJSON(op, r.Plan); err != nil {
		return err
	}
	var state SessionState
	ok, err := tx.row(op, `SELECT state FROM sessions WHERE id = ?`, []any{r.Session}, &state)
	switch {
	case err != nil:
		return err
	case !ok:
		return NoSuch("session", r.Session)
	case state != SessionOpen:
		return usage("no_such_session", op, "session %s has ended", quoteID(r.Session))
	}
	if r.IdempotencyKey != "" {
		if _, err := tx.runByKey(r.Principal, r.IdempotencyKey); fault.KindOf(err) != fault.NotFound {
			if err == nil {
				err = fault.New(fault.Busy, "locked", op, errors.New("the key is in use"))
			}
			return err
		}
	}
	_, err = tx.insert(op, r.Principal, `INSERT INTO runs (id, session, principal, state, reason, plan, budget_calls, budget_wall, budget_bytes,
		use_calls, use_wall, use_bytes, key, parallel, version, created, started, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Session, r.Principal, string(r.State), r.Reason, blob(r.Plan), r.Budget.Calls, int64(r.Budget.Wall), r.Budget.Bytes,
		r.Use.Calls, int64(r.Use.Wall), r.Use.Bytes, r.IdempotencyKey, r.Parallel, r.Version, ns(r.Created), ns(r.Started), ns(r.Ended))
	if err == nil {
		tx.pays(r.ID, r.Principal)
	}
	return sessionBusy(op, err)
}

// sessionBusy tells the one unique index that a change of state can hit.
func sessionBusy(op string, err error) error {
	if codeOf(err) == codeUnique {
		return fault.New(fault.Busy, "locked", op, err).WithHint("wait for the session's active run, or cancel it")
	}
	return err
}

func (tx *Tx) run(id string) (*Run, error) {
	r, err := one(tx, "run", id, selectRun+` WHERE id = ?`, []any{id}, scanRun)
	if err == nil {
		tx.pays(id, r.Principal)
	}
	return r, err
}

func (tx *Tx) runHead(id string) (*Run, error) {
	r, err := one(tx, "run", id, selectRunOnly+` WHERE id = ?`, []any{id}, scanRun)
	if err == nil {
		tx.pays(id, r.Principal)
	}
	return r, err
}

func (tx *Tx) runBytes(id string) (n int64, err error) {
	ok, err := tx.row("measure run", `SELECT length(plan) + (SELECT coalesce(sum(length(input) + length(output)), 0) FROM steps WHERE run = runs.id)
		FROM runs WHERE id = ?`, []any{id}, &n)
	if err == nil && !ok {
		err = NoSuch("run", id)
	}
	return n, err
}

func (tx *Tx) runByKey(principal, key string) (*Run, error) {
	return one(tx, "run", key, selectRun+` WHERE principal = ? AND key = ? AND key <> ''`, []any{principal, key}, scanRun)
}

func (tx *Tx) runs(f RunFilter, p Page) ([]Run, error) {
	var l list
	l.runs(f)
	return find(tx, "runs", selectRunOnly, "runs", &l, p, scanRun, func(r *Run) int { return len(r.IdempotencyKey) })
}

// runs narrows a list of runs.
func (l *list) runs(f RunFilter) {
	session := "session = ?"
	if live(f.States) {
		l.and("ended = 0") // follows from the states, and lets SQLite take the small index
		l.ofFew(f.Principal)
		session = "+" + session
	} else {
		l.of(f.Principal)
	}
	if f.Session != "" {
		l.and(session, f.Session)
	}
	in(l, "state", f.States)
}

func live(states []RunState) bool {
	for _, s := range states {
		if s.Terminal() {
			return false
		}
	}
	return len(states) > 0
}

func (tx *Tx) updateRun(r *Run) error {
	const op = "update run"
	if r.State.Terminal() {
		fill(&r.Ended, tx.now)
	}
	n, err := tx.exec(op, `UPDATE runs SET state = ?, reason = ?, use_calls = ?, use_wall = ?, use_bytes = ?, started = ?, ended = ?,
		version = version + 1 WHERE id = ? AND version = ? AND ended = 0`,
		string(r.State), r.Reason, r.Use.Calls, int64(r.Use.Wall), r.Use.Bytes, ns(r.Started), ns(r.Ended), r.ID, r.Version)
	if err != nil {
		return sessionBusy(op, err)
	}
	if n == 0 {
		now, err := tx.run(r.ID)
		switch {
		case err != nil:
			return err
		case now.State.Terminal() && now.Version == r.Version:
			return usage("run_ended", op, "run %s is %s", quoteID(r.ID), now.State)
		}
		return conflict(op + " " + quoteID(r.ID))
	}
	r.Version++
	return nil
}

func (tx *Tx) setPlan(run string, plan []byte) error {
	const op = "set plan"
	if err := checkJSON(op, plan); err != nil {
		return err
	}
	n, err := tx.exec(op, `UPDATE runs SET plan = ? WHERE id = ?`, plan, run)
	switch {
	case err != nil:
		return err
	case n == 0:
		return NoSuch("run", run)
	}
	who, err := tx.payer(run)
	tx.spend(who, int64(len(plan)))
	return err
}

const selectStep = `SELECT run, idx, tool, input, state, call, capsule, outcome, exit, reason, output, artifact, log_index, started, ended FROM steps`

// selectStepOnly is selectStep without the input, of up to 1 MiB.
const selectStepOnly = `SELECT run, idx, tool, NULL, state, call, capsule, outcome, exit, reason, output, artifact, log_index, started, ended FROM steps`

func scanStep(r scanner, s *Step) error {
	var started, ended int64
	var capsule, artifact []byte
	err := r.Scan(&s.Run, &s.Index, &s.Tool, &s.Input, &s.State, &s.CallID, &capsule, &s.Outcome, &s.Exit, &s.Reason, &s.Output, &artifact,
		&s.LogIndex, &started, &ended)
	s.Capsule, s.OutputDigest = digestOf(capsule), digestOf(artifact)
	s.Started, s.Ended = at(started), at(ended)
	return err
}

func (tx *Tx) createStep(s *Step) error {
	const op = "create step"
	fill(&s.State, StepPending)
	if err := checkJSON(op, s.Input); err != nil {
		return err
	}
	var next, ended int64
	var who string
	ok, err := tx.row(op, `SELECT (SELECT count(*) FROM steps WHERE run = runs.id), ended, principal FROM runs WHERE id = ?`, []any{s.Run}, &next, &ended, &who)
	switch {
	case err != nil:
		return err
	case !ok:
		return NoSuch("run", s.Run)
	case ended != 0:
		return usage("run_ended", op, "run %s has ended", quoteID(s.Run))
	case int64(s.Index) != next:
		return usage("invalid_input", op, "run %s has %d steps, this one says it is number %d", quoteID(s.Run), next, s.Index)
	}
	_, err = tx.insert(op, who, `INSERT INTO steps (run, idx, tool, input, state, call, capsule, outcome, exit, reason, output, artifact, log_index,
		started, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		s.Run, s.Index, s.Tool, blob(s.Input), string(s.State), s.CallID, digestBlob(s.Capsule), s.Outcome, s.Exit, s.Reason, blob(s.Output),
		digestBlob(s.OutputDigest), int64(s.LogIndex), ns(s.Started), ns(s.Ended))
	return callTaken(op, err)
}

func callTaken(op string, err error) error {
	if codeOf(err) == codeUnique {
		return fault.New(fault.Usage, "invalid_input", op, err) // a call belongs to one step
	}
	return err
}

func (tx *Tx) steps(run string) ([]Step, error) {
	var steps []Step
	err := tx.query("list steps", selectStep+` WHERE run = ? ORDER BY idx`, []any{run}, func(r *sql.Rows) error {
		var s Step
		err := scanStep(r, &s)
		steps = append(steps, s)
		return err
	})
	return steps, err
}

func (tx *Tx) step(run string, index int) (*Step, error) {
	return one(tx, "step", run, selectStep+` WHERE run = ? AND idx = ?`, []any{run, index}, scanStep)
}

func (tx *Tx) stepHead(run string, index int) (*Step, error) {
	return one(tx, "step", run, selectStepOnly+` WHERE run = ? AND idx = ?`, []any{run, index}, scanStep)
}

func (tx *Tx) stepByCall(call string) (*Step, error) {
	return one(tx, "step", call, selectStep+` WHERE call = ? AND call <> ''`, []any{call}, scanStep)
}

func (tx *Tx) lastStep(run string) (s *Step, err error) {
	err = tx.query("read step", selectStepOnly+` WHERE run = ? ORDER BY idx DESC LIMIT 1`, []any{run}, func(r *sql.Rows) error {
		s = new(Step)
		return scanStep(r, s)
	})
	return s, err
}

func (tx *Tx) unsettledSteps() ([]Step, error) {
	var steps []Step
	// The number stands in the text, as in the index: a parameter would hide it from SQLite.
	err := tx.query("list unsettled steps", selectStepOnly+` WHERE log_index = 9223372036854775807 ORDER BY n LIMIT 1000`, nil, func(r *sql.Rows) error {
		var s Step
		err := scanStep(r, &s)
		steps = append(steps, s)
		return err
	})
	return steps, err
}

func (tx *Tx) updateStep(s *Step, from StepState) error {
	const op = "update step"
	n, err := tx.exec(op, `UPDATE steps SET state = ?, call = ?, capsule = ?, outcome = ?, exit = ?, reason = ?, output = ?, artifact = ?,
		log_index = ?, started = ?, ended = ? WHERE run = ? AND idx = ? AND state = ?`,
		string(s.State), s.CallID, digestBlob(s.Capsule), s.Outcome, s.Exit, s.Reason, blob(s.Output), digestBlob(s.OutputDigest),
		int64(s.LogIndex), ns(s.Started), ns(s.Ended), s.Run, s.Index, string(from))
	switch {
	case err != nil:
	case n == 0:
		if _, err = tx.step(s.Run, s.Index); err == nil {
			err = conflict(op + " of run " + quoteID(s.Run))
		}
	default:
		var who string
		if who, err = tx.payer(s.Run); err == nil {
			tx.spend(who, int64(len(s.Output)+len(s.Reason)))
		}
	}
	return callTaken(op, err)
}

// MaxPayload bounds the payload of an event in bytes.
const MaxPayload = 1 << 20

func (tx *Tx) appendEvent(run, kind string, payload []byte) (Event, error) {
	const op = "append event"
	if len(payload) > MaxPayload {
		return Event{}, usage("too_large", op, "payload of %d bytes, the limit is %d", len(payload), MaxPayload)
	}
	if err := checkJSON(op, payload); err != nil {
		return Event{}, err
	}
	e := Event{Run: run, Kind: kind, Time: tx.now, Payload: payload}
	var n int64
	var who string
	ok, err := tx.row(op, `SELECT n, principal, coalesce((SELECT max(seq) FROM events WHERE run = runs.n), 0) + 1 FROM runs WHERE id = ?`, []any{run}, &n, &who, &e.Seq)
	if err != nil {
		return Event{}, err
	}
	if !ok {
		return Event{}, NoSuch("run", run)
	}
	_, err = tx.insert(op, who, `INSERT INTO events (run, seq, kind, time, payload) VALUES (?, ?, ?, ?, ?)`, n, int64(e.Seq), kind, ns(e.Time), payload)
	return e, err
}

// maxEventBytes bounds a page of events: readers of tapes hold one each.
const maxEventBytes = 128 << 10

func (tx *Tx) events(run string, after uint64, limit int) ([]Event, error) {
	bytes := 0
	if limit <= 0 || limit > MaxPage {
		limit = MaxPage
	}
	var events []Event
	err := tx.query("list events", `SELECT seq, kind, time, payload FROM events WHERE run = (SELECT n FROM runs WHERE id = ?) AND seq > ? ORDER BY seq LIMIT ?`,
		[]any{run, int64(min(after, 1<<62)), limit}, func(r *sql.Rows) error {
			e := Event{Run: run}
			var t int64
			err := r.Scan(&e.Seq, &e.Kind, &t, &e.Payload)
			e.Time = at(t)
			events = append(events, e)
			if bytes += len(e.Payload); err == nil && bytes >= maxEventBytes {
				return errEnough
			}
			return err
		})
	return events, err
}

func (tx *Tx) lastEvent(run string) (uint64, error) {
	var seq int64
	_, err := tx.row("read tape", `SELECT coalesce(max(seq), 0) FROM events WHERE run = (SELECT n FROM runs WHERE id = ?)`, []any{run}, &seq)
	return uint64(seq), err
}

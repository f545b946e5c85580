package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"palyra/internal/clock"
	"palyra/internal/fault"
)

// Retention says what is kept of what has ended. The zero value keeps everything.
type Retention struct {
	// Before is the moment: runs that ended earlier go, with steps, tape, questions
	// and artifacts, and ended sessions without runs. Zero: none.
	Before time.Time
	// ArtifactBytes is how much artifacts may take. While they take more, runs of the
	// principal that holds most lose theirs, the one that ended first before the
	// others, and stay otherwise. 0: as much as there is room for.
	ArtifactBytes int64
}

// Retired is what a sweep removed.
type Retired struct {
	Runs          int64     `json:"runs"`
	Steps         int64     `json:"steps"`
	Approvals     int64     `json:"approvals"`
	Sessions      int64     `json:"sessions"`
	Emptied       int64     `json:"emptied"` // runs that stay without their artifacts
	Artifacts     int64     `json:"artifacts"`
	ArtifactBytes int64     `json:"artifact_bytes"`
	Memories      int64     `json:"memories,omitzero"` // that have expired
	First         time.Time `json:"first,omitzero"`    // when the first of these runs ended,
	Last          time.Time `json:"last,omitzero"`     // and when the last did
}

// Any reports whether anything was removed that somebody could look for.
func (r Retired) Any() bool { return r.Runs+r.Sessions+r.Emptied+r.Memories > 0 }

func (r *Retired) add(o Retired) {
	r.Runs += o.Runs
	r.Steps += o.Steps
	r.Approvals += o.Approvals
	r.Sessions += o.Sessions
	r.Emptied += o.Emptied
	r.Artifacts += o.Artifacts
	r.ArtifactBytes += o.ArtifactBytes
	r.Memories += o.Memories
	if r.First.IsZero() || !o.First.IsZero() && o.First.Before(r.First) {
		r.First = o.First
	}
	if o.Last.After(r.Last) {
		r.Last = o.Last
	}
}

// How much one transaction of a sweep removes: others wait for it. It ends with the
// run that goes beyond retireBytes.
const (
	retireRuns     = 16
	retireBytes    = 8 << 20
	retireSessions = 256
	retireMemories = 256
)

// retiredSetting is where the store remembers what it has removed: how many
// results the journal has beyond its steps, and what nobody has put into the
// journal yet.
const retiredSetting = "store.retired"

type retirement struct {
	Results uint64  `json:"results"` // in the journal, of steps that are gone
	Through uint64  `json:"through"` // all of them have a lower index
	Owed    Retired `json:"owed"`
}

// Retire removes what a Retention does not keep, in small transactions, until
// nothing is left to remove or ctx is done. Runs that have not ended are not
// touched, nor is what they hold. What was removed is owed to the journal, in
// the transaction that removed it: see OwedRetirement. During a backup artifacts
// stay for the next time.
func (s *Store) Retire(ctx context.Context, keep Retention) error {
	if err := s.keepClock(ctx); err != nil {
		return err
	}
	for _, part := range []func(*Tx, Retention) (Retired, error){(*Tx).retireRuns, (*Tx).retireSessions} {
		for more := !keep.Before.IsZero(); more; {
			err := s.writer.update(ctx, true, func(tx *Tx) error {
				gone, err := part(tx, keep)
				more = gone.Runs+gone.Sessions > 0
				if err != nil || !more {
					return err
				}
				return tx.owe(gone)
			})
			if err != nil {
				return err
			}
			s.step("retired")
		}
	}
	if err := s.retireMemories(ctx); err != nil {
		return err
	}
	if err := s.emptyRuns(ctx, keep.ArtifactBytes); err != nil {
		return err
	}
	n, bytes, err := s.SweepArtifacts(ctx)
	if errors.Is(err, ErrBackup) || err == nil && n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Update(ctx, func(tx *Tx) error { return tx.owe(Retired{Artifacts: int64(n), ArtifactBytes: bytes}) })
}

// retireMemories removes the items of memory that have expired, and what the database's files have
// of them.
func (s *Store) retireMemories(ctx context.Context) error {
	any := false
	for more := true; more; {
		err := s.Update(ctx, func(tx *Tx) error {
			n, err := tx.exec("remove expired memory", `DELETE FROM memories WHERE n IN (SELECT n FROM memories WHERE expires <> 0 AND expires <= ? LIMIT ?)`, ns(tx.forget), retireMemories)
			if more = n > 0; err != nil || !more {
				return err
			}
			return tx.owe(Retired{Memories: n})
		})
		if err != nil {
			return err
		}
		any = any || more
	}
	if !any {
		return nil
	}
	if err := s.Forget(ctx); err != nil && fault.KindOf(err) != fault.Busy { // the next forgetting has it, too
		return err
	}
	return nil
}

// clockSetting is where the store keeps what its clock knows.
const clockSetting = "store.clock"

// rememberClock tells the clock what an earlier process kept. A store that has
// nothing of the kind says when its newest run was put down.
func (s *Store) rememberClock() error {
	const op = "read clock"
	tx := &Tx{conn: s.writer.conn}
	row, err := tx.setting(clockSetting)
	var m clock.Memory
	switch {
	case err == nil:
		if err := json.Unmarshal(row.Value, &m); err != nil {
			return fault.New(fault.Integrity, "store_corrupt", "read setting "+clockSetting, err)
		}
	case fault.KindOf(err) == fault.NotFound:
		var created int64
		if _, err := tx.row(op, `SELECT created FROM runs ORDER BY n DESC LIMIT 1`, nil, &created); err != nil {
			return err
		}
		m.Earliest = at(created)
	default:
		return err
	}
	s.clock.Remember(m)
	return nil
}

// keepClock keeps what the clock knows for the next process.
func (s *Store) keepClock(ctx context.Context) error {
	return s.Update(ctx, func(tx *Tx) error {
		row, err := tx.setting(clockSetting)
		if fault.KindOf(err) == fault.NotFound {
			row, err = &Setting{Key: clockSetting}, nil
		}
		if err == nil {
			row.Value, err = json.Marshal(s.clock.Memory())
		}
		if err != nil {
			return err
		}
		return tx.putSetting(row)
	})
}

// OwedRetirement returns what was removed and is not in the journal yet.
func (s *Store) OwedRetirement(ctx context.Context) (Retired, error) {
	r, err := View(ctx, s, func(tx *Tx) (retirement, error) {
		r, _, err := tx.retirement()
		return r, err
	})
	return r.Owed, err
}

// PaidRetirement says that the journal has what OwedRetirement returned. Who
// dies between the two puts it there again.
func (s *Store) PaidRetirement(ctx context.Context, paid Retired) error {
	return s.Update(ctx, func(tx *Tx) error {
		r, row, err := tx.retirement()
		if err != nil {
			return err
		}
		o := &r.Owed
		o.Runs, o.Steps, o.Approvals, o.Sessions = o.Runs-paid.Runs, o.Steps-paid.Steps, o.Approvals-paid.Approvals, o.Sessions-paid.Sessions
		o.Emptied, o.Artifacts, o.ArtifactBytes = o.Emptied-paid.Emptied, o.Artifacts-paid.Artifacts, o.ArtifactBytes-paid.ArtifactBytes
		o.Memories -= paid.Memories
		if !o.Any() {
			o.First, o.Last = time.Time{}, time.Time{}
		}
		return tx.putRetirement(r, row)
	})
}

func (tx *Tx) retirement() (r retirement, row *Setting, err error) {
	row, err = tx.setting(retiredSetting)
	if fault.KindOf(err) == fault.NotFound {
		return r, &Setting{Key: retiredSetting}, nil
	}
	if err == nil {
		if err = json.Unmarshal(row.Value, &r); err != nil {
			err = fault.New(fault.Integrity, "store_corrupt", "read setting "+retiredSetting, err)
		}
	}
	return r, row, err
}

func (tx *Tx) putRetirement(r retirement, row *Setting) (err error) {
	if row.Value, err = json.Marshal(r); err != nil {
		return fault.New(fault.Internal, "internal", "write setting "+retiredSetting, err)
	}
	return tx.putSetting(row)
}

func (tx *Tx) owe(gone Retired) error {
	r, row, err := tx.retirement()
	if err != nil {
		return err
	}
	r.Owed.add(gone)
	return tx.putRetirement(r, row)
}

// retireRuns removes the runs that ended first, at most retireRuns and not many more
// than retireBytes.
func (tx *Tx) retireRuns(keep Retention) (gone Retired, err error) {
	const op = "remove old runs"
	type old struct {
		n, ended int64
		id       string
	}
	var runs []old
	err = tx.query(op, `SELECT n, id, ended FROM runs WHERE ended <> 0 AND ended < ? ORDER BY ended LIMIT ?`, []any{ns(keep.Before), retireRuns},
		func(r *sql.Rows) error {
			var o old
			err := r.Scan(&o.n, &o.id, &o.ended)
			runs = append(runs, o)
			return err
		})
	if err != nil || len(runs) == 0 {
		return gone, err
	}
	ret, row, err := tx.retirement()
	if err != nil {
		return gone, err
	}
	var bytes int64
	for _, o := range runs {
		if bytes >= retireBytes {
			break
		}
		var n int64
		if _, err := tx.row(op, `SELECT length(plan)
			+ (SELECT coalesce(sum(length(input) + length(output)), 0) FROM steps WHERE run = runs.id)
			+ (SELECT coalesce(sum(length(payload)), 0) FROM events WHERE run = runs.n)
			+ (SELECT coalesce(sum(length(request)), 0) FROM approvals WHERE run = runs.id)
			FROM runs WHERE n = ?`, []any{o.n}, &n); err != nil {
			return gone, err
		}
		bytes += n
		var results, through int64
		// What the journal has of it is what CheckJournal will not find a step for.
		if _, err := tx.row(op, `SELECT count(*), coalesce(max(log_index) + 1, 0) FROM steps WHERE run = ? AND state = 'done' AND log_index <> ?`,
			[]any{o.id, int64(NotLogged)}, &results, &through); err != nil {
			return gone, err
		}
		ret.Results, ret.Through = ret.Results+uint64(results), max(ret.Through, uint64(through))
		var steps, approvals int64
		for _, d := range []struct {
			text  string
			arg   any
			count *int64
		}{
			{`DELETE FROM approvals WHERE run = ?`, o.id, &approvals},
			{`DELETE FROM events WHERE run = ?`, o.n, new(int64)},
			{`DELETE FROM steps WHERE run = ?`, o.id, &steps},
			{`DELETE FROM artifact_holds WHERE holder = ?`, o.id, new(int64)},
			{`DELETE FROM runs WHERE n = ? AND ended <> 0`, o.n, new(int64)},
		} {
			if *d.count, err = tx.exec(op, d.text, d.arg); err != nil {
				return gone, err
			}
		}
		gone.add(Retired{Runs: 1, Steps: steps, Approvals: approvals, First: at(o.ended), Last: at(o.ended)})
	}
	return gone, tx.putRetirement(ret, row)
}

// retireSessions removes sessions that ended long ago and have no run.
func (tx *Tx) retireSessions(keep Retention) (gone Retired, err error) {
	const op = "remove old sessions"
	gone.Sessions, err = tx.exec(op, `DELETE FROM sessions WHERE n IN (SELECT n FROM sessions s WHERE ended <> 0 AND ended < ?
		AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session = s.id) AND NOT EXISTS (SELECT 1 FROM approvals a WHERE a.session = s.id)
		ORDER BY ended LIMIT ?)`, ns(keep.Before), retireSessions)
	return gone, err
}

// emptyRuns takes artifacts from runs until the others take no more than most:
// from those of the principal that holds most, the one that ended first before the
// others. So whoever holds little keeps it, whatever others make.
func (s *Store) emptyRuns(ctx context.Context, most int64) error {
	if most <= 0 {
		return nil
	}
	s.artifacts.mu.Lock()
	left := s.artifacts.bytes - most
	held := maps.Clone(s.artifacts.held)
	s.artifacts.mu.Unlock()
	for left > 0 && len(held) > 0 {
		who := ""
		for p := range held {
			if who == "" || held[p] > held[who] || held[p] == held[who] && p < who {
				who = p
			}
		}
		var next int64 // what the one after it holds
		for p, n := range held {
			if p != who {
				next = max(next, n)
			}
		}
		var e emptied
		if err := s.Update(ctx, func(tx *Tx) (err error) {
			if e, err = tx.emptyRunsOf(who, left, held[who]-next); err != nil || e.gone.Emptied == 0 {
				return err
			}
			return tx.owe(e.gone)
		}); err != nil {
			return err
		}
		s.step("emptied")
		left -= e.freed
		if held[who] -= e.released; e.gone.Emptied == 0 {
			delete(held, who)
		}
	}
	return nil
}

// emptied is what emptyRunsOf did.
type emptied struct {
	gone     Retired
	freed    int64 // bytes that no run holds any more
	released int64 // bytes that no run of the principal does
}

// emptyRunsOf takes the artifacts of the runs of a principal that ended first, at
// most retireRuns, until left bytes are free, or it holds lead bytes less: then
// another holds as much.
func (tx *Tx) emptyRunsOf(principal string, left, lead int64) (e emptied, err error) {
	const op = "release old artifacts"
	type old struct {
		id    string
		ended int64
	}
	var runs []old
	err = tx.query(op, `SELECT r.id, r.ended FROM (SELECT DISTINCT holder FROM artifact_holds) h JOIN runs r ON r.id = h.holder
		WHERE r.ended <> 0 AND r.principal = ? ORDER BY r.ended LIMIT ?`, []any{principal, retireRuns}, func(r *sql.Rows) error {
		var o old
		err := r.Scan(&o.id, &o.ended)
		runs = append(runs, o)
		return err
	})
	for _, o := range runs {
		if err != nil || e.freed >= left || e.released > lead {
			break
		}
		var freed, released int64
		if _, err = tx.row(op, `SELECT coalesce(sum(a.size), 0) FROM artifact_holds h JOIN artifacts a ON a.digest = h.digest
			WHERE h.holder = ? AND NOT EXISTS (SELECT 1 FROM artifact_holds x WHERE x.digest = h.digest AND x.holder <> h.holder)`,
			[]any{o.id}, &freed); err != nil {
			break
		}
		if _, err = tx.row(op, `SELECT coalesce(sum(a.size), 0) FROM artifact_holds h JOIN artifacts a ON a.digest = h.digest
			WHERE h.holder = ?1 AND NOT EXISTS (SELECT 1 FROM artifact_holds x JOIN runs r ON r.id = x.holder
				WHERE x.digest = h.digest AND x.holder <> h.holder AND r.principal = ?2)`, []any{o.id, principal}, &released); err != nil {
			break
		}
		if err = tx.releaseArtifacts(o.id); err != nil {
			break
		}
		e.freed, e.released = e.freed+freed, e.released+released
		e.gone.add(Retired{Emptied: 1, First: at(o.ended), Last: at(o.ended)})
	}
	return e, err
}

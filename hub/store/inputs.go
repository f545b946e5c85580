package store

import (
	"database/sql"

	"palyra/call"
	"palyra/internal/canon"
)

// JoinInputs adds the origins that a session's label lacks. Those that it has stay as they are:
// the schema lets no row change, and none go before its session.
func (tx *Tx) JoinInputs(session, principal string, in ...call.Input) error {
	for i := range in {
		if _, err := tx.insert("join inputs", principal,
			`INSERT INTO session_inputs (session, origin, tool, run, step, time) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			session, in[i].Origin, in[i].Tool, in[i].Run, in[i].Step, ns(in[i].Time)); err != nil {
			return err
		}
	}
	return nil
}

// Inputs returns the label of a session: nil if it has read nothing, or doesn't exist.
func (tx *Tx) Inputs(session string) (in call.Inputs, err error) {
	err = tx.query("read inputs", `SELECT origin, tool, run, step, time FROM session_inputs WHERE session = ? ORDER BY origin`, []any{session},
		func(r *sql.Rows) error {
			var e call.Input
			var time int64
			err := r.Scan(&e.Origin, &e.Tool, &e.Run, &e.Step, &time)
			e.Time = at(time)
			in = append(in, e)
			return err
		})
	return in, err
}

// ArtifactSessions returns the sessions of a principal's runs that hold an artifact.
func (tx *Tx) ArtifactSessions(d canon.Digest, principal string) (sessions []string, err error) {
	err = tx.query("look up artifact", `SELECT DISTINCT r.session FROM artifact_holds h JOIN runs r ON r.id = h.holder WHERE h.digest = ? AND r.principal = ?`,
		[]any{digestBlob(d), principal}, func(r *sql.Rows) error {
			var s string
			err := r.Scan(&s)
			sessions = append(sessions, s)
			return err
		})
	return sessions, err
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// maxFound bounds how many faults a check names.
const maxFound = 20

// rules are what holds between rows beyond what the schema enforces. Each query
// names what breaks one.
var rules = [...]struct{ name, text string }{
	{"tape_gap", `SELECT r.id FROM events e JOIN runs r ON r.n = e.run GROUP BY e.run HAVING min(e.seq) <> 1 OR max(e.seq) <> count(*)`},
	{"step_gap", `SELECT run FROM steps GROUP BY run HAVING min(idx) <> 0 OR max(idx) <> count(*) - 1`},
	{"ended_run_waits", `SELECT a.id FROM approvals a JOIN runs r ON r.id = a.run WHERE a.answered = 0 AND r.ended <> 0`},
	{"ended_run_runs", `SELECT s.run || ' ' || s.idx FROM runs r JOIN steps s ON s.run = r.id WHERE r.ended <> 0 AND s.state = 'running'`},
	{"ended_session_runs", `SELECT r.id FROM runs r JOIN sessions s ON s.id = r.session WHERE r.ended = 0 AND s.ended <> 0`},
	{"not_alone", `SELECT r.id FROM runs r JOIN runs o ON o.session = r.session AND o.n <> r.n
		WHERE r.parallel = 0 AND r.state IN ('in_progress', 'waiting_approval') AND o.state IN ('in_progress', 'waiting_approval')`},
	{"foreign_session", `SELECT a.id FROM approvals a JOIN runs r ON r.id = a.run WHERE a.session IS NOT NULL AND a.session <> r.session`},
	{"generation_gap", `SELECT 'generation ' || max(generation) FROM access_changes HAVING count(*) <> max(generation)`},
	{"no_owner", `SELECT 'members' FROM (SELECT count(*) AS n, sum(role = 'owner') AS owners FROM members) WHERE n > 0 AND owners = 0`},
	{"unknown_parent", `SELECT t.id FROM tokens t WHERE t.parent <> '' AND NOT EXISTS (SELECT 1 FROM tokens p WHERE p.id = t.parent)`},
	{"lost_memory", `SELECT id FROM memories WHERE scope = 'session' AND session NOT IN (SELECT id FROM sessions)`},
	{"lost_usage", `SELECT whose FROM usage WHERE instr(whose, ':') = 0 AND whose NOT IN (SELECT id FROM sessions)`},
	{"uncounted_usage", `SELECT s.principal || ' ' || u.day || ' ' || u.model FROM usage u JOIN sessions s ON s.id = u.whose
		LEFT JOIN usage p ON p.whose = s.principal AND p.day = u.day AND p.model = u.model
		GROUP BY s.principal, u.day, u.model HAVING sum(u.turns) > coalesce(p.turns, 0)`},
	{"foreign_passkey", `SELECT id FROM passkeys WHERE principal NOT IN (SELECT principal FROM members)`},
	{"schema", `SELECT 'schema_migrations' FROM (SELECT count(*) AS n, coalesce(max(version), -1) AS v FROM schema_migrations)
		WHERE n <> v OR v <> (SELECT user_version FROM pragma_user_version)`},
}

// Check says whether the store is sound: SQLite's own checks of the file and of
// foreign keys, the rules between rows, and for each artifact that its file is
// there with the right size and that no other file is. Content is checked by
// CheckArtifacts. An error is fault.Integrity "store_corrupt" and names what is
// wrong, or says why it could not be found out.
func (s *Store) Check(ctx context.Context) error {
	found, err := View(ctx, s, func(tx *Tx) ([]string, error) { return tx.findings() })
	if err != nil {
		return err
	}
	more, err := s.checkShelf(ctx)
	if err != nil {
		return err
	}
	return unsound("check store", append(found, more...))
}

func unsound(op string, found []string) error {
	if len(found) == 0 {
		return nil
	}
	if n := len(found); n > maxFound {
		found = append(found[:maxFound:maxFound], fmt.Sprintf("and %d more", n-maxFound))
	}
	return fault.New(fault.Integrity, "store_corrupt", op, errors.New(strings.Join(found, "; "))).
		WithHint("restore the last good backup: palyra backup restore")
}

// findings lists what is wrong with the database.
func (tx *Tx) findings() (found []string, err error) {
	const op = "check store"
	err = tx.query(op, `PRAGMA integrity_check(20)`, nil, func(r *sql.Rows) error {
		var line string
		err := r.Scan(&line)
		if line != "ok" {
			found = append(found, "integrity_check: "+line)
		}
		return err
	})
	if err != nil || len(found) > 0 { // rules over a broken file say nothing
		return found, err
	}
	err = tx.query(op, `PRAGMA foreign_key_check`, nil, func(r *sql.Rows) error {
		var table, parent string
		var row, key sql.NullInt64
		err := r.Scan(&table, &row, &parent, &key)
		found = append(found, fmt.Sprintf("foreign_key_check: row %d of %s has no %s", row.Int64, table, parent))
		return err
	})
	for _, rule := range rules {
		if err != nil {
			break
		}
		err = tx.query(op, rule.text, nil, func(r *sql.Rows) error {
			var what string
			err := r.Scan(&what)
			found = append(found, rule.name+": "+what)
			return err
		})
	}
	return found, err
}

// checkShelf compares the files of artifacts with their rows.
func (s *Store) checkShelf(ctx context.Context) (found []string, err error) {
	a := &s.artifacts
	a.mu.Lock()
	defer a.mu.Unlock()
	known, err := s.knownLocked(ctx)
	if err != nil {
		return nil, err
	}
	total := int64(0)
	for _, size := range known {
		total += size
	}
	if total != a.bytes {
		found = append(found, fmt.Sprintf("artifact_bytes: %d are counted and %d are there", a.bytes, total))
	}
	err = a.files(func(d canon.Digest, size int64) error {
		want, ok := known[d]
		switch {
		case !ok:
			found = append(found, "artifact_orphaned: "+d.String())
		case want != size:
			found = append(found, fmt.Sprintf("artifact_size: %s has %d bytes, not %d", d, size, want))
		}
		delete(known, d)
		return nil
	})
	for d := range known {
		found = append(found, "artifact_missing: "+d.String())
	}
	return found, err
}

// CheckArtifacts reads the content of every artifact against its digest.
func (s *Store) CheckArtifacts(ctx context.Context) error {
	s.artifacts.mu.Lock()
	known, err := s.knownLocked(ctx)
	s.artifacts.mu.Unlock()
	if err != nil {
		return err
	}
	var found []string
	for d, size := range known {
		f, err := s.verified(ctx, d, size)
		if fault.KindOf(err) == fault.Integrity {
			// It may have been swept since the list was made.
			if _, gone := View(ctx, s, func(tx *Tx) (*Artifact, error) { return tx.artifact(d) }); fault.KindOf(gone) != fault.NotFound {
				found = append(found, "artifact "+d.String())
			}
			continue
		}
		if err != nil {
			return err
		}
		_ = f.Close() // only read from
	}
	return unsound("check artifacts", found)
}

// Stats are sizes, for status and metrics.
type Stats struct {
	Sessions, Runs, LiveRuns, PendingApprovals int64
	Artifacts, ArtifactBytes, ArtifactQuota    int64
	DatabaseBytes                              int64
}

// Stats counts.
func (s *Store) Stats(ctx context.Context) (*Stats, error) {
	st, err := View(ctx, s, func(tx *Tx) (*Stats, error) {
		var st Stats
		_, err := tx.row("count rows", `SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM runs), (SELECT count(*) FROM runs WHERE ended = 0),
			(SELECT count(*) FROM approvals WHERE answered = 0), (SELECT count(*) FROM artifacts),
			(SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)`,
			nil, &st.Sessions, &st.Runs, &st.LiveRuns, &st.PendingApprovals, &st.Artifacts, &st.DatabaseBytes)
		return &st, err
	})
	if err != nil {
		return nil, err
	}
	s.artifacts.mu.Lock()
	defer s.artifacts.mu.Unlock()
	st.ArtifactBytes, st.ArtifactQuota = s.artifacts.bytes, s.artifacts.quota
	return st, nil
}

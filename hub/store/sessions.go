package store

import (
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"palyra/internal/canon"
	"palyra/internal/ident"
)

// scanner is what sql.Row and sql.Rows have in common.
type scanner interface{ Scan(dest ...any) error }

// list is the tail of a query that pages through a table with an "n" and an
// "id" column.
type list struct {
	where []string
	args  []any
	owner string // principal to whom the rows are narrowed, "" for all
}

// of narrows a list to the rows of a principal, if one is given.
func (l *list) of(principal string) {
	if l.owner = principal; principal != "" {
		l.and("principal = ?", principal)
	}
}

// ofFew is of for a list whose other conditions leave few rows, and have an index: SQLite would
// take that of the principal's rows, who may have a million.
func (l *list) ofFew(principal string) {
	if l.owner = principal; principal != "" {
		l.and("+principal = ?", principal)
	}
}

// cursor selects something of the row at which a page begins. In a list of one
// principal's rows another's row is none: an id tells nobody that it exists.
func (l *list) cursor(what, table, id string) (string, []any) {
	if l.owner == "" {
		return "SELECT " + what + " FROM " + table + " WHERE id = ?", []any{id}
	}
	return "SELECT " + what + " FROM " + table + " WHERE id = ? AND principal = ?", []any{id, l.owner}
}

func (l *list) and(cond string, args ...any) {
	l.where = append(l.where, cond)
	l.args = append(l.args, args...)
}

// in adds "column IN (?, …)"; nothing if there are no values.
func in[T ~string](l *list, column string, values []T) {
	if len(values) == 0 {
		return
	}
	args := make([]any, len(values))
	for i, v := range values {
		args[i] = string(v)
	}
	l.and(column+" IN (?"+strings.Repeat(", ?", len(values)-1)+")", args...)
}

// text completes the query for a page. The number of different texts is small:
// it depends on which filters are used and not on their values.
func (l *list) text(sel, table string, p Page) (string, []any) {
	cmp, order := "<", "DESC"
	if p.OldestFirst {
		cmp, order = ">", "ASC"
	}
	if p.After != "" {
		at, args := l.cursor("n", table, p.After)
		l.and("n "+cmp+" ("+at+")", args...)
	}
	q := sel
	if len(l.where) > 0 {
		q += " WHERE " + strings.Join(l.where, " AND ")
	}
	limit := p.Limit
	if limit <= 0 {
		limit = 100
	}
	return q + " ORDER BY n " + order + " LIMIT ?", append(l.args, min(limit, MaxPage))
}

// find runs a query for a page and scans its rows. size is of a row, for Page.Bytes.
func find[T any](tx *Tx, what, sel, table string, l *list, p Page, scan func(scanner, *T) error, size func(*T) int) ([]T, error) {
	text, args := l.text(sel, table, p)
	var items []T
	bytes := 0
	err := tx.query("list "+what, text, args, func(r *sql.Rows) error {
		var v T
		if err := scan(r, &v); err != nil {
			return err
		}
		items = append(items, v)
		if bytes += size(&v); p.Bytes > 0 && bytes >= p.Bytes {
			return errEnough
		}
		return nil
	})
	if err != nil || len(items) > 0 || p.After == "" {
		return items, err
	}
	// An empty page after an id that does not exist is not the end of the list.
	var one int
	text, args = l.cursor("1", table, p.After)
	ok, err := tx.row("list "+what, text, args, &one)
	if err == nil && !ok {
		err = usage("invalid_input", "list "+what, "no page begins after %.80q", p.After)
	}
	return nil, err
}

// one runs a query for a single row.
func one[T any](tx *Tx, what, id, text string, args []any, scan func(scanner, *T) error) (*T, error) {
	var v *T
	err := tx.query("read "+what, text, args, func(r *sql.Rows) error {
		v = new(T)
		return scan(r, v)
	})
	if err == nil && v == nil {
		err = NoSuch(what, id)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// checkJSON refuses what is not JSON. Whoever reads it must be able to.
func checkJSON(op string, b []byte) error {
	if !json.Valid(b) {
		return usage("invalid_input", op, "%d bytes that are no JSON text", len(b))
	}
	return nil
}

func digestOf(b []byte) (d canon.Digest) {
	copy(d[:], b)
	return d
}

func digestBlob(d canon.Digest) []byte {
	if d.IsZero() {
		return []byte{}
	}
	return d[:]
}

const selectSession = `SELECT id, principal, title, state, version, created, ended FROM sessions`

func scanSession(r scanner, s *Session) error {
	var created, ended int64
	err := r.Scan(&s.ID, &s.Principal, &s.Title, &s.State, &s.Version, &created, &ended)
	s.Created, s.Ended = at(created), at(ended)
	return err
}

func (tx *Tx) createSession(s *Session) error {
	const op = "create session"
	fill(&s.ID, ident.New(ident.Session))
	fill(&s.State, SessionOpen)
	fill(&s.Version, 1)
	fill(&s.Created, tx.now)
	if err := ident.Check(ident.Session, s.ID); err != nil {
		return err
	}
	_, err := tx.insert(op, s.Principal, `INSERT INTO sessions (id, principal, title, state, version, created, ended) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		s.ID, s.Principal, s.Title, string(s.State), s.Version, ns(s.Created), ns(s.Ended))
	return err
}

// fill sets *p where it is zero.
func fill[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (tx *Tx) session(id string) (*Session, error) {
	return one(tx, "session", id, selectSession+` WHERE id = ?`, []any{id}, scanSession)
}

func (tx *Tx) sessionOf(prefix string) (*Session, error) {
	return one(tx, "session", prefix, selectSession+` WHERE id >= ? AND id < ? LIMIT 1`, []any{prefix, prefix + "g"}, scanSession)
}

func (tx *Tx) idleSessions(before time.Time, most int) (out []Session, err error) {
	err = tx.query("list idle sessions", selectSession+` AS s WHERE state = 'open' AND created < ?1
		AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session = s.id AND (r.ended = 0 OR r.ended >= ?1)) ORDER BY n LIMIT ?2`,
		[]any{ns(before), most}, func(r *sql.Rows) error {
			var s Session
			err := scanSession(r, &s)
			out = append(out, s)
			return err
		})
	return out, err
}

func (tx *Tx) sessions(f SessionFilter, p Page) ([]Session, error) {
	var l list
	l.of(f.Principal)
	if f.State != "" {
		l.and("state = ?", string(f.State))
	}
	return find(tx, "sessions", selectSession, "sessions", &l, p, scanSession, func(s *Session) int { return len(s.Title) })
}

func (tx *Tx) openSessions(principal string) (n int, err error) {
	const op = "count open sessions"
	if principal == "" {
		_, err = tx.row(op, `SELECT count(*) FROM sessions WHERE state = 'open'`, nil, &n)
		return n, err
	}
	_, err = tx.row(op, `SELECT count(*) FROM sessions WHERE state = 'open' AND principal = ?`, []any{principal}, &n)
	return n, err
}

func (tx *Tx) updateSession(s *Session) error {
	const op = "update session"
	if s.State == SessionEnded {
		fill(&s.Ended, tx.now)
	}
	n, err := tx.exec(op, `UPDATE sessions SET title = ?, state = ?, ended = ?, version = version + 1 WHERE id = ? AND version = ?`,
		s.Title, string(s.State), ns(s.Ended), s.ID, s.Version)
	if err == nil && n == 0 {
		if _, err = tx.session(s.ID); err == nil {
			err = conflict(op + " " + quoteID(s.ID))
		}
	}
	if err == nil {
		s.Version++
	}
	return err
}

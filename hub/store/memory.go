package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/internal/fault"
	"palyra/internal/ident"
)

// The scopes of an item of memory.
const (
	MemoryOfPrincipal = "principal" // for each session of its principal
	MemoryOfSession   = "session"   // for the session that it was made in; it goes with it
)

// Memory is an item that a principal had remembered. What it says is Sealed, by palyra/hub/memory.
type Memory struct {
	N         int64  // order in which they were made
	ID        string // "mem_…"
	Principal string
	Scope     string
	Session   string   // that it was made in; "": none is known
	Source    string   // who wrote it
	Origins   []string // of what it was made of, sorted
	Created   time.Time
	Expires   time.Time // zero: never
	Sealed    []byte
}

// MemoryBounds bounds what one principal has remembered. 0: no bound.
type MemoryBounds struct{ Items, Bytes int64 }

const memoryColumns = `n, id, principal, scope, session, source, origins, created, expires, sealed`

func scanMemory(r scanner, m *Memory) error {
	var created, expires int64
	var origins string
	err := r.Scan(&m.N, &m.ID, &m.Principal, &m.Scope, &m.Session, &m.Source, &origins, &created, &expires, &m.Sealed)
	m.Origins, m.Created, m.Expires = strings.Split(origins, ","), at(created), at(expires)
	return err
}

// AddMemories adds items of one principal, all or none. Beyond the bounds it's fault.Unavailable
// "quota".
func (tx *Tx) AddMemories(items []Memory, most MemoryBounds) error {
	const op = "add memory"
	for i := range items {
		m := &items[i]
		if m.Principal != items[0].Principal {
			return usage("invalid_input", op, "items of two principals")
		}
		if err := ident.Check(ident.Memory, m.ID); err != nil {
			return err
		}
		if m.Session != "" {
			s, err := tx.session(m.Session)
			if err != nil || s.Principal != m.Principal {
				return NoSuch("session", m.Session)
			}
		}
		if _, err := tx.insert(op, m.Principal, `INSERT INTO memories (id, principal, scope, session, source, origins, created, expires, size, sealed)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			m.ID, m.Principal, m.Scope, m.Session, m.Source, strings.Join(m.Origins, ","), ns(m.Created), ns(m.Expires), len(m.Sealed), blob(m.Sealed)); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		return nil
	}
	n, bytes, err := tx.MemoryUse(items[0].Principal)
	if err == nil && (most.Items > 0 && n > most.Items || most.Bytes > 0 && bytes > most.Bytes) {
		err = fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80s would have %d items in %d bytes, and the most are %d in %d", items[0].Principal, n, bytes, most.Items, most.Bytes)).
			WithHint("palyra memory forget, or purge, makes room; [memory] of palyrad's configuration has the bounds")
	}
	return err
}

// MemoryUse returns how many items a principal has, and their sealed bytes.
func (tx *Tx) MemoryUse(principal string) (items, bytes int64, err error) {
	_, err = tx.row("count memory", `SELECT count(*), coalesce(sum(size), 0) FROM memories WHERE principal = ?`, []any{principal}, &items, &bytes)
	return items, bytes, err
}

// Memory returns an item of a principal, or fault.NotFound "not_found".
func (tx *Tx) Memory(principal, id string) (*Memory, error) {
	return one(tx, "memory", id, `SELECT `+memoryColumns+` FROM memories WHERE id = ? AND principal = ?`, []any{id, principal}, scanMemory)
}

// Memories calls each with a principal's items behind N after, in the order in which they were
// made, until it returns false. What each is given is its own.
func (tx *Tx) Memories(principal string, after int64, each func(*Memory) bool) error {
	return tx.query("read memory", `SELECT `+memoryColumns+` FROM memories WHERE principal = ? AND n > ? ORDER BY n`, []any{principal, after}, func(r *sql.Rows) error {
		m := new(Memory)
		if err := scanMemory(r, m); err != nil {
			return err
		}
		if !each(m) {
			return errEnough
		}
		return nil
	})
}

// MemoriesBefore is Memories with the newest first, before N. before 0: from the newest on.
func (tx *Tx) MemoriesBefore(principal string, before int64, each func(*Memory) bool) error {
	return tx.query("read memory", `SELECT `+memoryColumns+` FROM memories WHERE principal = ?1 AND (?2 = 0 OR n < ?2) ORDER BY n DESC`, []any{principal, before}, func(r *sql.Rows) error {
		m := new(Memory)
		if err := scanMemory(r, m); err != nil {
			return err
		}
		if !each(m) {
			return errEnough
		}
		return nil
	})
}

// MemoryOrigins returns the origins of all items of a principal, sorted.
func (tx *Tx) MemoryOrigins(principal string) (origins []string, err error) {
	err = tx.query("read memory", `SELECT DISTINCT origins FROM memories WHERE principal = ?`, []any{principal}, func(r *sql.Rows) error {
		var list string
		err := r.Scan(&list)
		origins = append(origins, strings.Split(list, ",")...)
		return err
	})
	slices.Sort(origins)
	return slices.Compact(origins), err
}

// RemoveMemories removes items of a principal, and returns those that there were.
func (tx *Tx) RemoveMemories(principal string, ids []string) (gone []string, err error) {
	for _, id := range ids {
		n, err := tx.exec("remove memory", `DELETE FROM memories WHERE id = ? AND principal = ?`, id, principal)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			gone = append(gone, id)
		}
	}
	return gone, nil
}

// Forget empties the write-ahead log, so that what was deleted before is in none of the database's
// files. A reader that doesn't end, such as a backup, is fault.Busy "locked": it's tried again
// with the next call.
func (s *Store) Forget(ctx context.Context) error {
	const op = "empty write-ahead log"
	if err := take(ctx, s.writer.turn); err != nil {
		return classify(op, err)
	}
	defer func() { s.writer.turn <- struct{}{} }()
	if !s.writer.checkpoint() {
		return fault.New(fault.Busy, "locked", op, errors.New("a reader of the database, a backup maybe, keeps it")).
			WithHint("the items are gone; their sealed bytes go with the next palyra memory purge, or when palyrad ends")
	}
	return nil
}

// AllMemories counts the items of all principals.
func (tx *Tx) AllMemories() (n int64, err error) {
	_, err = tx.row("count memory", `SELECT count(*) FROM memories`, nil, &n)
	return n, err
}

// HasMemories reports whether a principal has an item of one of two sources.
func (tx *Tx) HasMemories(principal, source, or string) (has bool, err error) {
	_, err = tx.row("look up memory", `SELECT EXISTS (SELECT 1 FROM memories WHERE principal = ? AND source IN (?, ?))`, []any{principal, source, or}, &has)
	return has, err
}

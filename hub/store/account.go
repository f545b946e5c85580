package store

import (
	"maps"
	"slices"
	"strings"
)

// What a transaction writes is somebody's. [Tx.insert] is the only way to a new
// row and names the principal who pays for it, "" for the daemon itself; when the
// transaction is durable the function of [Store.OnWritten] is told. So no request
// leaves a row that isn't on an account, whichever way it took.

// rowCost is what a row of each table takes in the database besides its texts and
// blobs, in bytes: its numbers and headers, its entries in indexes, and the room
// that pages keep free. TestAccount measures it. Of runs and steps it has what
// they grow by until they end, of approvals what an answer adds besides its texts.
var rowCost = map[string]int64{
	"sessions":       80,
	"runs":           220,
	"steps":          290,
	"events":         30,
	"approvals":      300,
	"artifacts":      40,
	"artifact_holds": 110,
	"idempotency":    80,
	"settings":       20,
	"members":        40,
	"tokens":         90,
	"access_changes": 50,
	"servers":        60,
	"devices":        120,
	"passkeys":       120,
	"session_inputs": 20,
	"memories":       150,
	"usage":          30,

	"device_certificates": 120,
}

// argCost is what the values of a row take: a text twice, since most are keys
// that stand in an index once more, a blob once.
func argCost(args []any) (n int64) {
	for _, a := range args {
		switch v := a.(type) {
		case string:
			n += 2 * int64(len(v))
		case []byte:
			n += int64(len(v))
		}
	}
	return n
}

// insert runs an INSERT for which who pays, and returns how many rows it made.
func (tx *Tx) insert(op, who, text string, args ...any) (int64, error) {
	table, _, _ := strings.Cut(strings.TrimPrefix(text, insertInto), " ")
	cost, ok := rowCost[table]
	if !ok {
		panic("store: internal error: what a row of " + table + " takes is not known")
	}
	n, err := tx.change(op, text, args...)
	if err == nil && n > 0 {
		tx.spend(who, cost+argCost(args))
	}
	return n, err
}

// insertInto begins the statements that make rows.
const insertInto = "INSERT INTO "

// spend notes that who wrote bytes.
func (tx *Tx) spend(who string, bytes int64) {
	if who == "" || bytes <= 0 {
		return
	}
	if tx.written == nil {
		tx.written = make(map[string]int64)
	}
	tx.written[who] += bytes
}

// payer returns whose a run is, "" if there is none of that id.
func (tx *Tx) payer(run string) (who string, err error) {
	if who, ok := tx.payers[run]; ok {
		return who, nil
	}
	_, err = tx.row("look up owner of run", `SELECT principal FROM runs WHERE id = ?`, []any{run}, &who)
	tx.pays(run, who)
	return who, err
}

// pays remembers whose a run is: that never changes.
func (tx *Tx) pays(run, who string) {
	if !tx.write || who == "" {
		return
	}
	if tx.payers == nil {
		tx.payers = make(map[string]string)
	}
	tx.payers[run] = who
}

// OnWritten has f told of what each further Update leaves in the database, once
// it is durable: who pays, and about how many bytes. What is removed later isn't
// told. There is one f; it waits for nothing.
func (s *Store) OnWritten(f func(principal string, bytes int64)) { s.writer.told.Store(&f) }

// Change is what an Update changed: tables, and the principals whose new rows are in it.
type Change struct{ Tables, Principals []string }

// OnChanged has f told of each further Update that changes something, once it's durable. There is
// one f; it waits for nothing.
func (s *Store) OnChanged(f func(Change)) { s.writer.heard.Store(&f) }

func (w *writer) tell(j *job) {
	if f := w.told.Load(); f != nil {
		for who, n := range j.written {
			(*f)(who, n)
		}
	}
	if f := w.heard.Load(); f != nil && len(j.changed) > 0 {
		(*f)(Change{j.changed, slices.Collect(maps.Keys(j.written))})
	}
}

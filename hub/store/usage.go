package store

import (
	"database/sql"
	"time"
)

// Usage is what turns of a model took in a day, in tokens.
type Usage struct {
	Day       int64  `json:"day"` // see DayOf
	Model     string `json:"model"`
	Turns     int64  `json:"turns"`
	Sized     int64  `json:"sized,omitempty"` // of Turns: no one said what they took, and their size is counted
	Input     int64  `json:"input"`
	Cached    int64  `json:"cached,omitempty"` // of Input
	Output    int64  `json:"output"`
	Reasoning int64  `json:"reasoning,omitempty"` // of Output
	Cost      int64  `json:"cost,omitempty"`      // in millionths of the unit of the models' prices
}

// DayOf returns the day of a time, since 1970, UTC.
func DayOf(t time.Time) int64 { return t.UTC().Unix() / (24 * 60 * 60) }

// Less returns u without o, of the same day and model.
func (u Usage) Less(o Usage) Usage {
	u.Turns, u.Sized, u.Input, u.Cached = u.Turns-o.Turns, u.Sized-o.Sized, u.Input-o.Input, u.Cached-o.Cached
	u.Output, u.Reasoning, u.Cost = u.Output-o.Output, u.Reasoning-o.Reasoning, u.Cost-o.Cost
	return u
}

// And returns u with o, of the same model, up to MaxUsage.
func (u Usage) And(o Usage) Usage {
	sum := func(a, b int64) int64 { return min(a+b, MaxUsage) }
	u.Turns, u.Sized, u.Input, u.Cached = sum(u.Turns, o.Turns), sum(u.Sized, o.Sized), sum(u.Input, o.Input), sum(u.Cached, o.Cached)
	u.Output, u.Reasoning, u.Cost = sum(u.Output, o.Output), sum(u.Reasoning, o.Reasoning), sum(u.Cost, o.Cost)
	return u
}

// MaxUsage is the most that a number of a Usage comes to: beyond it nothing is added, so that sums
// of a few hundred don't overflow.
const MaxUsage = 1 << 52

// CountUsage adds to what turns in a session took, and to what those of its principal did. Less
// than nothing takes back what was added before. The day's sum of a principal stays when the run is
// removed, that of a session goes with the session.
func (tx *Tx) CountUsage(session, principal string, u Usage) error {
	const op = "count usage"
	if u == (Usage{Day: u.Day, Model: u.Model}) {
		return nil
	}
	for _, whose := range [...]string{principal, session} {
		n, err := tx.exec(op, `UPDATE usage SET turns = max(0, turns + ?4), sized = max(0, min(sized + ?5, turns + ?4)), input = max(0, min(input + ?6, ?11)), cached = max(0, min(cached + ?7, ?11)),
			output = max(0, min(output + ?8, ?11)), reasoning = max(0, min(reasoning + ?9, ?11)), cost = max(0, min(cost + ?10, ?11))
			WHERE whose = ?1 AND day = ?2 AND model = ?3`,
			whose, u.Day, u.Model, u.Turns, u.Sized, u.Input, u.Cached, u.Output, u.Reasoning, u.Cost, MaxUsage)
		if err == nil && n == 0 && u.Turns > 0 {
			_, err = tx.insert(op, principal, `INSERT INTO usage (whose, day, model, turns, sized, input, cached, output, reasoning, cost) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
				whose, u.Day, u.Model, u.Turns, u.Sized, min(u.Input, MaxUsage), min(u.Cached, MaxUsage), min(u.Output, MaxUsage), min(u.Reasoning, MaxUsage), min(u.Cost, MaxUsage))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Usage returns what turns took from a day on, newest day first, by model: those of a principal, or
// of a session.
func (tx *Tx) Usage(whose string, from int64) (all []Usage, err error) {
	err = tx.query("read usage", `SELECT day, model, turns, sized, input, cached, output, reasoning, cost FROM usage WHERE whose = ? AND day >= ? ORDER BY day DESC, model`,
		[]any{whose, from}, func(r *sql.Rows) error {
			var u Usage
			err := r.Scan(&u.Day, &u.Model, &u.Turns, &u.Sized, &u.Input, &u.Cached, &u.Output, &u.Reasoning, &u.Cost)
			all = append(all, u)
			return err
		})
	return all, err
}

// UsageByAll returns what turns of each principal took from a day on, by model: Day is 0.
func (tx *Tx) UsageByAll(from int64, each func(principal string, u *Usage)) error {
	return tx.query("read usage", `SELECT whose, model, sum(turns), sum(sized), sum(input), sum(cached), sum(output), sum(reasoning), sum(cost) FROM usage
		WHERE instr(whose, ':') > 0 AND day >= ? GROUP BY whose, model ORDER BY whose, model`, []any{from}, func(r *sql.Rows) error {
		var whose string
		var u Usage
		err := r.Scan(&whose, &u.Model, &u.Turns, &u.Sized, &u.Input, &u.Cached, &u.Output, &u.Reasoning, &u.Cost)
		if err == nil {
			each(whose, &u)
		}
		return err
	})
}

// Spent returns what turns of a principal or a session took from a day on: tokens, asked and
// answered, and their cost.
func (tx *Tx) Spent(whose string, from int64) (tokens, cost int64, err error) {
	_, err = tx.row("sum usage", `SELECT coalesce(sum(input + output), 0), coalesce(sum(cost), 0) FROM usage WHERE whose = ? AND day >= ?`, []any{whose, from}, &tokens, &cost)
	return tokens, cost, err
}

package store

import (
	"slices"
	"testing"
	"time"
)

// usageOf reads what is counted of a principal or session from a day on.
func usageOf(t *testing.T, s *Store, whose string, from int64) []Usage {
	t.Helper()
	return see(t, s, func(tx *Tx) ([]Usage, error) { return tx.Usage(whose, from) })
}

// TestUsage: a session's count is its principal's, too. An earlier count is taken back; a removed
// run takes nothing from its principal's day, and a session's sum goes with it.
func TestUsage(t *testing.T) {
	s := newStore(t)
	r := newRun(t, s)
	other := newRun(t, s) // the principal's, too
	const day = 20000
	question := Usage{Day: day, Model: "main", Turns: 1, Sized: 1, Input: 50}
	answered := Usage{Day: day, Model: "main", Turns: 1, Input: 60, Cached: 40, Output: 7, Reasoning: 3, Cost: 9}
	count := func(run *Run, u Usage) {
		t.Helper()
		do(t, s, func(tx *Tx) error { return tx.CountUsage(run.Session, run.Principal, u) })
	}
	want := func(whose string, from int64, want ...Usage) {
		t.Helper()
		if got := usageOf(t, s, whose, from); !slices.Equal(got, want) {
			t.Errorf("%s from %d: %+v, want %+v", whose, from, got, want)
		}
		tokens, cost := int64(0), int64(0)
		for _, u := range want {
			tokens, cost = tokens+u.Input+u.Output, cost+u.Cost
		}
		see(t, s, func(tx *Tx) (any, error) {
			n, paid, err := tx.Spent(whose, from)
			if n != tokens || paid != cost {
				t.Errorf("%s from %d has spent %d for %d, want %d for %d", whose, from, n, paid, tokens, cost)
			}
			return nil, err
		})
	}
	count(r, question)
	want(r.Session, 0, question)
	want(r.Principal, day, question)
	count(r, answered.Less(question))
	want(r.Session, 0, answered)
	count(other, answered)
	count(r, Usage{Day: day + 1, Model: "b", Turns: 1, Input: 1})
	count(r, Usage{Day: day + 1, Model: "a", Turns: 1, Input: 2})
	twice := Usage{Day: day, Model: "main", Turns: 2, Input: 120, Cached: 80, Output: 14, Reasoning: 6, Cost: 18}
	late := []Usage{{Day: day + 1, Model: "a", Turns: 1, Input: 2}, {Day: day + 1, Model: "b", Turns: 1, Input: 1}}
	want(r.Principal, 0, append(slices.Clone(late), twice)...)
	want(r.Principal, day+1, late...)
	want(other.Session, 0, answered)
	want("uid:2", 0)
	check(t, s)

	count(other, question) // a turn that was never made
	count(other, Usage{}.Less(question).of(question))
	want(other.Session, 0, answered)
	count(other, Usage{Day: day + 9, Model: "c", Turns: -1, Input: -9}) // nothing to take back
	want(r.Principal, day+2)

	for _, run := range []*Run{r, other} {
		do(t, s, func(tx *Tx) error {
			run.State, run.Reason = RunFailed, "step_failed"
			if err := tx.UpdateRun(run); err != nil {
				return err
			}
			ses, err := tx.Session(run.Session)
			if err == nil {
				ses.State = SessionEnded
				err = tx.UpdateSession(ses)
			}
			return err
		})
	}
	if err := s.Retire(t.Context(), Retention{Before: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	want(r.Session, 0)
	want(r.Principal, 0, append(slices.Clone(late), twice)...)
	check(t, s)

	count(newRun(t, s), Usage{Day: day, Model: "main", Turns: 1, Input: 1 << 62, Cost: 1 << 62})
	if u := usageOf(t, s, r.Principal, 0)[2]; u.Input != MaxUsage || u.Cost != MaxUsage || u.Turns != 3 {
		t.Errorf("%+v", u)
	}
}

// of is u, of the day and model of o.
func (u Usage) of(o Usage) Usage {
	u.Day, u.Model = o.Day, o.Model
	return u
}

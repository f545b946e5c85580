package approval

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/clock"
	"palyra/internal/fault"
)

const year = 365 * 24 * time.Hour

var owner = By{Principal: "uid:0", Surface: "unix"}

// TestClockSteps: a step of the clock while a question waits. A step back gives approvers
// no more time. After a step forward none can say yes any more, and the call waits no
// longer than it would have.
func TestClockSteps(t *testing.T) {
	for _, test := range []struct {
		name   string
		step   time.Duration
		answer bool // there is one, before its time is over
		reason string
		want   string
	}{
		{"none", 0, true, "", Approved},
		{"back, answered", -year, true, "", Approved},
		{"back, not answered", -year, false, "", Expired},
		{"forward, answered", year, true, "approval_expired", Expired},
		{"forward, not answered", year, false, "", Expired},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, c := clock.TestOnlyNew(time.Now())
				m := newMemory()
				h := NewHub(m, HubOptions{Clock: c})
				q := question()
				q.Timeout = time.Minute
				asked := time.Now()
				got := make(chan *Record, 1)
				go func() { got <- Resolve(t.Context(), h.For(subject), q) }()
				id := <-m.opened
				host.Step(test.step)
				if test.answer {
					if _, err := h.Resolve(t.Context(), id, 0, owner, Reply{Approve: true}); fault.ReasonOf(err) != test.reason {
						t.Errorf("answer: %v, want %q", err, test.reason)
					}
				}
				rec := <-got
				if rec.View().Answer != test.want || rec.Approved() != (test.want == Approved) {
					t.Errorf("the record says %+v, want %s", rec.View(), test.want)
				}
				if waited := time.Since(asked); test.want == Expired && waited != q.Timeout {
					t.Errorf("it waited for %v", waited)
				}
				if v := rec.View(); v.Answered.Before(v.Requested) {
					t.Errorf("answered at %v, requested at %v", v.Answered, v.Requested)
				}
				if _, err := h.Resolve(t.Context(), id, 0, owner, Reply{Approve: true}); err == nil {
					t.Error("it can be answered again")
				}
			})
		})
	}
}

// TestClockStepBefore: the deadline of the run that a question belongs to was
// set before the step; the question is asked all the same.
func TestClockStepBefore(t *testing.T) {
	for _, step := range []time.Duration{-year, year} {
		synctest.Test(t, func(t *testing.T) {
			host, c := clock.TestOnlyNew(time.Now())
			m := newMemory()
			h := NewHub(m, HubOptions{Clock: c})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			host.Step(step)
			got := asking(ctx, h)
			id := <-m.opened
			e, err := m.Entry(ctx, id)
			if err != nil || e.Expires.Sub(e.Created) != time.Minute {
				t.Errorf("step %v: created %v, expires %v, %v", step, e.Created, e.Expires, err)
			}
			if _, err := h.Resolve(ctx, id, 0, owner, Reply{Approve: true}); err != nil {
				t.Errorf("step %v: %v", step, err)
			}
			if !(<-got).Approved() {
				t.Errorf("step %v: not approved", step)
			}
		})
	}
}

// TestClockStanding: a grant ends after its time by either clock.
func TestClockStanding(t *testing.T) {
	for _, test := range []struct {
		name string
		// Steps before and after the yes, the time that passes, a step back.
		before, after, pass, end time.Duration
		covered                  bool
	}{
		{"no step", 0, 0, 59 * time.Minute, 0, true},
		{"its time", 0, 0, time.Hour, 0, false},
		{"forward", 0, year, 0, 0, false},
		{"back", 0, -year, 59 * time.Minute, 0, true},
		{"back, and its time", 0, -year, time.Hour, 0, false},
		{"made ahead", year, -year, 59 * time.Minute, 0, true},
		{"made ahead, and its time", year, -year, time.Hour, 0, false},
		{"forward, seen, and back", 0, year, 0, -year, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			host, c := clock.TestOnlyNew(time.Now())
			m, n := newMemory(), &notes{}
			h := NewHub(m, HubOptions{Clock: c, Record: n.record})
			host.Step(test.before)
			if _, asked, err := askAnd(t, m, h, subject, callQuestion(nil), Reply{Approve: true, Scope: ScopeTimed, For: time.Hour}); !asked || err != nil {
				t.Fatal(asked, err)
			}
			host.Step(test.after)
			host.Pass(test.pass)
			host.Step(test.end)
			rec, asked, _ := askAnd(t, m, h, subject, callQuestion(nil), Reply{})
			if asked == test.covered || rec.Approved() != test.covered {
				t.Errorf("asked %v, approved %v; covered should be %v", asked, rec.Approved(), test.covered)
			}
			if got := len(h.Standing()) == 1; got != test.covered {
				t.Errorf("it is listed: %v", got)
			}
		})
	}
}

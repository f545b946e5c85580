package access

import (
	"context"
	"testing"
	"time"

	"palyra/internal/clock"
	"palyra/internal/fault"
)

const year = 365 * 24 * time.Hour

// host opens the office's registry on a host whose clock a test sets; again is a
// restart.
func (o *office) host(t *testing.T) (h *clock.TestOnlyHost, again func()) {
	t.Helper()
	h, _ = clock.TestOnlyNew(time.Now())
	again = func() {
		if o.Registry != nil {
			must(t, o.Flush(context.Background()))
		}
		r, err := Open(context.Background(), Config{Storage: o.mem, Key: Key{b: [32]byte{1}}, Record: o.record, Clock: h.Clock()})
		must(t, err)
		o.Registry = r
	}
	again()
	return h, again
}

// good says whether a token opens the door, and that what holds it may do
// something exactly then.
func (o *office) good(t *testing.T, text string, h Holder) bool {
	t.Helper()
	_, err := o.Authenticate(text)
	if err != nil && fault.ReasonOf(err) != "token_expired" && fault.ReasonOf(err) != "token_revoked" {
		t.Error(err)
	}
	if may := o.Permissions(h) != 0; may != (err == nil) {
		t.Errorf("it authenticates: %v, and holds permissions: %v", err, may)
	}
	if view := o.find(h.Token); (o.Expired(view) || !view.Revoked.IsZero()) != (err != nil) {
		t.Errorf("it is listed as expired: %v, and %v", o.Expired(view), err)
	}
	return err == nil
}

// TestClockSteps: a clock that is set back brings no token back and prolongs
// none; one that is set forward ends what it ends while it lasts.
func TestClockSteps(t *testing.T) {
	o := newOffice(t)
	h, again := o.host(t)
	short, shortBy := o.mint(t, operator, time.Hour, RunStart)
	long, longBy := o.mint(t, operator, 30*24*time.Hour, RunStart)
	dead, deadBy := o.mint(t, operator, 30*24*time.Hour, RunStart)
	if _, err := o.Revoke(context.Background(), operator, deadBy.Token); err != nil {
		t.Fatal(err)
	}
	check := func(when string, wantShort, wantLong bool) {
		t.Helper()
		if got := o.good(t, short, shortBy); got != wantShort {
			t.Errorf("%s: the token of an hour is good: %v", when, got)
		}
		if got := o.good(t, long, longBy); got != wantLong {
			t.Errorf("%s: the token of a month is good: %v", when, got)
		}
		if o.good(t, dead, deadBy) {
			t.Errorf("%s: a revoked token is good", when)
		}
	}
	check("at first", true, true)
	h.Step(year)
	check("a year ahead", false, false)
	h.Step(-year)
	check("and back", true, true)
	h.Step(-year)
	check("a year behind", true, true)
	h.Pass(time.Hour)
	check("a year behind, an hour later", false, true)
	again() // the token of a month has just been used
	check("after a restart a year behind", false, true)
	h.Pass(31 * 24 * time.Hour)
	check("a month later", false, false)
	h.Step(year)
	check("the clock is right again", false, false)
	again()
	check("and palyrad has restarted", false, false)
}

// TestClockStepRotate: what has ended is not rotated either.
func TestClockStepRotate(t *testing.T) {
	o := newOffice(t)
	h, _ := o.host(t)
	_, by := o.mint(t, operator, time.Hour, RunStart)
	h.Pass(time.Hour)
	h.Step(-year)
	_, _, err := o.Rotate(context.Background(), operator, by.Token, 0, 0)
	wants(t, err, fault.Denied, "token_expired")
}

// TestClockAhead: a token that was made while the clock was ahead is no longer
// good once it is not, and does not live until then.
func TestClockAhead(t *testing.T) {
	o := newOffice(t)
	h, again := o.host(t)
	old, oldBy := o.mint(t, operator, 30*24*time.Hour, RunStart)
	h.Step(year)
	text, by := o.mint(t, operator, time.Hour, RunStart)
	if !o.good(t, text, by) {
		t.Error("a new token is not good")
	}
	h.Step(-year)
	if o.good(t, text, by) {
		t.Error("a token from the future is good")
	}
	if !o.good(t, old, oldBy) {
		t.Error("one of the present is not")
	}
	// Revoked, it does not move the time at the next start either.
	if _, err := o.Revoke(context.Background(), operator, by.Token); err != nil {
		t.Fatal(err)
	}
	again()
	if !o.good(t, old, oldBy) {
		t.Error("one of the present is not good after a restart")
	}
}

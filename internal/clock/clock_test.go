package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

const year = 365 * 24 * time.Hour

var date = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// TestSteps: every combination of passing and stepping, and what each answer is.
func TestSteps(t *testing.T) {
	type move struct {
		step bool
		d    time.Duration
	}
	pass, step := func(d time.Duration) move { return move{d: d} }, func(d time.Duration) move { return move{true, d} }
	for _, test := range []struct {
		name                  string
		moves                 []move
		now, latest, earliest time.Duration // from date
	}{
		{"nothing", nil, 0, 0, 0},
		{"an hour", []move{pass(time.Hour)}, time.Hour, time.Hour, time.Hour},
		{"forward", []move{pass(time.Hour), step(year)}, year + time.Hour, year + time.Hour, time.Hour},
		{"back", []move{pass(time.Hour), step(-year)}, time.Hour - year, time.Hour, time.Hour - year},
		{"forward and back", []move{step(year), pass(time.Hour), step(-year)}, time.Hour, time.Hour, time.Hour},
		{"back and forward", []move{step(-year), pass(time.Hour), step(year)}, time.Hour, time.Hour, time.Hour},
		{"forward, and time", []move{step(year), pass(2 * time.Hour)}, year + 2*time.Hour, year + 2*time.Hour, 2 * time.Hour},
		{"back, and time", []move{step(-year), pass(2 * time.Hour)}, 2*time.Hour - year, 2 * time.Hour, 2*time.Hour - year},
		{"a slew", []move{step(time.Second / 2)}, time.Second / 2, time.Second / 2, 0},
	} {
		h, c := TestOnlyNew(date)
		for _, m := range test.moves {
			if m.step {
				h.Step(m.d)
			} else {
				h.Pass(m.d)
			}
		}
		for _, x := range []struct {
			what string
			got  time.Time
			want time.Duration
		}{{"Now", c.Now(), test.now}, {"Latest", c.Latest(), test.latest}, {"Earliest", c.Earliest(), test.earliest}} {
			if got := x.got.Sub(date); got != x.want {
				t.Errorf("%s: %s is %v, want %v", test.name, x.what, got, x.want)
			}
		}
		if got, want := c.Behind(), test.latest-test.now; got != want {
			t.Errorf("%s: Behind is %v, want %v", test.name, got, want)
		}
	}
}

// TestSettle: a step forward is believed by Earliest after a day, one that was
// taken back meanwhile is not.
func TestSettle(t *testing.T) {
	h, c := TestOnlyNew(date)
	h.Step(year)
	c.Earliest() // sees it
	h.Pass(Settle - time.Minute)
	if got := c.Earliest(); got.Sub(date) != Settle-time.Minute {
		t.Errorf("before: %v", got)
	}
	h.Step(-year)
	c.Earliest()
	h.Step(year)
	h.Pass(time.Hour)
	c.Earliest()
	h.Pass(Settle - time.Minute)
	if got := c.Earliest(); got.After(date.Add(3 * Settle)) {
		t.Errorf("a second step is believed at once: %v", got)
	}
	h.Pass(time.Minute)
	if got := c.Earliest(); !got.Equal(c.Now()) {
		t.Errorf("after: %v, the host says %v", got, c.Now())
	}
	h.Pass(time.Hour)
	if got := c.Earliest(); !got.Equal(c.Now()) {
		t.Errorf("an hour later: %v, the host says %v", got, c.Now())
	}
}

func TestDue(t *testing.T) {
	if h, c := TestOnlyNew(date); !c.Past(Due{}) || c.Past(c.In(time.Second)) || h == nil {
		t.Error("the zero Due has not come, or one to come has")
	}
	for _, test := range []struct {
		name       string
		step, pass time.Duration
		want       bool
	}{
		{"time", 0, time.Hour, true},
		{"too little", 0, time.Hour - 1, false},
		{"forward", time.Hour, 0, true},
		{"back", -year, time.Hour - 1, false},
		{"back, and its time", -year, time.Hour, true},
	} {
		h, c := TestOnlyNew(date)
		d := c.In(time.Hour)
		h.Step(test.step)
		h.Pass(test.pass)
		if got := c.Past(d); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	// Made while the clock was ahead, it ends by the other.
	h, c := TestOnlyNew(date)
	h.Step(year)
	d := c.In(time.Hour)
	h.Step(-year)
	h.Pass(time.Hour)
	if !c.Past(d) {
		t.Error("a step back prolongs what a clock that was ahead began")
	}
}

// TestAtLeast: a process that begins with a clock behind what is on disk goes on
// from there.
func TestAtLeast(t *testing.T) {
	h, _ := TestOnlyNew(date)
	h.Step(-year)
	c := h.Clock()
	c.AtLeast(date)
	c.AtLeast(date.Add(-time.Hour)) // older news change nothing
	h.Pass(time.Hour)
	if got := c.Latest(); got.Sub(date) != time.Hour {
		t.Errorf("Latest is %v", got)
	}
	if got := c.Behind(); got != year {
		t.Errorf("Behind is %v", got)
	}
	h.Step(2 * year)
	if got := c.Latest(); !got.Equal(c.Now()) {
		t.Errorf("Latest is %v, the host says %v", got, c.Now())
	}
}

// TestRemember: a process that begins with a clock that is ahead removes nothing
// for a day, however often there is another, and whatever they wrote meanwhile.
func TestRemember(t *testing.T) {
	h, c := TestOnlyNew(date)
	h.Pass(time.Hour)
	m := c.Memory()
	if m.Earliest.Sub(date) != time.Hour || !m.Ahead.IsZero() {
		t.Errorf("memory is %+v", m)
	}
	h.Step(year)
	for i := range 23 { // an hour each, and an hour between
		c = h.Clock()
		c.Remember(m)
		h.Pass(30 * time.Minute)
		if got := c.Earliest(); got.After(date.Add(2 * Settle)) {
			t.Fatalf("process %d, %v after the step: %v", i, time.Duration(i)*time.Hour, got)
		}
		h.Pass(30 * time.Minute)
		m = c.Memory()
	}
	h.Pass(time.Hour) // no daemon runs
	c = h.Clock()
	c.Remember(m)
	if got := c.Earliest(); !got.Equal(c.Now()) {
		t.Errorf("a day later: %v, the host says %v", got, c.Now())
	}
	if m = c.Memory(); !m.Ahead.IsZero() {
		t.Errorf("memory is %+v", m)
	}
	// A memory written by a clock that was ahead changes nothing, nor does a missing one.
	for _, m := range []Memory{{}, {Earliest: c.Now().Add(year), Ahead: c.Now()}} {
		c = h.Clock()
		c.Remember(m)
		if got := c.Earliest(); !got.Equal(c.Now()) {
			t.Errorf("Earliest is %v, the host says %v", got, c.Now())
		}
	}
	// Set back after it was seen, and ahead again: that is another step.
	c = h.Clock()
	c.Remember(Memory{Earliest: c.Now().Add(-year), Ahead: c.Now().Add(time.Hour)})
	h.Pass(Settle - time.Minute)
	if got := c.Earliest(); got.After(c.Now().Add(-year + slack)) {
		t.Errorf("Earliest is %v", got)
	}
}

func TestHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := time.Now()
		c := New()
		<-time.After(time.Minute) // of the bubble
		if got := c.Latest().Sub(first.UTC()); got != time.Minute || c.Earliest() != c.Latest() || c.Now() != c.Latest() || c.Behind() != 0 {
			t.Errorf("Latest is %v, Earliest %v, Now %v", c.Latest(), c.Earliest(), c.Now())
		}
		if got := Since(first, time.Now()); got.Sub(first) != time.Minute {
			t.Errorf("Since is %v", got)
		}
	})
	// A date that was written with a clock that is behind now.
	if a, b := date, date.Add(-time.Hour); !Since(a, b).Equal(b) {
		t.Error("dates without monotonic reading are taken as they are")
	}
}

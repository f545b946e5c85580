// Package clock tells the time to what outlives a step of the host's clock.
//
// A host has two clocks. Everybody who administers it, and its time service, may
// set the wall clock to anything; the monotonic one only runs, but says no date
// and begins anew with each process. What waits (deadlines, budgets, heartbeats,
// limits of rate) needs the monotonic one alone, and time.Time with its
// monotonic reading is right for it. What is written down as a date needs both:
//
//	c := clock.New()
//	if !c.Latest().Before(token.Expires) { … }       // a credential ends
//	remove(c.Earliest().Add(-keep))                  // something is thrown away
//	g.due = c.In(life); …; c.Past(g.due)             // a permission in memory ends
//
// # Contract
//
// Where a step of the wall clock makes the two differ, the answer is the one
// that takes authority away, and destroys nothing: what expires does so when
// either clock says so, what is removed is removed when both do. A step back
// prolongs nothing. A step forward ends what it ends while it lasts, and removes
// nothing until it has lasted for [Settle].
//
// # What it does not protect against
//
// A clock that was wrong before the process began, but for what [Clock.AtLeast]
// and [Clock.Remember] were told. Time in which the host was suspended is none for the monotonic clock.
//
// A Clock is safe for concurrent use; AtLeast is not, and comes first.
package clock

import (
	"sync"
	"time"
)

// Settle is how long a step forward must have lasted before Earliest believes it.
const Settle = 24 * time.Hour

// slack is a difference between the clocks that is no step: time services move a
// clock by less without a step.
const slack = time.Second

// Clock has both clocks of a host. Make one with New.
type Clock struct {
	wall func() time.Time     // UTC, without monotonic reading
	mono func() time.Duration // since some moment

	high hand // immutable after AtLeast

	mu    sync.Mutex
	low   hand          // guarded by mu
	ahead bool          // the wall clock is ahead of low; guarded by mu
	since time.Duration // when that was first seen, by mono; guarded by mu
}

// hand is what the wall clock would say if nobody had set it since a moment.
type hand struct {
	wall time.Time
	mono time.Duration
}

func (h hand) at(mono time.Duration) time.Time { return h.wall.Add(mono - h.mono) }

// New returns the host's clocks.
func New() *Clock {
	began := time.Now()
	return start(func() time.Time { return time.Now().UTC() }, func() time.Duration { return time.Since(began) })
}

func start(wall func() time.Time, mono func() time.Duration) *Clock {
	h := hand{wall(), mono()}
	return &Clock{wall: wall, mono: mono, high: h, low: h}
}

// AtLeast says that it is not before t, whatever the host says: something that
// is on disk happened then.
func (c *Clock) AtLeast(t time.Time) {
	if m := c.mono(); t.After(c.high.at(m)) {
		c.high = hand{t.UTC(), m}
	}
}

// Memory is what Earliest knows, for the next process.
type Memory struct {
	Earliest time.Time `json:"earliest"`
	Ahead    time.Time `json:"ahead,omitzero"` // by the host's clock, since when that is ahead of Earliest; zero: it is not
}

// Memory returns what is to be kept.
func (c *Clock) Memory() Memory {
	m := Memory{Earliest: c.Earliest()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead {
		m.Ahead = c.wall().Add(c.since - c.mono())
	}
	return m
}

// Remember goes on from what an earlier process kept: that the host's clock is
// ahead of it is a step, or time in which none ran.
func (c *Clock) Remember(m Memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.wall(), c.mono()
	if m.Earliest.IsZero() || !wall.After(m.Earliest.Add(slack)) {
		return
	}
	c.low, c.ahead, c.since = hand{m.Earliest.UTC(), mono}, true, mono
	if !m.Ahead.IsZero() {
		c.since -= min(max(0, wall.Sub(m.Ahead)), Settle)
	}
}

// Now is what the host says, in UTC.
func (c *Clock) Now() time.Time { return c.wall() }

// Latest is the later of what the host says and what it would say had nobody
// set its clock since New. It is for the end of what gives authority.
func (c *Clock) Latest() time.Time {
	return later(c.wall(), c.high.at(c.mono()))
}

// Behind is by how much the host's clock is behind Latest.
func (c *Clock) Behind() time.Duration { return max(0, c.high.at(c.mono()).Sub(c.wall())) }

// Earliest is the earlier of the two, for what is removed for good. A wall clock
// that has been ahead for Settle is believed.
func (c *Clock) Earliest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.wall(), c.mono()
	steady := c.low.at(mono)
	switch {
	case !wall.After(steady.Add(slack)):
		c.ahead = false
		if wall.Before(steady) {
			return wall
		}
	case !c.ahead:
		c.ahead, c.since = true, mono
	case mono-c.since >= Settle:
		c.ahead, c.low = false, hand{wall, mono}
		return wall
	}
	return steady
}

// Due is a moment that comes when either clock says so.
type Due struct {
	wall time.Time
	mono time.Duration
}

// In is the moment after d.
func (c *Clock) In(d time.Duration) Due { return Due{c.wall().Add(d), c.mono() + d} }

// Past reports whether a moment has come. The zero Due has.
func (c *Clock) Past(d Due) bool { return !c.wall().Before(d.wall) || c.mono() >= d.mono }

// Since is the date of now, where first was a date that time.Now gave, with its
// monotonic reading: not before what the time that has passed makes of first.
// Two dates of one record keep their order with it.
func Since(first, now time.Time) time.Time {
	return later(now.Round(0), first.Round(0).Add(now.Sub(first)))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

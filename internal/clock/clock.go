// Package clock tells the time to code that must survive a step of the host's clock.
//
// A host has two clocks. Its administrators and its time service may set the wall clock to
// anything. The monotonic clock only runs, but has no date and begins anew with each
// process. Deadlines, budgets, heartbeats and rate limits need the monotonic clock alone,
// and time.Time with its monotonic reading is right for them. Dates that are written down
// need both:
//
//	c := clock.New()
//	if !c.Latest().Before(token.Expires) { … }       // a credential ends
//	remove(c.Earliest().Add(-keep))                  // something is thrown away
//	g.due = c.In(life); …; c.Past(g.due)             // a permission in memory ends
//
// # Contract
//
// When a step of the wall clock makes the two differ, the answer is the one that takes
// authority away and destroys nothing: authority expires when either clock says so, and
// data is removed when both do. A step back prolongs nothing. A step forward ends authority
// while it lasts, and removes nothing until it has lasted for [Settle].
//
// # What it does not protect against
//
// A clock that was wrong before the process began, except for the times that
// [Clock.AtLeast] and [Clock.Remember] were given. The monotonic clock doesn't count the
// time in which the host was suspended.
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

// hand is the time that the wall clock would show had it not been set since a given moment.
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

// AtLeast says that now isn't before t, whatever the host says: a record on disk is from
// then.
func (c *Clock) AtLeast(t time.Time) {
	if m := c.mono(); t.After(c.high.at(m)) {
		c.high = hand{t.UTC(), m}
	}
}

// Memory is the knowledge of Earliest, for the next process.
type Memory struct {
	Earliest time.Time `json:"earliest"`
	// Ahead is the time, by the host's clock, since when that is ahead of Earliest; zero if
	// it isn't.
	Ahead time.Time `json:"ahead,omitzero"`
}

// Memory returns the knowledge to keep.
func (c *Clock) Memory() Memory {
	m := Memory{Earliest: c.Earliest()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead {
		m.Ahead = c.wall().Add(c.since - c.mono())
	}
	return m
}

// Remember goes on from an earlier process's Memory: if the host's clock is ahead of it,
// that is a step, or time in which no process ran.
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

// Now returns the host's time, in UTC.
func (c *Clock) Now() time.Time { return c.wall() }

// Latest returns the later of the host's time and the time that its clock would show had it
// not been set since New. Use it to end authority.
func (c *Clock) Latest() time.Time {
	return later(c.wall(), c.high.at(c.mono()))
}

// Behind returns how far the host's clock is behind Latest.
func (c *Clock) Behind() time.Duration { return max(0, c.high.at(c.mono()).Sub(c.wall())) }

// Earliest returns the earlier of the two, for removing things for good. It believes a wall
// clock that has been ahead for Settle.
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

// In returns the moment after d.
func (c *Clock) In(d time.Duration) Due { return Due{c.wall().Add(d), c.mono() + d} }

// Past reports whether a moment has come. The zero Due has.
func (c *Clock) Past(d Due) bool { return !c.wall().Before(d.wall) || c.mono() >= d.mono }

// Since returns the date of now. first is an earlier date from time.Now, with its monotonic
// reading, and the result isn't before first plus the time that has passed. With it two
// dates of one record keep their order.
func Since(first, now time.Time) time.Time {
	return later(now.Round(0), first.Round(0).Add(now.Sub(first)))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

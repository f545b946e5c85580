package egress

import "time"

// pace bounds how fast something is done: n at once, and then n more in each per, evenly. It's a
// generic cell rate algorithm (ITU-T I.371, annex A), so it holds one time and no timer.
type pace struct {
	n   int64
	per time.Duration
	due time.Time // when it would be done next at an even pace
}

func (p *pace) each() time.Duration { return p.per / time.Duration(p.n) }

// ready reports whether another may be done now.
func (p *pace) ready(now time.Time) bool {
	return p.due.Sub(now) <= time.Duration(p.n-1)*p.each()
}

// count counts one that is done now.
func (p *pace) count(now time.Time) {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(p.each())
}

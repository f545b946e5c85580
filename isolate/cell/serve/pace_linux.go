package serve

import "time"

// A tree is sampled soon after its start, later every sampleEvery; and for no
// more than a tenth of the time while it has used little of its limits. One that grows is
// sampled before it would have half of what is left, but for half of the time at most.
const (
	sampleFirst = 4 * time.Millisecond
	sampleLeast = time.Millisecond // so long it is always left alone
	sampleEvery = 50 * time.Millisecond
	sampleShare = 10
	sampleLast  = 4 * sampleEvery // a program that is slow to count gets no longer
)

// pace says when the next sample is due: later each time, and later if the last one
// took long, unless it found little room, or that room is being filled.
type pace struct {
	next time.Duration
	used float64 // part of the nearest limit that the last sample found used
}

func (c *pace) wait() time.Duration {
	if c.next == 0 {
		return sampleFirst
	}
	return c.next
}

// took notes a sample that took d of a processor, ended since after the one before, and found that
// of the nearest limit a part, from 0 to 1, is left.
func (c *pace) took(d, since time.Duration, left float64) {
	rest := min(time.Duration(left*float64((sampleShare-1)*d)), sampleLast)
	next := max(min(2*max(c.wait(), sampleFirst), sampleEvery), rest)
	if grown := 1 - left - c.used; grown > 0 {
		half := time.Duration(min(left/2/grown*float64(since), float64(sampleLast)))
		next = min(next, max(half, d, sampleLeast))
	}
	c.next, c.used = next, 1-left
}

package serve

import (
	"slices"
	"time"
)

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
	left []float64 // of each limit, as the last sample found it
}

func (c *pace) wait() time.Duration {
	if c.next == 0 {
		return sampleFirst
	}
	return c.next
}

// took notes a sample that took d of a processor, ended since after the one before, and found that
// of each limit, always in the same order, a part from 0 to 1 is left. One that is nearly used up
// hides no other's growth.
func (c *pace) took(d, since time.Duration, left ...float64) {
	rest := min(time.Duration(slices.Min(left)*float64((sampleShare-1)*d)), sampleLast)
	next := max(min(2*max(c.wait(), sampleFirst), sampleEvery), rest)
	for i, now := range left {
		was := 1.0
		if i < len(c.left) {
			was = c.left[i]
		}
		if grown := was - now; grown > 0 {
			half := time.Duration(min(now/2/grown*float64(since), float64(sampleLast)))
			next = min(next, max(half, d, sampleLeast))
		}
	}
	c.next, c.left = next, left
}

package serve

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	var c pace
	for i, step := range []struct {
		took, since time.Duration
		left        float64
		want        time.Duration // until the next sample
	}{
		{0, 4 * ms, 1, 8 * ms},
		{0, 8 * ms, 1, 16 * ms},
		{0, 16 * ms, 1, 32 * ms},
		{0, 32 * ms, 1, sampleEvery},
		{ms, sampleEvery, 1, sampleEvery},
		{20 * ms, 70 * ms, 1, 180 * ms},    // a tenth of the time
		{20 * ms, 2000 * ms, 0.5, 90 * ms}, // it grows, and slowly
		{20 * ms, 110 * ms, 0.5, 90 * ms},
		{ms, 9 * ms, 0.25, 4500 * time.Microsecond}, // a quarter in 9 ms: half of the last one in 4.5
		{2 * ms, 6 * ms, 0.0625, 2 * ms},            // as long as it was sampled
		{0, 2 * ms, 0.03125, sampleLeast},
		{ms, 2 * ms, 0.5, 8 * ms},      // it gave back: later each time again
		{20 * ms, 60 * ms, 0, 16 * ms}, // no room is left
		{20 * ms, 60 * ms, 0, 32 * ms}, // but it doesn't grow
		{time.Second, time.Second, 1, sampleLast},
	} {
		if c.took(step.took, step.since, step.left); c.wait() != step.want {
			t.Errorf("sample %d, which took %v: the next one is due after %v, want %v", i, step.took, c.wait(), step.want)
		}
	}
}

// TestPaceOfEach: what is nearly used up, and stays so, hides no other limit's growth.
func TestPaceOfEach(t *testing.T) {
	const ms = time.Millisecond
	var c pace
	c.took(0, 4*ms, 0.1, 1)
	c.took(0, 10*ms, 0.1, 0.8)
	if c.took(0, 20*ms, 0.1, 0.2); c.wait() < 3*ms || c.wait() > 4*ms {
		t.Errorf("three fifths in 20 ms, and the next sample is due after %v, want 3.3 ms", c.wait())
	}
}

package grant

import (
	"errors"
	"testing"
	"time"

	"palyra/authz/internal/mint"
	"palyra/internal/canon"
)

// TestClockSteps: whatever is done to the wall clock, no grant is good twice
// while its time has not passed by both clocks, and what was used is forgotten
// when it has.
func TestClockSteps(t *testing.T) {
	capsule, spec := canon.Sum([]byte("capsule")), canon.Sum([]byte("spec"))
	began := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for name, steps := range map[string][]time.Duration{
		"not set":                    {0},
		"forward and back":           {2 * time.Minute, 0},
		"a year forward and back":    {365 * 24 * time.Hour, 0},
		"forward by half, and back":  {30 * time.Second, 0},
		"back":                       {-time.Hour},
		"back and forward":           {-time.Hour, 0},
		"back, forward and back":     {-time.Hour, 2 * time.Minute, -time.Second},
		"forward, further, and back": {2 * time.Minute, 4 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var step, mono time.Duration
			key := NewKey()
			v := NewVerifier(key)
			v.wall = func() time.Time { return began.Add(mono + step) }
			v.mono = func() time.Duration { return mono }
			fresh := func() Grant { return mint.Mint(key, capsule, spec, [16]byte{1}, v.wall().Add(time.Minute)) }
			old := fresh()
			if err := v.Verify(old, capsule, spec); err != nil {
				t.Fatal(err)
			}
			for _, step = range steps {
				mono += 2 * sweepEvery
				// A grant that is new by the clock as it is now is good, and sweeps.
				if err := v.Verify(fresh(), capsule, spec); err != nil {
					t.Errorf("set by %v: a new one: %v", step, err)
				}
				if err := v.Verify(old, capsule, spec); !errors.Is(err, ErrReplayed) && !errors.Is(err, ErrExpired) {
					t.Errorf("set by %v: used again: %v", step, err)
				}
			}
			step = 0
			// A nonce seen while the clock was ahead is kept until that time comes.
			mono += 2 * 365 * 24 * time.Hour
			if err := v.Verify(fresh(), capsule, spec); err != nil {
				t.Error(err)
			}
			if len(v.used) != 1 {
				t.Errorf("%d are remembered for ever", len(v.used)-1)
			}
		})
	}
}

package certify

import (
	"slices"
	"testing"

	"palyra/isolate/knob"
)

// TestClaims: each mechanism that can be turned off has one claim, which is lost
// with it (conformance/escape turns them off).
func TestClaims(t *testing.T) {
	var knobs []string
	for _, c := range Claims() {
		knobs = append(knobs, c.Knob)
		if c.Name == "" || c.Says == "" || len(c.Stopped) == 0 || (c.Tiers != "c" && c.Tiers != "bc") {
			t.Errorf("claim %+v lacks something", c)
		}
		if slices.Contains(c.Stopped, Open) || slices.Contains(c.Stopped, Untold) {
			t.Errorf("claim %s counts %v as stopped", c.Name, c.Stopped)
		}
	}
	want := knob.Names()
	slices.Sort(knobs)
	slices.Sort(want)
	if !slices.Equal(knobs, want) {
		t.Errorf("claims are of %v, knobs are %v", knobs, want)
	}
}

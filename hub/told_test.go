package hub

import (
	"strings"
	"testing"

	"palyra/internal/canon"
)

// TestTookPart: a part of an artifact is told without a gap; of other output too long to be told
// whole, beginning and end.
func TestTookPart(t *testing.T) {
	whole := strings.Repeat("x", 64<<10)
	for tool, gap := range map[string]bool{"artifact.read": false, "fs.read": true} {
		out := Output{Text: whole[:8<<10], Size: int64(len(whole)), Artifact: canon.Sum([]byte(whole))}
		st := &StepResult{Tool: tool, Outcome: "executed", Stdout: out}
		told := Tell(tool, &Run{}, st)
		told.Took(st, true, func(o Output, first, most int64) string { return whole[max(first, o.Size-most):] })
		if got := told.Stdout != whole; got != gap {
			t.Errorf("%s: %d bytes of %d", tool, len(told.Stdout), len(whole))
		}
	}
}

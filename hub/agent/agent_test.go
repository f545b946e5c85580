package agent

import (
	"strings"
	"testing"
)

// TestSystem: a caller's instructions stand behind palyrad's own words, and are the same each time.
func TestSystem(t *testing.T) {
	own := system([]string{"src"}, "")
	if got := system([]string{"src"}, "Be brief."); !strings.HasPrefix(got, own) || !strings.Contains(got[len(own):], "Be brief.") || got != system([]string{"src"}, "Be brief.") {
		t.Errorf("%q", got)
	}
}

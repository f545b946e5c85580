package memory

import (
	"slices"
	"strings"
	"testing"

	"palyra/agentloop/provider/wordhash"
)

// TestFold: plurals and their singulars are one word, and what only looks like one stays.
func TestFold(t *testing.T) {
	words := []string{"releases", "release", "policies", "policy", "builds", "class", "status", "shoes", "its", "keys", "boxes"}
	fold(words)
	if want := []string{"release", "release", "policy", "policy", "build", "class", "status", "shoe", "its", "key", "boxe"}; !slices.Equal(words, want) {
		t.Errorf("%q", words)
	}
}

// TestTelling: a question's common words aren't looked for, unless there are no others.
func TestTelling(t *testing.T) {
	if !slices.IsSorted(common) {
		t.Errorf("%q isn't sorted", common)
	}
	for query, want := range map[string]string{"how do we build a release": "build release", "to be or not to be": "to be or not to be", "": ""} {
		if got := strings.Join(telling(wordhash.Words(query)), " "); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

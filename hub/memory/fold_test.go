package memory

import (
	"slices"
	"testing"
)

// TestFold: plurals and their singulars are one word, and what only looks like one stays.
func TestFold(t *testing.T) {
	words := []string{"releases", "release", "policies", "policy", "builds", "class", "status", "shoes", "its", "keys", "boxes"}
	fold(words)
	if want := []string{"release", "release", "policy", "policy", "build", "class", "status", "shoe", "its", "key", "boxe"}; !slices.Equal(words, want) {
		t.Errorf("%q", words)
	}
}

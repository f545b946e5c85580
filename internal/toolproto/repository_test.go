package toolproto

import (
	"strings"
	"testing"
)

func TestRepository(t *testing.T) {
	for _, c := range []struct {
		names string
		want  bool
	}{
		{"HEAD objects refs config", true},
		{"head OBJECTS refs", true},
		{"HEAD commondir gitdir", true},
		{"HEAD objects", false},
		{"objects refs config", true}, // a commondir's
		{"HEAD refs config", false},
		{"commondir", false},
		{"", false},
	} {
		if got := IsRepository(strings.Fields(c.names)); got != c.want {
			t.Errorf("%q: %t", c.names, got)
		}
	}
}

// TestRepositoryDepth: PlantedRepository looks at no longer name than the places have.
func TestRepositoryDepth(t *testing.T) {
	for _, p := range Places() {
		for pattern := range strings.FieldsSeq(p.Paths) {
			if inside, ok := strings.CutPrefix(pattern, ".git/"); ok && !p.Asked && (strings.Contains(inside, "**") || elements(inside, repositoryDepth+1)) {
				t.Errorf("%q has more than %d elements behind .git", pattern, repositoryDepth)
			}
		}
	}
	if _, ok := PlantedRepository("worktrees/w/config.worktree"); !ok {
		t.Error("three elements aren't flagged")
	}
}

// TestLongNames: the time that a name takes grows no faster than the name. This one would take an
// hour, and a name of 200 elements takes milliseconds.
func TestLongNames(t *testing.T) {
	if _, ok := PlantedNode(strings.Repeat(strings.Repeat("x", 200)+"/", 50_000)+"x", false); ok {
		t.Error("flagged")
	}
}

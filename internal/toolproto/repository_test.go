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

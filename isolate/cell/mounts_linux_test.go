package cell

import (
	"testing"
)

func TestRelated(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"/", "/usr", true}, {"/usr/lib/x", "/usr", true}, {"/srv", "/srv/a/work", true}, {"/srv/a/work", "/srv/a/work", true},
		{"/srv/a/work2", "/srv/a/work", false}, {"/var/lib", "/usr", false}, {"/usr", "/usrlocal", false},
	} {
		if got := related(c.a, c.b); got != c.want || related(c.b, c.a) != c.want {
			t.Errorf("%s and %s: %v, want %v both ways", c.a, c.b, got, c.want)
		}
	}
}

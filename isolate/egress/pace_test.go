package egress

import (
	"testing"
	"time"
)

// TestPace: n at once, then one for each part of the time, and never more than n at once however
// long nothing was asked for.
func TestPace(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, p := range []pace{{n: 1, per: time.Second}, {n: 3, per: time.Second}, {n: 10, per: time.Minute}, {n: 10_000, per: time.Second}} {
		took := func() (n int64) {
			for p.ready(now) {
				p.count(now)
				n++
			}
			return n
		}
		each := p.per / time.Duration(p.n)
		if n := took(); n != p.n {
			t.Errorf("%d/%s: %d at once", p.n, p.per, n)
		}
		now = now.Add(each - 1)
		if n := took(); n != 0 {
			t.Errorf("%d/%s: %d more before their time", p.n, p.per, n)
		}
		now = now.Add(1)
		if n := took(); n != 1 {
			t.Errorf("%d/%s: %d more at their time", p.n, p.per, n)
		}
		now = now.Add(p.per)
		if n := took(); n != p.n {
			t.Errorf("%d/%s: %d more after its time", p.n, p.per, n)
		}
		now = now.Add(1000 * p.per)
		if n := took(); n != p.n {
			t.Errorf("%d/%s: %d at once after long silence", p.n, p.per, n)
		}
		now = now.Add(-p.per) // a clock that goes back gives nothing
		if n := took(); n != 0 {
			t.Errorf("%d/%s: %d when the clock went back", p.n, p.per, n)
		}
	}
}

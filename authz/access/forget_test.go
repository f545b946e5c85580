package access

import (
	"context"
	"testing"
	"time"

	"palyra/internal/fault"
)

// TestForget: tokens that ended long ago are forgotten, in memory and on disk,
// those that are good or that others hang on are not, and what was minted with a
// token still ends with it.
func TestForget(t *testing.T) {
	o := newOffice(t)
	h, again := o.host(t)
	ctx := context.Background()
	const day = 24 * time.Hour
	forget := func(want int) {
		t.Helper()
		must(t, o.Forget(ctx))
		st, err := o.mem.Load(ctx)
		must(t, err)
		if len(o.tokens) != want || len(o.order) != want || len(st.Tokens) != want {
			t.Errorf("%d tokens in memory, %d in order, %d on disk, want %d", len(o.tokens), len(o.order), len(st.Tokens), want)
		}
		for i, x := range o.order {
			if x.place != i {
				t.Errorf("token %d thinks that it is %d", i, x.place)
			}
		}
	}
	for range 3 {
		o.mint(t, operator, time.Hour, RunStart)
	}
	good, goodBy := o.mint(t, operator, year, RunStart)
	root, rootBy := o.mint(t, operator, 200*day, TokenManage, RunStart)
	_, short := o.mint(t, rootBy, 100*day, TokenManage, RunStart)
	// short has ended, and is its successor's parent.
	rotated, _, err := o.Rotate(ctx, short, short.Token, 100*day, 0)
	must(t, err)
	forget(7)
	h.Step(60 * day) // a clock that was set forward
	forget(7)
	h.Step(-60 * day)
	h.Pass(31 * day)
	forget(4) // the three, and not the one that is between root and its grandchild
	again()
	forget(4)
	if !o.good(t, good, goodBy) || !o.good(t, root, rootBy) {
		t.Error("a good token is forgotten")
	}
	if n, err := o.Revoke(ctx, operator, rootBy.Token); err != nil || n != 3 {
		t.Errorf("revoked %d, %v", n, err)
	}
	if _, err := o.Authenticate(rotated.Reveal()); fault.ReasonOf(err) != "token_revoked" {
		t.Errorf("the grandchild: %v", err)
	}
	h.Pass(31 * day)
	forget(3) // leaves first
	forget(2)
	forget(1)
	if !o.good(t, good, goodBy) {
		t.Error("a good token is forgotten")
	}
}
